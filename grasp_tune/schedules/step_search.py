"""A step size searched by short trials first: for whoever can only suggest a step and a budget.

Every trial starts again from x0 with the step and the calls that it is given, and says how good it
got. Nothing has to be known beforehand: the first round spans eight decades with very short trials,
and is moved on where its best step lies at an end. Each further round keeps the best third, adds
steps between them at half the spacing and trains three times as long; what is left of the budget
goes to the winner. Numbers only: whoever runs the trials feeds their values in.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSearchOptions:
    """How the budget of a step search is spent."""

    low: float = 1e-6  # the smallest step of the first round; smaller ones follow where it wins
    high: float = 1e2  # the largest likewise
    per_decade: int = 8  # steps of the finest grid in a decade: neighbours differ by a third
    first_share: float = 1 / 200  # of the budget, for each trial of the first round
    keep: float = 1 / 3  # of a round's steps go on
    longer: int = 3  # times as many calls in the next round
    search_share: float = 0.5  # of the budget at most before the last round
    finalists: int = 1  # steps that share what is left

    def __post_init__(self) -> None:
        if not 0.0 < self.low < self.high < math.inf:
            raise InputError(f"need 0 < low < high < inf, got {self.low=}, {self.high=}")


@dataclass(frozen=True, slots=True)
class StepSearch:
    """The trials of a search with a budget, as a function of how the earlier ones ended.

    budget: T, oracle calls over all trials.
    options: how they are spent.
    """

    budget: int
    options: StepSearchOptions = StepSearchOptions()

    def __post_init__(self) -> None:
        if not isinstance(self.budget, int) or isinstance(self.budget, bool) or self.budget < 20:
            raise InputError(f"budget: got {self.budget!r}, expected a whole number >= 20")

    @property
    def range(self) -> tuple[float, float]:
        """A range that holds every step that may come up: ten decades beyond both ends."""
        return self.options.low * 1e-10, self.options.high * 1e10

    def trials(self, losses: Mapping[int, float | None]) -> tuple[tuple[Cell, ...], bool]:
        """Return all trials known so far, and whether no round follows.

        They are numbered from 1, round after round. The next round is known when all trials of the
        one before have ended.

        losses: how trials ended, by number; None or not finite where one failed for good.
        """
        given, fine = self.options, self.options.per_decade
        low, high = round(math.log10(given.low) * fine), round(math.log10(given.high) * fine)
        marks, space = list(range(low, high + 1, fine)), fine  # exponents of 10, in 1/fine
        calls = max(1, int(self.budget * given.first_share))
        cells: list[Cell] = []
        while True:
            marks = marks[: max(1, (self.budget - _spent(cells)) // calls)]
            first = len(cells) + 1
            cells += [
                Cell(first + at, 10.0 ** (mark / fine), calls) for at, mark in enumerate(marks)
            ]
            if any(cell.index not in losses for cell in cells):
                return tuple(cells), False
            scores = [_score(losses[first + at]) for at in range(len(marks))]
            order = sorted(range(len(marks)), key=lambda at: (scores[at], -marks[at]))
            ranked = [marks[at] for at in order if math.isfinite(scores[at])]
            marks, space, calls = self._next(ranked, marks, space, calls)
            spent = _spent(cells)
            if not marks or spent + calls * len(marks) > given.search_share * self.budget:
                finalists = (ranked or [low])[: given.finalists]
                return self._with_finals(cells, finalists, self.budget - spent), True

    def _next(
        self, ranked: list[int], marks: list[int], space: int, calls: int
    ) -> tuple[list[int], int, int]:
        """Return the steps of the next round, their spacing and their calls."""
        fine, low, high = self.options.per_decade, min(marks), max(marks)
        if space == fine and (not ranked or ranked[0] in (low, high)):
            # The best lies beyond the range: move on, as coarsely and as briefly.
            down = not ranked or ranked[0] == low
            edge, way = (low, -fine) if down else (high, fine)
            moved = [edge + way * at for at in range(0 if ranked else 1, 5)]
            ends = [math.log10(end) * fine for end in self.range]
            return sorted(mark for mark in moved if ends[0] <= mark <= ends[1]), space, calls
        kept = ranked[: max(2, math.ceil(self.options.keep * len(marks)))]
        half = max(1, space // 2)
        found = {mark + shift for mark in kept for shift in (-half, 0, half)}
        return sorted(found), half, calls * self.options.longer

    def _with_finals(self, cells: list[Cell], marks: list[int], left: int) -> tuple[Cell, ...]:
        share = left // max(1, len(marks))
        if share < 1:
            return tuple(cells)
        first, fine = len(cells) + 1, self.options.per_decade
        finals = [Cell(first + at, 10.0 ** (mark / fine), share) for at, mark in enumerate(marks)]
        return (*cells, *finals)


def _spent(cells: list[Cell]) -> int:
    return sum(cell.budget for cell in cells)


def _score(loss: float | None) -> float:
    return math.inf if loss is None or math.isnan(loss) else loss
