"""The plan of a sweep: whole numbers of oracle calls and the grid's values, from `methods`."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from grasp_tune.core.errors import InputError, PlanError
from grasp_tune.core.records import Json, decode, encode
from grasp_tune.core.tasks import Score

Quantity = Literal["step size", "radius"]
Ensemble = Literal["resample", "window", "exact"]

_SHOWN = 12  # rows of a long grid that the table prints


@dataclass(frozen=True, slots=True)
class Cell:
    r"""One point of the geometric grid, with its own budget."""

    index: int  # i, from 1
    value: float  # the step size eta_i, or the radius D_i
    budget: int  # T_i, oracle calls

    def __post_init__(self) -> None:
        if self.index < 1 or not 0.0 < self.value < math.inf or self.budget < 0:
            raise PlanError(f"{self} needs index >= 1, a positive finite value and budget >= 0")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The method that a plan came from: its name and inputs, None where it has no such input."""

    name: str
    L_eps: float | None = None
    F_eps: float | None = None
    d_eps: float | None = None
    delta: float | None = None
    probe: float | None = None
    option: str | None = None
    value_floor: float | None = None
    base: str | None = None  # the name of the base optimizer, None for the schedule's default


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Everything that will run, fixed before anything runs; `str(plan)` is a table of it."""

    method: Recipe  # the method and its inputs
    budget: int  # T, oracle calls allowed in all
    range: tuple[float, float]  # (low, high) of the searched quantity
    cells: tuple[Cell, ...]  # those that run, increasing in index and value
    skipped: tuple[Cell, ...]  # those whose budget allows no iteration: they would return x0
    probe_gradients: int  # stochastic gradients at x0
    probe_values: int  # stochastic values at x0
    candidates_per_cell: int  # K for GRASP-NC, else 1
    samples_per_candidate: int  # fresh oracle calls per candidate; 0 where nothing is re-sampled
    score: Score  # what the choice goes by
    quantity: Quantity  # what a cell's value is
    ensemble: Ensemble  # how the choice is made
    stationary: bool = False  # |g0| = 0: no cells, x0 is the answer
    unrepresentable: int = 0  # grid points beyond the largest double; never run
    grad_norm: float | None = None  # |g0| that the plan was made from, where it was given
    value: float | None = None  # l0 likewise

    def __post_init__(self) -> None:
        low, high = self.range
        if not 0.0 < low <= high < math.inf:
            raise PlanError(f"range={self.range} must be (low, high) with 0 < low <= high < inf")
        counts = ("probe_gradients", "probe_values", "samples_per_candidate", "unrepresentable")
        for name, least in {**dict.fromkeys(counts, 0), "candidates_per_cell": 1}.items():
            if getattr(self, name) < least:
                raise PlanError(f"{name}={getattr(self, name)} must be {least} or above")
        pairs = (*pairwise(self.cells), *pairwise(self.skipped))
        if any(a.index >= b.index or a.value >= b.value for a, b in pairs):
            raise PlanError("cells must increase in index and in value")
        if twice := {cell.index for cell in self.skipped} & {cell.index for cell in self.cells}:
            raise PlanError(f"cells {sorted(twice)} are listed both to run and as skipped")
        if any(cell.budget < 1 for cell in self.cells):
            raise PlanError("a cell without oracle calls cannot run: list it as skipped")
        if self.stationary and (self.cells or self.skipped):
            raise PlanError("a stationary start has no cells")
        if (spent := self.total_calls) > self.budget:
            words = f"plan spends {spent} oracle calls but the budget is {self.budget}"
            raise PlanError(f"{words}; allow at least {spent}")

    @property
    def probe_calls(self) -> int:
        """M, the oracle calls spent at x0 before anything is trained."""
        return self.probe_gradients + self.probe_values

    @property
    def training_calls(self) -> int:
        """The oracle calls that the cells may spend in all."""
        return sum(cell.budget for cell in self.cells)

    @property
    def ensemble_calls(self) -> int:
        """The fresh oracle calls for the choice; x0 keeps its probe."""
        return len(self.cells) * self.candidates_per_cell * self.samples_per_candidate

    @property
    def total_calls(self) -> int:
        """All oracle calls of the plan, never above the budget."""
        return self.probe_calls + self.training_calls + self.ensemble_calls

    def to_dict(self) -> dict[str, Json]:
        """Return the plan as JSON values; `from_dict` gives the same plan back, to the last bit."""
        return dict(encode(self))

    @classmethod
    def from_dict(cls, data: Json) -> "Plan":
        """Return the plan that `to_dict` wrote; unknown keys or wrong types are a PlanError."""
        try:
            return decode(cls, data)
        except InputError as error:
            raise PlanError(f"not a plan: {error}") from None

    def table(self) -> str:
        """Return the plan as a table for people: the cells, then what everything costs."""
        low, high = self.range
        names = f"{'cell':>6}  {self.quantity:>12}  {'calls':>16}"
        zero = "the gradient at x0 is zero: nothing to train, x0 is the answer"
        rows = [f"{cell.index:>6}  {cell.value:>12.6g}  {cell.budget:>16,}" for cell in self.cells]
        if (hidden := len(rows) - 2 * _SHOWN) > 0:
            rows[_SHOWN:-_SHOWN] = [f"{'...':>6}  {hidden} more cells"]
        if self.skipped:
            ends = dict.fromkeys((self.skipped[0].index, self.skipped[-1].index))
            rows.append(f"skipped, no call for one iteration: cells {'-'.join(map(str, ends))}")
        if self.unrepresentable:
            rows.append(f"not run, beyond the largest number: {self.unrepresentable:,} cells")
        each, candidates = self.samples_per_candidate, len(self.cells) * self.candidates_per_cell
        how = {
            "resample": f"({candidates} candidates x {each:,} fresh samples)",
            "window": "(by the last minibatches of each run)",
            "exact": "(exact values, not counted)",
        }[self.ensemble]
        probe = f"({self.probe_gradients:,} gradients, {self.probe_values:,} values at x0)"
        return "\n".join(
            [
                f"{self.method.name}: {self.quantity} from {low:.6g} to {high:.6g}",
                zero if self.stationary else names,
                *rows,
                f"probe     {self.probe_calls:>16,}  {probe}",
                f"training  {self.training_calls:>16,}  ({len(self.cells)} cells)",
                f"choice    {self.ensemble_calls:>16,}  {how}",
                f"total     {self.total_calls:>16,}  of {self.budget:,} oracle calls",
            ]
        )

    __str__ = table

    def __repr__(self) -> str:
        low, high = self.range
        span = f"{len(self.cells)} cells, {self.quantity} {low:.4g} to {high:.4g}"
        calls = f"{self.total_calls} of {self.budget} oracle calls"
        return f"<Plan {self.method.name}: {span}, {calls}>"
