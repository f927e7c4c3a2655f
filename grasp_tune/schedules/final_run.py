"""The final run of `promote`: one run gets the rest of the budget, its step falling to zero.

It is cut into parts, so that it can go on after a fault, and so that its step can follow what it
shows (`step_control`): a part may be undone, and the run then goes on from the state before it,
with another step, on minibatches of its own.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from grasp_tune.core.checkpoint_keys import Key, average_key, iterate_key, state_key
from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import Tally, tallied
from grasp_tune.core.rounds import Known, Round
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome, TrainTask
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.rungs import outcomes
from grasp_tune.schedules.step_control import StepControl

ENDED_EARLY = "the final run ended early: it did not get better on fresh samples any more"
EARLY = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the first part: looks at a run that memorizes at once


@dataclass(frozen=True, slots=True)
class FinalStart:
    """Where the final run begins, and with which step."""

    arm: Arm
    owner: Arm  # the run whose state it begins from
    state: Key | None = None  # None: x0
    shrink: float = 0.0  # power of its age with which the step shrinks besides
    adapts: bool = False  # whether the step follows what the run shows
    loss: float = math.nan  # of the state, as far as it is known

    @property
    def age(self) -> int:
        """Oracle calls that the state has had."""
        return 0 if self.state is None else self.state.call


def final_run(
    state: PromoteState, start: FinalStart, *, must_improve: bool = False
) -> Generator[Round, Known, list[Candidate]]:
    """Yield the parts; return the candidates that they leave.

    One that `must_improve` ends after its first part where that does not get below the start; it
    then leaves no candidate and all that it did not spend.
    """
    options, exact = state.options, state.spec.method.exact
    looks = _average_samples(state) if start.adapts else 0
    stopping = _Stopping(state)
    total = max(0, state.left - looks - (options.parts + len(EARLY)) * stopping.samples)
    kept, good = start.owner, start.state
    begin, end = start.age, start.age + total
    rows = [] if good is None or must_improve else [Candidate.of(good, kept, start.loss)]
    window = math.nan  # mean loss of the last minibatches of the last part that stands
    control, ends, discard = StepControl(state, start.arm, start.adapts), None, state.discard
    for part in range(options.parts):
        first = begin + total * part // options.parts
        stop = begin + total * (part + 1) // options.parts
        if stop <= first:
            continue
        arm, last, looked = control.arm, part == options.parts - 1, looks > 0 and part == 0
        points = () if last else stopping.points(first, stop, early=part == 0)
        segment = Segment(
            arm,
            first,
            stop,
            keep=points or ((stop,) if last else ()),
            averages=(options.average_power,),
            keep_averages=last or looked,
            save=not last,
            anneal=(begin, end) if options.anneal else None,
            shrink=start.shrink,
            origin=good,
            lanes=control.lanes,
        )
        tasks = (TrainTask(f"final{part}-run{arm.index:03d}", (segment,), exact=exact),)
        known = yield state.round(tasks, discard)
        items, discard = outcomes(tasks, known), ()
        state.left -= sum(item.calls for item in items)
        loss = items[0].loss if items and items[0].finite else math.nan
        if must_improve and good == start.state:
            bound = state.start.value if stop - first >= options.telling_calls else math.inf
            if not loss < bound:
                unseen = [iterate_key(arm.index, call) for call in points]
                ended = () if last else (state_key(arm.index, stop), *unseen)
                state.discard = ended if good is None else (*ended, good)
                return []
        if not control.accepts(loss, _median(items, options.curve_points)):
            if not last:
                unseen = [iterate_key(arm.index, call) for call in points]
                discard = (state_key(arm.index, stop), *unseen)
            control.go_back()
            continue
        window = items[0].window_loss
        ends = (arm, stop) if last else None
        if not last:
            if good is not None and (must_improve or good != start.state):
                discard = (good,)  # else the start of the final run stays: it is a candidate
            kept, good = arm, state_key(arm.index, stop)
            state.leader = good
        if looked:
            average = average_key(arm.index, stop, options.average_power)
            items_there = yield from state.fresh_losses("final0-score", [average], looks)
            control.average = tallied(items_there).get(str(average), Tally()).mean
            discard = (*discard, average)
        if points:
            yield from stopping.look(f"final{part}-look", arm, points)
            if stopping.over:
                state.notes.append(ENDED_EARLY)
                state.left, state.discard = 0, discard
                break
        control.go_on(part, loss)
    rows += stopping.rows()
    if ends is not None:
        winner, stop = ends
        state.leader = iterate_key(winner.index, stop)
        rows.append(Candidate.of(state.leader, winner, window))
        average = average_key(winner.index, stop, options.average_power)
        rows.append(Candidate.of(average, winner, math.nan))
    elif good is not None and good != start.state:
        rows.append(Candidate.of(good, kept, window))
    return rows


class _Stopping:
    """The looks at the ends of parts, and whether the run has got worse for too long."""

    def __init__(self, state: PromoteState) -> None:
        options = state.options
        wanted = options.patience and state.samples_freely
        self.samples = int(options.look_share * state.spec.budget) if wanted else 0
        self._state = state
        self._looks: list[Candidate] = []

    def points(self, first: int, stop: int, *, early: bool) -> tuple[int, ...]:
        """Return the calls of a part at which the run is looked at."""
        if not self.samples:
            return ()
        inner = [first + int(share * (stop - first)) for share in EARLY] if early else []
        return tuple(sorted({call for call in inner if first < call < stop} | {stop}))

    def look(self, name: str, arm: Arm, calls: Sequence[int]) -> Generator[Round, Known, None]:
        """Yield fresh samples at these points of a part."""
        keys = [iterate_key(arm.index, call) for call in calls]
        found = yield from self._state.fresh_losses(name, keys, self.samples)
        tallies = tallied(found)
        for key in keys:
            tally = tallies.get(str(key), Tally())
            row = Candidate.of(key, arm, tally.mean)
            self._looks.append(replace(row, samples=tally.count, square=tally.square))

    def _best(self) -> int:
        scores = [row.score if math.isfinite(row.score) else math.inf for row in self._looks]
        return scores.index(min(scores))

    @property
    def over(self) -> bool:
        """Whether none of the last looks got below the best before them."""
        return len(self._looks) - 1 - self._best() >= self._state.options.patience

    def rows(self) -> list[Candidate]:
        """Return the best point as a candidate; the others for the record."""
        best = self._best() if self._looks else 0
        return [
            row if at == best else replace(row, note="not the best of the looks")
            for at, row in enumerate(self._looks)
        ]


def _median(items: Sequence[SegmentOutcome], least: int) -> float | None:
    """Return the median of the later half of a part's curve, None where it has too few points."""
    losses = [point.loss for item in items for point in item.curve]
    late = losses[len(losses) // 2 :]
    return median(late) if len(late) >= least else None


def _average_samples(state: PromoteState) -> int:
    """Return how many fresh samples tell the loss at an average; 0 where too few would."""
    count = int(state.options.average_share * state.spec.budget)
    return count if count >= state.options.blocks and state.samples_freely else 0
