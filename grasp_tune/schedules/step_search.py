"""A search for the step size by short trials, for callers that only set a step size and a budget.

Nothing has to be known beforehand. The first round spans eight decades with very short trials, and
is extended if its best step size is at an end. Two further rounds look around the best, each finer
and with trials four times as long. The rest, most of the budget, goes to one last trial. This
module only handles numbers: the caller runs the trials and returns their scores.
"""

import math
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from grasp_tune.core.checkpoint_keys import state_key
from grasp_tune.core.errors import InputError, whole
from grasp_tune.core.tasks import Arm, Segment

MOVE = 4  # decades tried at once beyond an end of the range


class _Mark(NamedTuple):
    """A step size that was tried; sorts by loss, then the larger step size first."""

    loss: float
    less: float  # minus the power of ten of the step size
    run: Segment


T = TypeVar("T")
Scores = Mapping[int, float | None]  # by trial number; None: it failed for good
Rounds = Generator[list[tuple[float, int, _Mark | None]], list[_Mark], T]


@dataclass(frozen=True, slots=True)
class StepSearch:
    """A search over step sizes with a budget; later trials depend on the scores of earlier ones.

    The defaults were measured with benchmarks/bench_optuna_step.py.
    """

    budget: int  # T, oracle calls over all trials
    # Trials continue an earlier one of the same step size, and the last one continues the best:
    # needs checkpoints. Otherwise each begins at x0.
    resume: bool = False
    low: float = 1e-6  # smallest step size of the first round; smaller ones follow if it wins
    high: float = 1e2  # the largest, likewise
    first_share: float = 1 / 400  # of the budget, for each trial of the first round
    longer: int = 4  # times as many calls per trial in the next round
    coarse: tuple[float, ...] = (-0.5, 0.0, 0.5)  # second round: powers of ten around the best
    fine: tuple[float, ...] = (-0.5, -0.25, 0.0, 0.25)  # third round, likewise
    last: float = -0.25  # last trial: long runs want smaller step sizes than short ones
    search_share: float = 0.5  # of the budget, at most, before the last trial

    def __post_init__(self) -> None:
        whole("budget", self.budget, 20)
        if not 0.0 < self.low < self.high < math.inf:
            raise InputError(f"need 0 < low < high < inf, got {self.low=}, {self.high=}")

    @property
    def range(self) -> tuple[float, float]:
        """A range that holds every possible step size: ten decades beyond both ends."""
        return self.low * 1e-10, self.high * 1e10

    def rounds(self) -> Generator[tuple[list[Segment], bool], Scores, None]:
        """Yield (trials of a round, whether it is the last); the caller sends their scores.

        Trials are numbered from 1, across rounds.
        """
        rounds, count, left = self._rounds(), 0, self.budget
        asked = next(rounds)
        while left:
            runs = []
            for power, calls, parent in asked:
                count, calls, start = count + 1, min(calls, left), _length(parent)
                arm, stop, left = Arm.of(count, "own", 10.0**power), start + calls, left - calls
                origin = None if parent is None else state_key(parent.run.arm.index, start)
                more: Any = {"keep": (stop,), "save": self.resume, "origin": origin}
                runs.append(Segment(arm, start, stop, **more))
            scores = yield runs, not left
            losses = [scores.get(run.arm.index) for run in runs]
            known = [math.inf if loss is None or math.isnan(loss) else loss for loss in losses]
            if left:
                powers = [-power for power, _, _ in asked]
                asked = rounds.send(list(map(_Mark, known, powers, runs)))

    def _rounds(self) -> "Rounds[None]":
        """Yield the trials of a round as (power of ten, calls, trial to continue)."""
        calls = max(1, int(self.budget * self.first_share))
        tried = yield from self._first(calls)
        best, second = (sorted(tried) * 2)[:2]
        for around in (self.coarse, self.fine):
            powers = {shift - best.less for shift in around}
            if around is self.coarse and math.isfinite(second.loss):
                apart = abs(second.less - best.less) > 1.0  # two valleys
                powers |= {shift - second.less for shift in (around if apart else (0.0,))}
            calls = calls * self.longer
            room = self.search_share * self.budget - _spent(tried)
            if math.isinf(best.loss) or calls * len(powers) > room:
                break
            # The longest trial of a step size comes last.
            known = {-m.less: m for m in tried if self.resume and math.isfinite(m.loss)}
            parents = [(power, known.get(power)) for power in sorted(powers)]
            ended = yield [(power, calls - _length(parent), parent) for power, parent in parents]
            tried += ended
            best = min(ended)
        diverged = math.isinf(best.loss)
        power = -max(mark.less for mark in tried) if diverged else self.last - best.less
        yield [(power, self.budget, best if self.resume and not diverged else None)]

    def _first(self, calls: int) -> "Rounds[list[_Mark]]":
        """Yield a trial per decade; extend the range while the best is at an end; return all."""
        low, high = (round(math.log10(end)) for end in (self.low, self.high))
        powers: Iterable[int] = range(low, high + 1)
        ends = [math.log10(end) for end in self.range]
        tried: list[_Mark] = []
        while True:
            tried += yield [(float(power), calls, None) for power in powers]
            tried = _without_flat_top(tried)
            best, low, high = min(tried), min(low, *powers), max(high, *powers)
            if math.isinf(best.loss) or -best.less == low:
                powers = range(low - MOVE, low)
            elif -best.less == high:
                powers = range(high + 1, high + MOVE + 1)
            else:
                return tried
            powers = [power for power in powers if ends[0] < power < ends[1]]
            if not powers or _spent(tried) + calls * len(powers) > self.budget / 3:
                return tried


def _without_flat_top(marks: list[_Mark]) -> list[_Mark]:
    """Return the marks; the largest step sizes count as failed if their losses are equal.

    A model that is dead or NaN has the same accuracy with any step size.
    """
    top = min(marks, key=lambda mark: mark.less)
    other = [mark.less for mark in marks if mark.loss != top.loss]
    flat = [mark for mark in marks if mark.less < min(other, default=-math.inf)]
    return [m._replace(loss=math.inf) if len(flat) > 1 and m in flat else m for m in marks]


def _length(mark: _Mark | None) -> int:
    """Return a trial's oracle calls since x0."""
    return 0 if mark is None else mark.run.stop


def _spent(marks: list[_Mark]) -> int:
    return sum(mark.run.calls for mark in marks)
