"""The final stretch of `promote`: one run gets the rest of the budget, its step falling to zero.

It is cut into parts, so that it can go on after a fault, and so that its step can follow what it
shows (`pace`): a part may be undone, and the run then goes on from the state before it, with
another step, on minibatches of its own.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from statistics import median

from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import Tally, paired_samples
from grasp_tune.core.rounds import Known, Round, score_tasks, train_tasks
from grasp_tune.core.tasks import (
    Arm,
    Segment,
    SegmentOutcome,
    average_key,
    iterate_key,
    state_key,
)
from grasp_tune.schedules.race import collect
from grasp_tune.schedules.rungs import BLOCKS, Stand, outcomes
from grasp_tune.schedules.step_control import Pace

PARTS = 8  # those of a tiny budget that would be empty are left out
TELLING = 100  # calls of a part whose losses tell whether it got below the start
LOOKS = 0.005  # share of T for fresh samples at the average of the first part
MARKS = 5  # of a curve, at least, for a median
GAMMA = 8.0  # exponent of the running average


@dataclass(frozen=True, slots=True)
class Launch:
    """Where the stretch begins, and with which step."""

    arm: Arm
    owner: Arm  # the run whose state it begins from
    age: int = 0  # oracle calls that this state has had; 0: x0
    state: str | None = None  # None: x0
    shrink: float = 0.0  # power of its age with which the step shrinks besides
    paced: bool = False  # whether the step follows what the run shows


def final_stretch(
    stand: Stand, launch: Launch, *, demanding: bool = False
) -> Generator[Round, Known, list[Candidate]]:
    """Yield the parts; return the candidates that they leave.

    A `demanding` stretch ends after its first part where that does not get below the start; it
    then leaves no candidate and all that it did not spend.
    """
    looks = _looks(stand) if launch.paced else 0
    total, kept, good = stand.left - looks, launch.owner, launch.state
    begin, end = launch.age, launch.age + total
    rows = [] if good is None else [_row(good, kept, begin, average=False)]
    pace, ends, discard = Pace(stand, launch.arm, launch.paced), None, stand.discard
    for part in range(PARTS):
        first, stop = begin + total * part // PARTS, begin + total * (part + 1) // PARTS
        if stop <= first:
            continue
        arm, last, looked = pace.arm, part == PARTS - 1, looks > 0 and part == 0
        segment = Segment(
            arm,
            first,
            stop,
            keep=(stop,) if last else (),
            averages=(GAMMA,),
            keep_averages=last or looked,
            save=not last,
            anneal=(begin, end),
            shrink=launch.shrink,
            origin=good,
        )
        tasks = train_tasks(f"final{part}", [segment], 0, exact=stand.spec.method.exact)
        known = yield Round(tasks, plan=stand.plan, leader=stand.leader, discard=discard)
        items, discard = outcomes(tasks, known), ()
        stand.left -= sum(item.calls for item in items)
        loss = items[0].loss if items and items[0].finite else math.nan
        if demanding and good is None:
            bound = stand.start.value if stop - first >= TELLING else math.inf
            if not loss < bound:
                stand.discard = () if last else (state_key(arm.index, stop),)
                return []
        if not pace.holds(loss, _usual(items)):
            if not last:
                discard = (state_key(arm.index, stop),)
            pace.go_back()
            continue
        ends = (arm, stop) if last else None
        if not last:
            if good is not None and good not in [row.key for row in rows]:
                discard = (good,)  # the start of the stretch stays, it is a candidate
            kept, good = arm, state_key(arm.index, stop)
            stand.leader = good
        if looked:
            average = average_key(arm.index, stop, GAMMA)
            pace.average = yield from _look(stand, average, looks)
            discard = (*discard, average)
        pace.go_on(part, loss)
    if ends is not None:
        winner, stop = ends
        rows.append(_row(iterate_key(winner.index, stop), winner, stop, average=False))
        rows.append(_row(average_key(winner.index, stop, GAMMA), winner, stop, average=True))
        stand.leader = rows[-2].key
    elif good is not None and good not in [row.key for row in rows]:
        rows.append(_row(good, kept, int(good.split("-")[1]), average=False))
    return rows


def _usual(items: Sequence[SegmentOutcome]) -> float | None:
    """Return the median of the later half of a part's curve, None where it has too few marks."""
    losses = [point.loss for item in items for point in item.curve]
    late = losses[len(losses) // 2 :]
    return median(late) if len(late) >= MARKS else None


def _row(key: str, arm: Arm, call: int, *, average: bool) -> Candidate:
    return Candidate(key, arm.index, arm.base, arm.value, call, average, math.nan, 0, math.nan)


def _looks(stand: Stand) -> int:
    """Return how many fresh samples tell the loss at an average; 0 where too few would."""
    if stand.spec.method.exact or stand.spec.ensemble == "window":
        return 0
    count = int(LOOKS * stand.spec.budget)
    return count if count >= BLOCKS else 0


def _look(stand: Stand, key: str, count: int) -> Generator[Round, Known, float]:
    """Yield fresh samples at a point; return the mean loss there, NaN where they were lost."""
    tasks = score_tasks(
        "pace", paired_samples([key], stand.sampled, stand.sampled + count), "value"
    )
    stand.sampled += count
    known = yield Round(tasks, plan=stand.plan, leader=stand.leader)
    stand.left -= sum(out.calls for out in known.values() if out is not None)
    tallies: dict[str, Tally] = {}
    collect(tasks, known, tallies)
    return tallies[key].mean if key in tallies else math.nan
