"""The paper's four algorithms: inputs, checked once, that plan from what the probe measured."""

import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

from grasp_tune.core import bounds
from grasp_tune.core.errors import BudgetTooSmall, InputError, PlanError, number, whole
from grasp_tune.core.plan import Cell, Plan, Quantity, Recipe
from grasp_tune.core.records import Json
from grasp_tune.core.tasks import Score
from grasp_tune.optimizers import registry
from grasp_tune.optimizers.registry import Base, Factory
from grasp_tune.schedules import find_schedule

_ABOVE_0 = ("above 0 (any positive number will do)", lambda value: value > 0.0)
_NUMBERS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(("L_eps", "F_eps", "d_eps"), _ABOVE_0),
    "value_floor": ("", math.isfinite),
    "probe": ("a share of the budget in (0, 1/2], or None", lambda share: 0.0 < share <= 0.5),
}
_Grid = tuple[tuple[float, float], int]  # its ends, and N
_Lack = tuple[str, int]  # what a budget does not reach, and one below which none can


class _Variant:
    """What the four share; everything that differs stands in the classes."""

    __slots__ = ()

    name: ClassVar[str]
    score: ClassVar[Score] = "value"
    quantity: ClassVar[Quantity] = "radius"
    exact: ClassVar[bool] = False  # gradients and values without noise: asked once, not counted
    measured: ClassVar[tuple[str, ...]] = ("gradient", "value")  # at x0
    power: ClassVar[int] = 1  # cell i has 1 / i**power of the oracle calls of cell 1
    delta_below: ClassVar[Fraction] = Fraction(1, 2)
    base: Base
    delta: float  # of those that sample
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        limit = float(self.delta_below)  # a double: 1/3 is its own limit
        chance = (f"in (0, {self.delta_below}), for example 0.05", lambda x: 0.0 < x < limit)
        numbers = {"delta": chance, **_NUMBERS}
        for name in self.__dataclass_fields__:
            if name in numbers and ((given := getattr(self, name)) is not None or name != "probe"):
                object.__setattr__(self, name, number(name, given, *numbers[name]))
        one_of("option", getattr(self, "option", "smooth"), ("smooth", "universal"))
        registry.check_base(self.base)

    @property
    def paper_base(self) -> str:
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
        budget = whole("budget", budget, 1, 2**63 - 1)  # what a 64-bit counter can hold
        if grad_norm is not None:
            grad_norm = number("grad_norm", grad_norm, "0 or above", lambda size: size >= 0.0)
        if value is not None:
            value = number("value", value)
        norm = grad_norm if "gradient" in self.measured else None
        ways = ("exact", "resample") if self.exact else ("resample", "window")
        window = one_of("ensemble", ensemble, ways) == "window"
        attempt = partial(self._attempt, norm, value, window)
        found = wanted = attempt(budget)
        smallest = budget
        # N never falls as T grows: this ends at the least budget that works.
        while not isinstance(found, Plan):
            smallest = max(smallest + 1, found[1])
            found = attempt(smallest)
        if not isinstance(wanted, Plan):
            words = f"budget={budget} is too small for {self.name}: it does not reach {wanted[0]}"
            advice = f"the smallest budget that works for these inputs is {smallest}"
            raise BudgetTooSmall(f"{words}; {advice}", smallest)
        return found

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0, by default a quarter of the budget.

        Algorithm 2, line 1, and Algorithm 3, lines 1 and 2: an eighth for each of two kinds.
        """
        if self.exact:
            return 0, 0
        share = getattr(self, "probe", None)
        each = math.floor(as_fraction(share or 0.25) * budget / len(self.measured))
        each = each if share is None else max(1, each)
        return each, each if "value" in self.measured else 0

    def _grid(self, budget: int, norm: float | None, value: float | None) -> _Grid:
        """Return the ends of the grid and N; InputError where what they rest on is not given."""
        raise NotImplementedError

    def _given(self, norm: float | None) -> float:
        if norm is None:
            raise InputError(f"{self.name} needs grad_norm, the norm of the mean gradient at x0")
        return norm

    def _span(self, low: float, high: float) -> _Grid:
        """Return (low, high), all of whose grid points must be ordinary doubles, and N."""
        if not (sys.float_info.min <= low and high <= sys.float_info.max / 2.0):
            words = f"the {self.quantity} would range from {low:.3g} to {high:.3g}"
            advice = "rescale the objective, or choose inputs nearer to 1"
            raise PlanError(f"{words}, beyond what a double holds; {advice}")
        low = min(low, high)
        return (low, high), bounds.geometric_count(low, high)

    def _attempt(
        self, norm: float | None, value: float | None, window: bool, budget: int
    ) -> Plan | _Lack:
        """Return the plan that the formulas give, or what the budget does not reach."""
        (ends, count), probe = self._grid(budget, norm, value), self.probe_counts(budget)
        draws, samples, least = 1, None, 1 if self.power else count
        calls, parts = max(0, budget - sum(probe)), 1  # without samples, training gets the rest
        if not (window or self.exact):
            draws = bounds.geometric_count(self.delta, 1.0) if self.score == "gradient" else 1  # K
            # A quarter of T for the ensemble; in Algorithm 4 half of it, x0 included.
            least = 2 * (count + 1) if self.power == 2 else 4 * draws * count
            samples = budget // least
            # T/2 for training; what a probe of another size than T/4 saves, too: 3T/4 - M.
            usual = getattr(self, "probe", None) is None
            calls, parts = (budget, 2) if usual else (max(0, 3 * budget - 4 * sum(probe)), 4)
        if self.power == 0:
            first = calls // (parts * count)
        elif self.power == 1:
            first = bounds.harmonic_calls(calls, parts, count)
        else:
            first = bounds.square_calls(calls, parts)

        for kind, sampled in zip(("gradient", "value"), probe, strict=True):
            if not (sampled or self.exact) and kind in self.measured:
                return f"one {kind} at x0", 1
        if sum(probe) > budget:  # a share is rounded up to one sample of each kind
            return "one value at x0", 1
        step = registry.described(self.base_name("paper")).calls_per_step
        if stationary := norm == 0.0:  # nothing is trained, nothing chosen
            samples, count = 0, 0
        elif samples == 0:
            return f"one sample for each of {count * draws} candidates", least
        elif first < step:
            iteration = "1 oracle call" if step == 1 else f"{step} oracle calls"
            return f"one iteration ({iteration}) of a cell, with {count} cells in the grid", least

        values = enumerate(bounds.geometric_values(ends[0], count), 1)
        cells = tuple(Cell(i, at, first // i**self.power) for i, at in values)
        # Budgets fall along the grid: from some cell on, none can iterate.
        running = sum(cell.budget >= step for cell in cells)
        return Plan(
            method=Recipe(**self.to_dict()),
            budget=budget,
            range=ends,
            cells=cells[:running],
            skipped=cells[running:],
            probe_gradients=probe[0],
            probe_values=probe[1],
            candidates_per_cell=draws,
            samples_per_candidate=samples or 0,
            score=self.score,
            quantity=self.quantity,
            ensemble="exact" if self.exact else "window" if window else "resample",
            stationary=stationary,
            unrepresentable=count - len(cells),
            grad_norm=norm,
            value=value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NonConvex(_Variant):
    r"""GRASP-NC, Algorithm 2: SGD over a grid of step sizes, chosen by the gradient's norm.

    L_eps, F_eps: $L_\epsilon$ and $F_\epsilon$, any positive numbers: they cost a logarithm, never
        correctness.
    delta: the probability of failure.
    probe: share of the budget spent at x0; None: the schedule's default, a quarter in the paper.
    base: the optimizer, None for the schedule's default.
    """

    L_eps: float = 1e-2
    F_eps: float = 1e-2
    delta: float = 0.05
    probe: float | None = None
    base: Base = None

    name: ClassVar[str] = "nonconvex"
    score: ClassVar[Score] = "gradient"
    quantity: ClassVar[Quantity] = "step size"
    measured: ClassVar[tuple[str, ...]] = ("gradient",)
    power: ClassVar[int] = 0
    delta_below: ClassVar[Fraction] = Fraction(1, 3)

    def _grid(self, budget: int, norm: float | None, value: float | None) -> _Grid:
        # Algorithm 2, lines 2 to 4: from eta_min to 1 / (2 L_eps).
        eps = (self.L_eps, self.F_eps, self.delta)
        return self._span(bounds.step_min(self._given(norm), budget, *eps), 0.5 / self.L_eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convex(_Variant):
    r"""GRASP-C, Algorithm 3: UniXGrad over a grid of radii, chosen by the value.

    d_eps, L_eps: $d_\epsilon$ and $L_\epsilon$, any positive numbers.
    option: "smooth" (Option I) or "universal" (Option II, adapts to Hölder smoothness).
    value_floor: $\ell_\epsilon^\star$, a lower bound of the objective, for "universal" alone; 0 for
        the usual losses.
    delta: the probability of failure in the certificate; nothing else depends on it.
    probe: share of the budget spent at x0; None: the schedule's default.
    base: the optimizer, None for the schedule's default.
    """

    d_eps: float = 1e-2
    L_eps: float = 1e-2
    option: str = "smooth"
    value_floor: float = 0.0
    delta: float = 0.05
    probe: float | None = None
    base: Base = None

    name: ClassVar[str] = "convex"

    def _grid(self, budget: int, norm: float | None, value: float | None) -> _Grid:
        if self.option == "smooth":
            slope, least = self._given(norm), self.d_eps
        elif value is None:
            raise InputError("convex with option='universal' needs value, the mean value at x0")
        elif value < (floor := self.value_floor):
            words = f"value={value!r} is below value_floor={floor!r}, which is thus no lower bound"
            raise InputError(f"{words}; give a value_floor of at most {value!r}")
        else:
            slope, least = value - self.value_floor, max(1.0, self.d_eps)
        return self._span(self.d_eps, bounds.distance_max(slope, budget, least, self.L_eps))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvexFree(_Variant):
    r"""GRASP-C without a lower bound of the objective, Algorithm 4.

    Universal like `Convex(option="universal")`, with a coarser choice as the price. The grid
    depends on the budget alone, so planning needs no measurement.

    d_eps: $d_\epsilon$, any positive number.
    delta: the probability of failure in the certificate; nothing else depends on it.
    base: the optimizer, None for the schedule's default.
    """

    d_eps: float = 1e-2
    delta: float = 0.05
    base: Base = None

    name: ClassVar[str] = "convex-free"
    measured: ClassVar[tuple[str, ...]] = ("value",)
    power: ClassVar[int] = 2

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0: as many values as a candidate gets."""
        return 0, budget // (2 * (_root(budget) + 1))

    def _grid(self, budget: int, norm: float | None, value: float | None) -> _Grid:
        # The range ends at the last radius that is a double; the formulas keep N.
        count = _root(budget)
        if not (values := bounds.geometric_values(self.d_eps, count)):
            raise InputError(f"d_eps={self.d_eps!r} cannot be doubled; choose a smaller number")
        return (self.d_eps, values[-1]), count


def _root(budget: int) -> int:
    return math.isqrt(budget - 1) + 1  # N = ceil(sqrt(T)): Algorithm 4, line 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic(_Variant):
    r"""Algorithm 1: exact gradients of a convex, smooth objective; exact values choose.

    The gradient at x0 and the values are not counted, as in the paper.

    d_eps, L_eps: $d_\epsilon$ and $L_\epsilon$, any positive numbers.
    base: the optimizer, None for the schedule's default.
    """

    d_eps: float = 1e-2
    L_eps: float = 1e-2
    base: Base = None

    name: ClassVar[str] = "deterministic"
    exact: ClassVar[bool] = True

    def _grid(self, budget: int, norm: float | None, value: float | None) -> _Grid:
        high = bounds.distance_max(self._given(norm), budget, self.d_eps, self.L_eps)
        return self._span(self.d_eps, high)


Method = NonConvex | Convex | ConvexFree | Deterministic
METHODS: Mapping[str, type[Method]] = {
    kind.name: kind for kind in (NonConvex, Convex, ConvexFree, Deterministic)
}


def method_from_dict(data: Mapping[str, Json], base: Factory | None = None) -> Method:
    """Return the method that `to_dict` wrote, or that a plan's `method` record names.

    base: given again where it is a function, which is written by its name only.
    """
    values = dict(data)
    kind = METHODS[one_of("method name", values.pop("name", None), tuple(METHODS))]
    names = [field.name for field in fields(kind)]
    # A plan's record has every method's inputs, None where the method has no such input.
    values = {key: item for key, item in values.items() if key in names or item is not None}
    if unknown := [key for key in values if key not in names]:
        raise InputError(f"{kind.name} has no inputs {unknown}; it has {names}")
    if base is None and ":" in str(name := values.get("base")):
        words = f"base={name!r} was a function of one's own; give it again"
        raise InputError(f"{words}: method_from_dict(data, base=...)")
    return kind(**(values if base is None else {**values, "base": base}))


def one_of(name: str, given: object, choices: Collection[str]) -> str:
    """Return `given`, one of the words `choices`."""
    if not isinstance(given, str) or given not in choices:
        raise InputError(f"{name}={given!r} must be one of {', '.join(map(repr, choices))}")
    return given


def as_fraction(share: float) -> Fraction:
    """Return the simplest fraction that is the same double: who writes 0.3 means 3/10."""
    simple = Fraction(share).limit_denominator(10**6)
    return simple if float(simple) == share else Fraction(repr(share))
