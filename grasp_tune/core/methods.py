"""The paper's four algorithms as frozen inputs that can plan.

Each class holds what a person may choose, checked once, and turns a budget and what the probe
measured into the paper's plan. What a schedule does with the plan is not decided here.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar

from grasp_tune.core import bounds
from grasp_tune.core.errors import BudgetTooSmall, InputError, PlanError
from grasp_tune.core.plan import Cell, Plan, Quantity, Recipe, ScoreKind
from grasp_tune.core.records import Json
from grasp_tune.core.validation import LARGEST_BUDGET, as_fraction, number, one_of, whole
from grasp_tune.optimizers import registry
from grasp_tune.optimizers.registry import Base, Factory
from grasp_tune.schedules import find_schedule

_ABOVE_0 = ("above 0 (any positive number will do)", lambda value: value > 0.0)
_NUMBERS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "L_eps": _ABOVE_0,
    "F_eps": _ABOVE_0,
    "d_eps": _ABOVE_0,
    "value_floor": ("", math.isfinite),
    "probe": ("a share of the budget in (0, 1/2], or None", lambda share: 0.0 < share <= 0.5),
}


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the formulas give for one budget, before anyone asks whether it reaches."""

    range: tuple[float, float]
    count: int  # N
    first: int  # oracle calls of cell 1
    power: int  # 0, 1 or 2: cell i has first // i**power
    gradients: int | None = None  # sampled at x0; None where the method samples none
    values: int | None = None
    candidates: int = 1  # per cell
    samples: int | None = None  # per candidate; None where nothing is re-sampled
    least: int = 1  # no budget below this can work for so many cells

    def lacks(self, budget: int, step: int, stationary: bool) -> str | None:
        """Return what `budget` does not reach, or None: `step` calls make one iteration.

        A stationary start trains nothing and chooses nothing, so only the probe must reach.
        """
        if self.gradients == 0:
            return "one gradient at x0"
        # A share is rounded up to one sample of each kind, which may be more than there is.
        if self.values == 0 or (self.gradients or 0) + (self.values or 0) > budget:
            return "one value at x0"
        if self.samples == 0 and not stationary:
            return f"one sample for each of {self.count * self.candidates} candidates"
        if self.first < step and not stationary:
            calls = "1 oracle call" if step == 1 else f"{step} oracle calls"
            return f"one iteration ({calls}) of a cell, with {self.count} cells in the grid"
        return None


class _Variant:
    """What the four share; everything that differs stands in the classes."""

    __slots__ = ()

    name: ClassVar[str]
    score: ClassVar[ScoreKind] = "value"
    quantity: ClassVar[Quantity] = "radius"
    exact: ClassVar[bool] = False  # gradients and values without noise: asked once, not counted
    delta_below: ClassVar[Fraction] = Fraction(1, 2)
    base: Base
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        limit = float(self.delta_below)  # a double: 1/3 is its own limit
        chance = (f"in (0, {self.delta_below}), for example 0.05", lambda x: 0.0 < x < limit)
        numbers = {"delta": chance, **_NUMBERS}
        for name in (field.name for field in fields(self)):
            given = getattr(self, name)
            if name in numbers and (name != "probe" or given is not None):
                object.__setattr__(self, name, number(name, given, *numbers[name]))
            elif name == "option":
                one_of(name, given, ("smooth", "universal"))
        registry.check_base(self.base)

    @property
    def paper_base(self) -> str:
        """The optimizer that the paper's theorem is about."""
        return registry.theorem_optimizer(self.name)

    def base_name(self, schedule: object) -> str:
        """Return the name of the base optimizer that a schedule, or one of that name, runs."""
        name = registry.written_base(self.base)
        return name or find_schedule(schedule).default_base or self.paper_base

    def covered(self, schedule: object) -> bool:
        """Return whether the paper's theorem is about the base that `schedule` runs."""
        return self.name in registry.described(self.base_name(schedule)).theorem

    def to_dict(self) -> dict[str, Json]:
        """Return the name and the inputs as JSON values; see `method_from_dict`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": self.name, **values, "base": registry.written_base(self.base)}

    def plan(
        self,
        budget: int,
        grad_norm: float | None = None,
        value: float | None = None,
        ensemble: str = "resample",
    ) -> Plan:
        """Return the paper's plan for `budget` oracle calls and what the probe measured at x0.

        grad_norm: the norm of the mean gradient. `ConvexFree` and `Convex(option="universal")` can
            do without it; zero means a stationary start.
        value: the mean loss; only `Convex(option="universal")` needs it.
        ensemble: `resample` chooses by fresh samples, `window` by the last minibatches of each run;
            `Deterministic` chooses by exact values whatever is said here, and has no `window`.
        """
        budget, norm, mean = whole("budget", budget, 1, LARGEST_BUDGET), grad_norm, value
        if norm is not None:
            norm = number("grad_norm", norm, "0 or above", lambda size: size >= 0.0)
        if mean is not None:
            mean = number("value", mean)
        ways = ("exact", "resample") if self.exact else ("resample", "window")
        window = one_of("ensemble", ensemble, ways) == "window"
        norm = self._needed(norm, mean)
        stationary = norm == 0.0

        def layout_of(calls: int) -> tuple[_Layout, str | None]:
            found = self._layout(window, norm or 0.0, mean or 0.0, calls)
            return found, found.lacks(calls, step, stationary)

        step = registry.described(self.base_name("paper")).calls_per_step
        layout, missing = layout_of(budget)
        smallest, trial, lacks = budget, layout, missing
        # N never falls as T grows, so no budget below `least` works: this is the least fixed point.
        while lacks:
            smallest = max(smallest + 1, 1 if stationary else trial.least)
            trial, lacks = layout_of(smallest)
        if missing:
            raise BudgetTooSmall(
                f"budget={budget} is too small for {self.name}: it does not reach {missing}; "
                f"the smallest budget that works for these inputs is {smallest}",
                smallest,
            )
        values = () if stationary else bounds.geometric_values(layout.range[0], layout.count)
        cells = tuple(Cell(i, v, layout.first // i**layout.power) for i, v in enumerate(values, 1))
        # Budgets fall along the grid: from some cell on, none can iterate.
        running = next((at for at, cell in enumerate(cells) if cell.budget < step), len(cells))
        return Plan(
            method=Recipe(**self.to_dict()),
            budget=budget,
            range=layout.range,
            cells=cells[:running],
            skipped=cells[running:],
            probe_gradients=layout.gradients or 0,
            probe_values=layout.values or 0,
            candidates_per_cell=layout.candidates,
            samples_per_candidate=0 if stationary else layout.samples or 0,
            score=self.score,
            quantity=self.quantity,
            ensemble="exact" if self.exact else "window" if window else "resample",
            stationary=stationary,
            unrepresentable=0 if stationary else layout.count - len(cells),
            grad_norm=norm,
            value=mean,
        )

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0."""
        raise NotImplementedError

    def _needed(self, norm: float | None, value: float | None) -> float | None:
        """Return the gradient's norm; InputError where what the method needs is not given."""
        if norm is None:
            raise InputError(f"{self.name} needs grad_norm, the norm of the mean gradient at x0")
        return norm

    def _layout(self, window: bool, norm: float, value: float, budget: int) -> _Layout:
        """Return what the method's formulas give for a budget."""
        raise NotImplementedError

    def _range(self, low: float, high: float) -> tuple[float, float]:
        """Return (low, high) where every grid point is an ordinary double; never low above high."""
        if not (sys.float_info.min <= low and high <= sys.float_info.max / 2.0):
            raise PlanError(
                f"the {self.quantity} would range from {low:.3g} to {high:.3g}, beyond what a "
                "double holds; rescale the objective, or choose inputs nearer to 1"
            )
        return min(low, high), high

    def _after_probe(
        self,
        window: bool,
        budget: int,
        probe: tuple[int, int | None],
        share: float | None,
        ends: tuple[float, float],
        draws: int = 1,
    ) -> _Layout:
        """Return the layout of GRASP-NC and GRASP-C: a probe, then cells that share T/2.

        probe: gradients and values at x0. share: the probe's part of T if it is not the paper's.
        draws: candidates of each cell; only GRASP-NC has more than one, and cells of equal budget.
        """
        even, spent = self.score == "gradient", sum(count or 0 for count in probe)
        ends = self._range(*ends)
        count = bounds.geometric_count(*ends)
        # With a probe of another size, what it saves of T/4 (or overspends) goes to training:
        # 3T/4 - M in place of T/2. The ensemble keeps its T/4, unless the window chooses.
        calls, parts = (budget, 2) if share is None else (max(0, 3 * budget - 4 * spent), 4)
        calls, parts = (max(0, budget - spent), 1) if window else (calls, parts)
        first = calls // (parts * count) if even else bounds.harmonic_calls(calls, parts, count)
        head = (ends, count, first, 0 if even else 1, *probe)
        least = 4 * draws * count
        if window:
            return _Layout(*head, least=count if even else 1)
        return _Layout(*head, candidates=draws, samples=budget // least, least=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class NonConvex(_Variant):
    r"""GRASP-NC, Algorithm 2: SGD over a grid of step sizes, chosen by the gradient's norm.

    `L_eps` ($L_\epsilon$) and `F_eps` ($F_\epsilon$) may be any positive numbers: they cost a
    logarithm, never correctness. `delta` is the probability of failure, `probe` the share of the
    budget spent at x0 (None: the schedule's default, a quarter in the paper), `base` the optimizer.
    """

    L_eps: float = 1e-2
    F_eps: float = 1e-2
    delta: float = 0.05
    probe: float | None = None
    base: Base = None

    name: ClassVar[str] = "nonconvex"
    score: ClassVar[ScoreKind] = "gradient"
    quantity: ClassVar[Quantity] = "step size"
    delta_below: ClassVar[Fraction] = Fraction(1, 3)

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0: floor(T/4) gradients by default."""
        if self.probe is None:
            return budget // 4, 0  # Algorithm 2, line 1
        return max(1, math.floor(as_fraction(self.probe) * budget)), 0

    def _layout(self, window: bool, norm: float, value: float, budget: int) -> _Layout:
        # Algorithm 2, lines 2 to 4: from eta_min to 1 / (2 L_eps), K points kept of each run.
        low = bounds.step_min(norm, budget, self.L_eps, self.F_eps, self.delta)
        ends, probe = (low, 0.5 / self.L_eps), (self.probe_counts(budget)[0], None)
        draws = bounds.geometric_count(self.delta, 1.0)
        return self._after_probe(window, budget, probe, self.probe, ends, draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convex(_Variant):
    r"""GRASP-C, Algorithm 3: UniXGrad over a grid of radii, chosen by the value.

    `d_eps` ($d_\epsilon$) and `L_eps` ($L_\epsilon$) may be any positive numbers. `option` is
    "smooth" (Option I) or "universal" (Option II, adapts to Hölder smoothness), which alone uses
    `value_floor` ($\ell_\epsilon^\star$), a lower bound of the objective: 0 for the usual losses.
    `delta` only enters the certificate. `probe` is the share of the budget spent at x0 (None: the
    schedule's default), `base` the optimizer.
    """

    d_eps: float = 1e-2
    L_eps: float = 1e-2
    option: str = "smooth"
    value_floor: float = 0.0
    delta: float = 0.05
    probe: float | None = None
    base: Base = None

    name: ClassVar[str] = "convex"

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0: floor(T/8) of each by default."""
        if self.probe is None:
            return budget // 8, budget // 8  # Algorithm 3, lines 1 and 2
        each = max(1, math.floor(as_fraction(self.probe) * budget / 2))
        return each, each

    def _needed(self, norm: float | None, value: float | None) -> float | None:
        if self.option == "smooth":
            return _Variant._needed(self, norm, value)
        if value is None:
            raise InputError("convex with option='universal' needs value, the mean value at x0")
        if value < self.value_floor:
            raise InputError(
                f"value={value!r} is below value_floor={self.value_floor!r}, so the floor is not a "
                f"lower bound of the objective; give a value_floor of at most {value!r}"
            )
        return norm

    def _layout(self, window: bool, norm: float, value: float, budget: int) -> _Layout:
        smooth = self.option == "smooth"
        slope, least = (norm, 0.0) if smooth else (value - self.value_floor, 1.0)
        high = bounds.distance_max(slope, budget, max(least, self.d_eps), self.L_eps)
        probe = self.probe_counts(budget)
        return self._after_probe(window, budget, probe, self.probe, (self.d_eps, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvexFree(_Variant):
    r"""GRASP-C without a lower bound of the objective, Algorithm 4.

    Universal like `Convex(option="universal")`, with a coarser choice as the price. The grid
    depends on the budget alone, so planning needs no measurement; what is given is still checked,
    since a value that is not finite must stop the sweep. `d_eps` ($d_\epsilon$) may be any positive
    number, `delta` only enters the certificate, `base` is the optimizer.
    """

    d_eps: float = 1e-2
    delta: float = 0.05
    base: Base = None

    name: ClassVar[str] = "convex-free"

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0: as many values as a candidate gets."""
        return 0, budget // (2 * (_root(budget) + 1))

    def _needed(self, norm: float | None, value: float | None) -> float | None:
        return None  # Algorithm 4 samples no gradient at x0

    def _layout(self, window: bool, norm: float, value: float, budget: int) -> _Layout:
        count, samples = _root(budget), self.probe_counts(budget)[1]
        # The range ends at the last radius that is a double; the formulas keep N.
        if not (values := bounds.geometric_values(self.d_eps, count)):
            raise InputError(f"d_eps={self.d_eps!r} cannot be doubled; choose a smaller number")
        ends = (self.d_eps, values[-1])
        if window:  # all but the probe on training: 6/pi^2 for cell 1
            first = bounds.square_calls(budget - samples, 1)
            return _Layout(ends, count, first, 2, values=samples)
        first, least = bounds.square_calls(budget, 2), 2 * (count + 1)
        return _Layout(ends, count, first, 2, values=samples, samples=samples, least=least)


def _root(budget: int) -> int:
    """Return N = ceil(sqrt(T)): Algorithm 4, line 1."""
    return math.isqrt(budget - 1) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic(_Variant):
    r"""Algorithm 1: exact gradients of a convex, smooth objective; exact values choose.

    The gradient at x0 and the values are not counted, as in the paper. `d_eps` ($d_\epsilon$) and
    `L_eps` ($L_\epsilon$) may be any positive numbers, `base` is the optimizer.
    """

    d_eps: float = 1e-2
    L_eps: float = 1e-2
    base: Base = None

    name: ClassVar[str] = "deterministic"
    exact: ClassVar[bool] = True

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return (0, 0): the exact gradient at x0 is not counted."""
        return 0, 0

    def _layout(self, window: bool, norm: float, value: float, budget: int) -> _Layout:
        ends = self._range(self.d_eps, bounds.distance_max(norm, budget, self.d_eps, self.L_eps))
        count = bounds.geometric_count(*ends)
        return _Layout(ends, count, bounds.harmonic_calls(budget, 1, count), 1)


Method = NonConvex | Convex | ConvexFree | Deterministic
METHODS: Mapping[str, type[Method]] = {
    kind.name: kind for kind in (NonConvex, Convex, ConvexFree, Deterministic)
}


def method_from_dict(data: Mapping[str, Json], base: Factory | None = None) -> Method:
    """Return the method that `to_dict` wrote, or that a plan's `method` record names.

    A `base` that is a function is written by name only, so it has to be given again here.
    """
    values = dict(data)
    kind = METHODS[one_of("method name", values.pop("name", None), tuple(METHODS))]
    names = [field.name for field in fields(kind)]
    # A plan's record has every method's inputs, None where the method has no such input.
    unknown = [key for key in values if key not in names and values[key] is not None]
    if unknown:
        raise InputError(f"{kind.name} has no inputs {unknown}; it has {names}")
    values = {key: value for key, value in values.items() if key in names}
    if base is not None:
        values["base"] = base
    elif isinstance(values.get("base"), str) and ":" in values["base"]:
        raise InputError(
            f"base={values['base']!r} was a function of one's own; give it again: "
            "method_from_dict(data, base=...)"
        )
    return kind(**values)
