"""The final run of `promote`: one run gets the rest of the budget, its step falling to zero.

It is cut into parts, so that it can go on after a fault, and so that its step can follow what it
shows: a part that makes the loss jump is undone, and the run goes on from the state before it with
a smaller step; where nearly all of the loss is gone and it still falls, larger steps are tried.

Where there are calls enough, a step averages several minibatches, its lanes: as good, with a
fraction of the depth. A step of L lanes is the root of L times as large.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from statistics import median

from grasp_tune.core.checkpoint_keys import Key, average_key, iterate_key, state_key
from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import Tally
from grasp_tune.core.rounds import Known, Round
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome
from grasp_tune.schedules.promote_state import PromoteState, finite_loss
from grasp_tune.schedules.step_list import FinalStart

ENDED_EARLY = "the final run ended early: it did not get better any more"
EARLY = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the first part: looks at a run that memorizes at once


def final_run(state: PromoteState, start: FinalStart) -> Generator[Round, Known, list[Candidate]]:
    """Yield the parts; return the candidates that they leave."""
    options, stopping, step = state.options, _Stopping(state), _StepSize(state, start)
    total = max(0, state.left - (options.parts + len(EARLY)) * stopping.samples)
    begin = start.state.call if start.state is not None else 0
    end, call, lanes = begin + total, begin, _lanes(state)
    rows = [] if start.state is None else [Candidate.of(start.state, start.owner, start.loss)]
    good, kept, ends = start.state, start.owner, None
    window = math.nan  # mean loss of the last minibatches of the last part that stands
    for part in range(options.parts):
        first, last = call, part == options.parts - 1
        length = (begin + total * (part + 1) // options.parts - first) // lanes * lanes
        stop = end if last else first + length
        if stop <= first:
            continue
        call, arm = stop, step.arm
        points = () if last else stopping.points(first, stop, early=part == 0)
        segment = Segment(
            arm,
            first,
            stop,
            keep=points or ((stop,) if last else ()),
            averages=(options.average_power,),
            keep_averages=last,
            save=not last,
            anneal=(begin, end) if options.anneal else None,
            warmup=options.warmup,
            origin=good,
            lanes=lanes,
        )
        found, _ = yield from state.train(f"final{part}", [segment])
        item = found.get(arm.index)
        loss = finite_loss(item)
        if not step.accepts(loss, _median(item, options.curve_points)):
            if not last:
                unseen = [iterate_key(arm.index, at) for at in points]
                state.discard = (state_key(arm.index, stop), *unseen)
            step.go_back()
            continue
        assert item is not None
        window, ends = item.window_loss, (arm, stop) if last else None
        if not last:
            if good is not None and good != start.state:  # the first stays: it is a candidate
                state.discard = (good,)
            kept, good = arm, state_key(arm.index, stop)
            state.leader = stopping.best or good
        if points:
            yield from stopping.look(f"final{part}-look", arm, points)
            state.leader = stopping.best or state.leader
            if stopping.over:
                state.notes.append(ENDED_EARLY)
                state.left = 0
                break
        step.go_on(loss)
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


def _lanes(state: PromoteState) -> int:
    options, budget = state.options, state.spec.budget
    if budget < options.lanes_budget or state.spec.method.exact:
        return 1
    most = min(options.most_lanes, max(1, budget // options.lane_calls))
    return 1 << most.bit_length() - 1


class _StepSize:
    """The step of the part that comes next, by what the parts so far have shown."""

    def __init__(self, state: PromoteState, start: FinalStart) -> None:
        self._state, self.arm, self._before = state, start.arm, start.loss
        self._growth, self._grown = state.options.growth, False

    def accepts(self, loss: float, middle: float | None) -> bool:
        """Return whether a part that ended at this loss stands; any finite first one does.

        middle: the loss of most of its minibatches; a mean that a few of them have raised is no
            jump.
        """
        if self._grown:
            return loss < self._before
        before, start = self._before, self._state.start.value
        low = loss if middle is None else min(loss, middle)
        # A loss that may be negative has no zero to be a multiple of: it then jumps where it loses
        # all that was gained since the start.
        rise = (self._state.options.jump - 1.0) * before
        return math.isfinite(loss) and low < before + (
            rise if before > 0.0 else max(-before, start - before)
        )

    def go_on(self, loss: float) -> None:
        """Choose the next step after a part that stands."""
        options = self._state.options
        falls, self._before, self._grown = loss < options.falling * self._before, loss, False
        left = 0.0 < loss < options.solved * self._state.start.value
        if falls and left and self._growth > options.least_growth:
            self._change(self._growth)
            self._grown = True

    def go_back(self) -> None:
        """Choose the next step after a part that was undone."""
        if not self._grown:
            self._change(1.0 / self._state.options.backoff)
            return
        self._change(1.0 / self._growth)
        self._growth, self._grown = math.sqrt(self._growth), False

    def _change(self, factor: float) -> None:
        self.arm = self._state.new_arm(self.arm, self.arm.value * factor)


class _Stopping:
    """The looks at a run, all on the same samples, and whether it has got worse for too long."""

    def __init__(self, state: PromoteState) -> None:
        options = state.options
        samples = int(options.look_share * state.spec.budget)
        usual = 3 if state.start.held_out and samples >= options.least_look else 0
        self._patience = usual if options.patience is None else options.patience
        self.samples = samples if self._patience and state.samples_freely else 0
        self._state, self._first = state, state.sampled
        self._looks: list[Candidate] = []
        self._parts = list[int]()  # how many looks there were at the end of each part

    def points(self, first: int, stop: int, *, early: bool) -> tuple[int, ...]:
        """Return the calls of a part at which the run is looked at."""
        if not self.samples:
            return ()
        inner = [first + int(share * (stop - first)) for share in EARLY] if early else []
        return tuple(sorted({call for call in inner if first < call < stop} | {stop}))

    def look(self, name: str, arm: Arm, calls: Sequence[int]) -> Generator[Round, Known, None]:
        """Yield fresh samples at these points of a part."""
        keys: list[Key] = [iterate_key(arm.index, call) for call in calls]
        tallies = yield from self._state.fresh_losses(name, keys, self.samples, self._first)
        for key in keys:
            tally = tallies.get(key, Tally())
            row = Candidate.of(key, arm, tally.mean)
            self._looks.append(replace(row, samples=tally.count, square=tally.square))
        self._parts.append(len(self._looks))

    def _best(self) -> int:
        scores = [row.score if math.isfinite(row.score) else math.inf for row in self._looks]
        return scores.index(min(scores))

    @property
    def best(self) -> Key | None:
        """The best point that was looked at so far."""
        return Key.parse(self._looks[self._best()].key) if self._looks else None

    @property
    def over(self) -> bool:
        """Whether the last parts ended above the best look before them."""
        best = self._best() + 1
        return sum(count > best for count in self._parts) >= self._patience

    def rows(self) -> list[Candidate]:
        """Return the best point as a candidate; the others for the record."""
        best = self._best() if self._looks else 0
        return [
            row if at == best else replace(row, note="not the best of the looks")
            for at, row in enumerate(self._looks)
        ]


def _median(item: SegmentOutcome | None, least: int) -> float | None:
    """Return the median of the later half of a part's curve, None where it has too few points."""
    losses = [point.loss for point in item.curve] if item is not None else []
    late = losses[len(losses) // 2 :]
    return median(late) if len(late) >= least else None
