"""The final run of `promote`: one run gets the rest of the budget; its step size decays to zero.

It is cut into parts, so that it can resume after a fault and adapt its step size. A part that makes
the loss jump is undone, and the run goes on from the state before it with a smaller step size.
Larger step sizes are tried if nearly all of the loss is gone and it still falls, and while the run
is still on the plateau that it began on. A run that learns nothing at first is compared with the
next smaller step size of the list.

If there are enough calls, a step averages several minibatches (its lanes). This is as good, with a
fraction of the depth. With L lanes the step size is multiplied by the square root of L.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from statistics import median

from grasp_tune.core.checkpoint_keys import (
    START,
    Key,
    average_key,
    iterate_key,
    place_of,
    state_key,
)
from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import Tally
from grasp_tune.core.spec import Known, Round
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome
from grasp_tune.schedules.promote_state import PromoteState, finite_loss
from grasp_tune.schedules.step_list import FinalStart

ENDED_EARLY = "the final run ended early: it did not get better any more"
EARLY = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the first part: evaluations of a run that overfits early


def final_run(state: PromoteState, start: FinalStart) -> Generator[Round, Known, list[Candidate]]:
    """Yield the parts; return their candidates."""
    run = _FinalRun(state, start)
    ends = run.ends(state.options.parts)
    while ends:
        number = state.options.parts - len(ends)
        ended = yield from run.part(number, ends.pop(0), last=not ends)
        if ended:
            break
        if number and ends and (yield from run.second_chance()):
            ends = run.ends(max(1, len(ends) - 1))
    return run.candidates()


class _FinalRun:
    """The state of the final run, and how it goes on."""

    def __init__(self, state: PromoteState, start: FinalStart) -> None:
        self._state, self._start = state, start
        self._lanes = 1 if state.spec.method.exact else state.options.lanes(state.spec.budget)
        self._stopping, self._step = _Stopping(state), _StepSize(state, start)
        looks = (state.options.parts + len(EARLY)) * self._stopping.samples
        self._begin = self._call = place_of(start.state or START)[1]
        self._end = self._begin + max(0, state.left - looks)
        self._good, self._owner = start.state, start.owner  # last accepted state, its run
        self._window = math.nan  # mean loss of that run's last minibatches
        self._winner: Arm | None = None  # set once the last part is accepted
        self._losses: list[float] = []  # of the parts so far
        # The share of a layer's units that are silent (get no gradient) in the last accepted state,
        # and whether the last part silenced many more.
        self._silent, self._died = start.silent, False
        self._tells = True  # undo for silent units once only: smaller steps may have as many
        self._length, self._other = 0, start.other  # of the first part; run that may take over

    def ends(self, parts: int) -> list[int]:
        """Return the calls at which the next `parts` parts end."""
        left = self._end - self._call
        return [self._call + left * part // parts for part in range(1, parts + 1)]

    def part(self, number: int, stop: int, *, last: bool) -> Generator[Round, Known, bool]:
        """Yield the rounds of one part; return whether the run ends with it."""
        state, options, first, arm = self._state, self._state.options, self._call, self._step.arm
        if not last:
            stop = first + (stop - first) // self._lanes * self._lanes
        if stop <= first:
            return False
        points = () if last else self._stopping.points(first, stop, early=number == 0)
        # If no part from x0 was accepted, the next one begins there, too.
        origin = self._good or (START if first else None)
        segment = self._segment(arm, first, stop, origin, points, last=last)
        item = yield from self._train(f"final{number}", segment)
        self._length = self._length or stop - first
        self._call, loss = stop, _usual_loss(item, options.curve_points)
        self._losses.append(loss)
        self._died = self._tells and self._dies(item, loss)
        self._tells = self._tells and not self._died
        if self._died or not self._step.accepts(loss):
            if not last:
                unseen = [iterate_key(arm.index, at) for at in points]
                state.discard = (state_key(arm.index, stop), *unseen)
            self._step.go_back()
            return False
        assert item is not None
        self._window, self._winner = item.window_loss, arm if last else None
        self._silent = item.silent
        if not last:
            self._stand(arm, stop)
        if points:
            yield from self._stopping.look(f"final{number}-look", arm, points)
            state.leader = self._stopping.best or state.leader
            if self._stopping.over:
                state.notes.append(ENDED_EARLY)
                state.left = 0
                return True
        self._step.go_on(loss, bold=0 < number <= options.parts // 2)
        return False

    def _dies(self, item: SegmentOutcome | None, loss: float) -> bool:
        """Return whether a part silenced many units while the loss is still high."""
        options, begun = self._state.options, min(self._state.start.value, self._start.loss)
        least = max(options.dying, self._silent + options.dying / 2)
        low = loss <= options.fitted * begun
        return item is not None and item.silent > least and not low and self._step.learned

    def second_chance(self) -> Generator[Round, Known, bool]:
        """Yield a part with the next smaller step size and return True if the run stalls or dies.

        That part replaces a run that dies, because units die slowly and the state before is no
        good either. It replaces a run that stalls if its loss is about as low as after the run's
        first part. On a plateau, larger step sizes are tried first, and if they do not help, it
        must have a lower loss than the run itself.
        """
        state, options, other, step = self._state, self._state.options, self._other, self._step
        if other is None or step.on_trial:
            return False
        self._other, origin, length = None, state_key(other.index, self._begin), self._length
        second = len(self._losses) == 2
        stalls = step.stalls(*self._losses) if second else step.refused and not step.learned
        stalls = stalls or self._died
        if length == 0 or not stalls:
            state.discard = (*state.discard, origin)
            return False
        stop = self._begin + length
        segment = self._segment(other, self._begin, stop, origin)
        item = yield from self._train("other", segment)
        loss = _usual_loss(item, options.curve_points)
        self._end -= length
        lives = self._died and math.isfinite(loss) and not self._dies(item, loss)
        bound = options.alike * self._losses[0] if second else step.before
        if item is not None and (lives or loss < bound):
            self._window, self._end = item.window_loss, self._end - (self._call - stop)
            self._call = stop
            self._stand(other, stop)
            self._step.switch(other, loss)
            state.discard = (*state.discard, origin)
        else:
            state.discard = (state_key(other.index, stop), origin)
        return True

    def _segment(
        self,
        arm: Arm,
        first: int,
        stop: int,
        origin: Key | None,
        points: tuple[int, ...] = (),
        *,
        last: bool = False,
    ) -> Segment:
        options = self._state.options
        return Segment(
            arm,
            first,
            stop,
            keep=points or ((stop,) if last else ()),
            averages=(options.average_power,),
            keep_averages=last,
            save=not last,
            anneal=(self._begin, self._end) if options.anneal else None,
            warmup=options.warmup,
            origin=origin,
            lanes=self._lanes,
        )

    def _train(self, name: str, segment: Segment) -> Generator[Round, Known, SegmentOutcome | None]:
        found, _ = yield from self._state.train(name, [segment])
        return found.get(segment.arm.index)

    def _stand(self, arm: Arm, stop: int) -> None:
        """Accept the end of a part; the start of the run is kept as a candidate."""
        if self._good is not None and self._good != self._start.state:
            self._state.discard = (self._good,)
        self._owner, self._good = arm, state_key(arm.index, stop)
        self._state.leader = self._stopping.best or self._good

    def candidates(self) -> list[Candidate]:
        """Return the run's candidates for the final choice."""
        start, rows = self._start, list[Candidate]()
        if start.state is not None:
            rows.append(Candidate.of(start.state, start.owner, start.loss))
        rows += self._stopping.rows()
        if self._winner is not None:
            winner, power = self._winner, self._state.options.average_power
            self._state.leader = iterate_key(winner.index, self._end)
            rows.append(Candidate.of(self._state.leader, winner, self._window))
            rows.append(Candidate.of(average_key(winner.index, self._end, power), winner, math.nan))
        elif self._good is not None and self._good != start.state:
            rows.append(Candidate.of(self._good, self._owner, self._window))
        return rows


class _StepSize:
    """The step size of the next part, given the losses of the parts so far."""

    def __init__(self, state: PromoteState, start: FinalStart) -> None:
        self._state, self.arm, self.before = state, start.arm, start.loss
        self._growth = state.options.growth
        self._bound: float | None = None  # while a larger step is on trial: the loss to beat

    @property
    def on_trial(self) -> bool:
        return self._bound is not None

    @property
    def refused(self) -> bool:
        """Whether a larger step size was tried and was no better."""
        return self._growth < self._state.options.growth

    @property
    def learned(self) -> bool:
        """Whether the last accepted part has left the plateau that a run may begin on."""
        start = self._state.start.value
        return not start > 0.0 or self.before <= self._state.options.plateau * start

    def accepts(self, loss: float) -> bool:
        """Return whether to accept a part with this loss; any finite one if none is known yet."""
        before, start, options = self.before, self._state.start.value, self._state.options
        if self._bound is not None:
            return loss < self._bound
        # Multiples of a negative loss mean nothing: it jumps if all that was gained since the start
        # is lost.
        bound = options.jump * before if before > 0.0 else max(0.0, start)
        return math.isfinite(loss) and loss < bound

    def stalls(self, before: float, loss: float) -> bool:
        """Return whether the loss is still high and the last part hardly lowered it."""
        options, start = self._state.options, self._state.start.value
        return loss > options.stalled * before and loss > options.learned * start > 0.0

    def switch(self, arm: Arm, loss: float) -> None:
        """Continue with another run, which has this loss."""
        self.arm, self.before, self._bound = arm, loss, None

    def go_on(self, loss: float, *, bold: bool) -> None:
        """Choose the step size after an accepted part; `bold`: try larger ones on a plateau."""
        options, before = self._state.options, self.before
        self.before, self._bound = loss, None
        bold = bold and not self.refused
        falls, left = loss < options.falling * before, options.solved * self._state.start.value
        if falls and 0.0 < loss < left and self._growth > options.least_growth:
            self._bound = loss
        elif bold and self.stalls(before, loss) and not (before <= 0.0 or self.learned):
            self._bound = max(loss, before)  # no worse: the larger one leaves the plateau sooner
        if self._bound is not None:
            self._change(self._growth)

    def go_back(self) -> None:
        """Choose the step size after a part that was undone."""
        if self._bound is None:
            self._change(1.0 / self._state.options.backoff)
            return
        self._change(1.0 / self._growth)
        self._growth, self._bound = math.sqrt(self._growth), None

    def _change(self, factor: float) -> None:
        self.arm = self._state.new_arm(self.arm, self.arm.value * factor)


class _Stopping:
    """Early stopping: looks at the run, all on the same samples, and when to end it."""

    def __init__(self, state: PromoteState) -> None:
        options = state.options
        samples = int(options.look_share * state.spec.budget)
        usual = 3 if state.start.held_out and samples >= options.least_look else 0
        self._patience = usual if options.patience is None else options.patience
        self.samples = samples if self._patience and state.samples_freely else 0
        self._state, self._first = state, state.sampled
        self._looks: list[Candidate] = []
        self._parts = list[int]()  # number of looks by the end of each part

    def points(self, first: int, stop: int, *, early: bool) -> tuple[int, ...]:
        """Return the calls of a part at which to look at the run."""
        if not self.samples:
            return ()
        inner = [first + int(share * (stop - first)) for share in EARLY] if early else []
        return tuple(sorted({call for call in inner if first < call < stop} | {stop}))

    def look(self, name: str, arm: Arm, calls: Sequence[int]) -> Generator[Round, Known, None]:
        """Yield fresh samples at these points of a part, and record their losses."""
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
        """The best point looked at so far."""
        return self._looks[self._best()].key if self._looks else None

    @property
    def over(self) -> bool:
        """Whether too many parts in a row have brought no new best."""
        best = self._best() + 1
        return sum(count > best for count in self._parts) >= self._patience

    def rows(self) -> list[Candidate]:
        """Return all points looked at; only the best is still a candidate."""
        best = self._best() if self._looks else 0
        return [
            row if at == best else replace(row, note="not the best of its run")
            for at, row in enumerate(self._looks)
        ]


def _usual_loss(item: SegmentOutcome | None, least: int) -> float:
    """Return the mean loss at the end of a part, or the median of its later half if that is lower.

    So a few high minibatches are not taken for a jump. Infinite if the part failed.
    """
    loss = finite_loss(item)
    late = [point.loss for point in item.curve] if item is not None else []
    late = late[len(late) // 2 :]
    return min(loss, median(late)) if math.isfinite(loss) and len(late) >= least else loss
