"""From what the formulas give for a budget to a plan, or to the smallest budget that reaches."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from grasp_tune.core import bounds
from grasp_tune.core.errors import BudgetTooSmall, PlanError
from grasp_tune.core.plan import Cell, Plan


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

    def cell(self, index: int, value: float) -> Cell:
        """Return one cell of the grid."""
        return Cell(index, value, self.first // index**self.power)

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


def settle(
    make: "partial[Plan]",
    layout_of: Callable[[int], Layout],
    budget: int,
    step: int,
    *,
    stationary: bool,
) -> Plan:
    """Return the plan that the formulas give for `budget`, or raise BudgetTooSmall.

    make: a plan of which only the formulas' numbers are missing.
    step: oracle calls of one iteration.
    stationary: the start trains nothing and chooses nothing, so only the probe must reach.
    """

    def lacks(layout: Layout, calls: int) -> str | None:
        return layout.lacks_probe(calls) if stationary else layout.lacks(calls, step)

    layout = layout_of(budget)
    if missing := lacks(layout, budget):
        smallest = budget
        # N never falls as T grows, so no budget below `least` works: this is the least fixed point.
        while lacks(trial := layout_of(smallest), smallest):
            smallest = max(smallest + 1, 1 if stationary else trial.least)
        name = make.keywords["method"].name
        raise BudgetTooSmall(
            f"budget={budget} is too small for {name}: it does not reach {missing}; "
            f"the smallest budget that works for these inputs is {smallest}",
            smallest,
        )
    values = bounds.geometric_values(layout.range[0], layout.count)
    cells = () if stationary else tuple(map(layout.cell, range(1, len(values) + 1), values))
    # Budgets fall along the grid: from some cell on, none can iterate.
    running = next((at for at, cell in enumerate(cells) if cell.budget < step), len(cells))
    return make(
        budget=budget,
        range=layout.range,
        cells=cells[:running],
        skipped=cells[running:],
        probe_gradients=layout.gradients or 0,
        probe_values=layout.values or 0,
        candidates_per_cell=layout.candidates,
        samples_per_candidate=0 if stationary else layout.samples or 0,
        stationary=stationary,
        unrepresentable=0 if stationary else layout.count - len(cells),
    )


def check_range(quantity: str, low: float, high: float) -> tuple[float, float]:
    """Return (low, high) where every grid point can be an ordinary double; never low above high."""
    if not (sys.float_info.min <= low and high <= sys.float_info.max / 2.0):
        raise PlanError(
            f"the {quantity} would range from {low:.3g} to {high:.3g}, beyond what a double holds; "
            "rescale the objective, or choose inputs nearer to 1"
        )
    return min(low, high), high
