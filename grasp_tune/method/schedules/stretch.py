"""The final stretch of `promote`: one run gets the rest of the budget, its step falling to zero.

It is cut into parts, so that it can go on after a fault; a part that makes the loss jump is undone
and the run goes on from the state before it, with a smaller step, on minibatches of its own.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass

from grasp_tune.method.choice import Candidate
from grasp_tune.method.rounds import Known, Round, train_tasks
from grasp_tune.method.schedules.rungs import Stand, outcomes
from grasp_tune.method.tasks import Arm, Segment, average_key, iterate_key, state_key

PARTS = 8  # those of a tiny budget that would be empty are left out
JUMP = 2.0  # a part whose loss is so many times the part before's is undone
BACKOFF = 4.0  # and its step divided by this
GAMMA = 8.0  # exponent of the running average


@dataclass(frozen=True, slots=True)
class Launch:
    """Where the stretch begins, and with which step."""

    arm: Arm
    owner: Arm  # the run whose state it begins from
    age: int = 0  # oracle calls that this state has had; 0: x0
    state: str | None = None  # None: x0
    shrink: float = 0.0  # power of its age with which the step shrinks besides


def jump_above(before: float, start: float) -> float:
    """Return the loss at which a part has made it jump, after a part that ended at `before`.

    A loss that may be negative has no zero to be a multiple of: it then jumps where it loses all
    that was gained since the start.
    """
    if before > 0.0:
        return JUMP * before
    return before + max(-before, start - before)


def final_stretch(
    stand: Stand, launch: Launch, *, demanding: bool = False
) -> Generator[Round, Known, list[Candidate]]:
    """Yield the parts; return the candidates that they leave.

    A `demanding` stretch ends after its first part where that does not get below the start; it
    then leaves no candidate and all that it did not spend.
    """
    total, arm, kept, good = stand.left, launch.arm, launch.owner, launch.state
    begin, end = launch.age, launch.age + total
    rows = [] if good is None else [_row(good, kept, begin, average=False)]
    before, ends, discard = math.inf, None, stand.discard
    for part in range(PARTS):
        first, stop = begin + total * part // PARTS, begin + total * (part + 1) // PARTS
        if stop <= first:
            continue
        last = part == PARTS - 1
        segment = Segment(
            arm,
            first,
            stop,
            keep=(stop,) if last else (),
            averages=(GAMMA,),
            keep_averages=last,
            save=not last,
            anneal=(begin, end),
            shrink=launch.shrink,
            origin=good,
        )
        tasks = train_tasks(f"final{part}", [segment], 0, exact=stand.setting.method.exact)
        known = yield Round(tasks, plan=stand.plan, leader=stand.leader, discard=discard)
        items, discard = outcomes(tasks, known), ()
        stand.left -= sum(item.calls for item in items)
        loss = items[0].loss if items and items[0].finite else math.nan
        if demanding and good is None and not loss < stand.start.value:
            stand.discard = () if last else (state_key(arm.index, stop),)
            return []
        if loss < jump_above(before, stand.start.value):  # any finite loss of the first part
            before = loss
            ends = (arm, stop) if last else None
            if not last:
                if good is not None and good not in [row.key for row in rows]:
                    discard = (good,)  # the start of the stretch stays, it is a candidate
                kept, good = arm, state_key(arm.index, stop)
                stand.leader = good
        else:
            if not last:
                discard = (state_key(arm.index, stop),)
            arm = stand.new_arm(arm, arm.value / BACKOFF)
    stand.discard = discard
    if ends is not None:
        winner, stop = ends
        rows.append(_row(iterate_key(winner.index, stop), winner, stop, average=False))
        rows.append(_row(average_key(winner.index, stop, GAMMA), winner, stop, average=True))
        stand.leader = rows[-2].key
    elif good is not None and good not in [row.key for row in rows]:
        rows.append(_row(good, kept, int(good.split("-")[1]), average=False))
    return rows


def _row(key: str, arm: Arm, call: int, *, average: bool) -> Candidate:
    return Candidate(key, arm.index, arm.base, arm.value, call, average, math.nan, 0, math.nan)
