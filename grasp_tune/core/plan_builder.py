"""From what the formulas give for a budget to a plan, or to the smallest budget that reaches."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from grasp_tune.core import bounds
from grasp_tune.core.errors import BudgetTooSmall, PlanError
from grasp_tune.core.plan import Cell, Ensemble, Plan, Quantity, Recipe, ScoreKind


@dataclass(frozen=True, slots=True)
class Layout:
    """What the formulas give for one budget, before anyone asks whether it reaches."""

    range: tuple[float, float]
    count: int  # N
    first: int  # oracle calls of cell 1
    power: Literal[0, 1, 2]  # cell i has first // i**power
    gradients: int | None  # sampled at x0; None where the method samples none
    values: int | None
    candidates: int = 1  # per cell
    samples: int | None = None  # per candidate; None where nothing is re-sampled
    least: int = 1  # no budget below this can work for so many cells

    def lacks(self, budget: int, step: int) -> str | None:
        """Return what `budget` does not reach, or None: `step` calls make one iteration."""
        if missing := self.lacks_probe(budget):
            return missing
        if self.samples == 0:
            return f"one sample for each of {self.count * self.candidates} candidates"
        if self.first < step:
            calls = "1 oracle call" if step == 1 else f"{step} oracle calls"
            return f"one iteration ({calls}) of a cell, with {self.count} cells in the grid"
        return None

    def lacks_probe(self, budget: int) -> str | None:
        """Return what `budget` does not reach at x0, or None."""
        if self.gradients == 0:
            return "one gradient at x0"
        # A share is rounded up to one sample of each kind, which may be more than there is.
        if self.values == 0 or (self.gradients or 0) + (self.values or 0) > budget:
            return "one value at x0"
        return None


@dataclass(frozen=True, slots=True)
class Frame:
    """What a plan says besides the formulas' numbers."""

    recipe: Recipe
    score: ScoreKind
    quantity: Quantity
    ensemble: Ensemble
    step: int  # oracle calls of one iteration
    grad_norm: float | None
    value: float | None


def settle(frame: Frame, layout_of: Callable[[Frame, int], Layout], budget: int) -> Plan:
    """Return the plan that the formulas give for `budget`, or raise BudgetTooSmall."""
    stationary = frame.grad_norm == 0.0

    def lacks(layout: Layout, calls: int) -> str | None:
        # A stationary start trains nothing and chooses nothing: only the probe must reach.
        return layout.lacks_probe(calls) if stationary else layout.lacks(calls, frame.step)

    layout = layout_of(frame, budget)
    if missing := lacks(layout, budget):
        smallest = budget
        # N never falls as T grows, so no budget below `least` works: this is the least fixed point.
        while lacks(trial := layout_of(frame, smallest), smallest):
            smallest = max(smallest + 1, 1 if stationary else trial.least)
        raise BudgetTooSmall(
            f"budget={budget} is too small for {frame.recipe.name}: it does not reach {missing}; "
            f"the smallest budget that works for these inputs is {smallest}",
            smallest,
        )
    cells, skipped = ([], []) if stationary else _cells(layout, frame.step)
    return Plan(
        method=frame.recipe,
        budget=budget,
        range=layout.range,
        cells=tuple(cells),
        skipped=tuple(skipped),
        probe_gradients=layout.gradients or 0,
        probe_values=layout.values or 0,
        candidates_per_cell=layout.candidates,
        samples_per_candidate=0 if stationary else layout.samples or 0,
        score=frame.score,
        quantity=frame.quantity,
        ensemble=frame.ensemble,
        stationary=stationary,
        unrepresentable=0 if stationary else layout.count - len(cells) - len(skipped),
        grad_norm=frame.grad_norm,
        value=frame.value,
    )


def training_calls(budget: int, spent: int, probe: float | None) -> tuple[int, int]:
    """Return (calls, parts): all cells together have calls/parts, T/2 in the paper.

    With a probe of another size, what it saves of T/4 (or overspends) goes to training:
    3T/4 - M in place of T/2. The ensemble keeps its T/4.
    """
    return (budget, 2) if probe is None else (max(0, 3 * budget - 4 * spent), 4)


def check_range(quantity: str, low: float, high: float) -> tuple[float, float]:
    """Return (low, high) where every grid point can be an ordinary double; never low above high."""
    if not (sys.float_info.min <= low and high <= sys.float_info.max / 2.0):
        raise PlanError(
            f"the {quantity} would range from {low:.3g} to {high:.3g}, beyond what a double holds; "
            "rescale the objective, or choose inputs nearer to 1"
        )
    return min(low, high), high


def _cells(layout: Layout, step: int) -> tuple[list[Cell], list[Cell]]:
    """Return the cells that can iterate and those that cannot: budgets fall along the grid."""
    values = bounds.geometric_values(layout.range[0], layout.count)
    cells = [
        Cell(index, value, layout.first // index**layout.power)
        for index, value in enumerate(values, start=1)
    ]
    running = next((at for at, cell in enumerate(cells) if cell.budget < step), len(cells))
    return cells[:running], cells[running:]
