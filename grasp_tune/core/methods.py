"""The paper's four algorithms as frozen inputs that can plan.

Each class holds what a person may choose, checked once, and turns a budget and what the probe
measured into the paper's plan. What a schedule does with the plan is not decided here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar

from grasp_tune.core import bounds, validation
from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Ensemble, Plan, Quantity, Recipe, ScoreKind
from grasp_tune.core.plan_builder import (
    Frame,
    Layout,
    check_range,
    sampled_choice,
    settle,
    training_calls,
)
from grasp_tune.core.records import Json
from grasp_tune.optimizers import registry
from grasp_tune.optimizers.registry import Base, Factory
from grasp_tune.schedules import find_schedule


class _Variant:
    """What the four share to the letter; everything that differs stands in the classes."""

    __slots__ = ()

    name: ClassVar[str]
    score: ClassVar[ScoreKind]
    quantity: ClassVar[Quantity]
    exact: ClassVar[bool]  # gradients and values come without noise: asked once, not counted
    base: Base
    __dataclass_fields__: ClassVar[dict[str, Any]]

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
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _fix(self, "L_eps", validation.positive("L_eps", self.L_eps))
        _fix(self, "F_eps", validation.positive("F_eps", self.F_eps))
        _fix(self, "delta", validation.confidence("delta", self.delta, Fraction(1, 3)))
        _fix(self, "probe", validation.probe_share("probe", self.probe))
        registry.check_base(self.base)

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0: floor(T/4) gradients by default."""
        if self.probe is None:
            return budget // 4, 0  # Algorithm 2, line 1
        return max(1, math.floor(validation.as_fraction(self.probe) * budget)), 0

    def plan(
        self,
        budget: int,
        grad_norm: float | None = None,
        value: float | None = None,
        ensemble: str = "resample",
    ) -> Plan:
        """Return the paper's plan for `budget` oracle calls and the probe's gradient norm."""
        budget = validation.whole_budget(budget)
        norm = _norm(self, grad_norm)
        frame = _frame(self, sampled_choice(ensemble), norm, _mean(value))

        def layout(budget: int) -> Layout:
            low = bounds.step_min(norm, budget, self.L_eps, self.F_eps, self.delta)
            low, high = check_range(self.quantity, low, bounds.step_max(self.L_eps))
            count, draws = bounds.geometric_count(low, high), bounds.trajectory_draws(self.delta)
            spent = self.probe_counts(budget)[0]
            if frame.ensemble == "window":
                first = bounds.uniform_calls(max(0, budget - spent), 1, count)
                return Layout((low, high), count, first, 0, spent, None, least=count)
            calls, parts = training_calls(budget, spent, self.probe)
            return Layout(
                range=(low, high),
                count=count,
                first=bounds.uniform_calls(calls, parts, count),
                power=0,
                gradients=spent,
                values=None,
                candidates=draws,
                samples=bounds.uniform_calls(budget, 4 * draws, count),
                least=4 * draws * count,
            )

        return settle(frame, layout, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convex(_Variant):
    r"""GRASP-C, Algorithm 3: UniXGrad over a grid of radii, chosen by the value.

    `d_eps` ($d_\epsilon$) and `L_eps` ($L_\epsilon$) may be any positive numbers. `option` is
    "smooth" (Option I) or "universal" (Option II, adapts to Hölder smoothness), which alone uses
    `value_floor` ($\ell_\epsilon^\star$), a lower bound of the objective: 0 for the usual losses.
    `delta` only enters the certificate.
    """

    d_eps: float = 1e-2
    L_eps: float = 1e-2
    option: str = "smooth"
    value_floor: float = 0.0
    delta: float = 0.05
    probe: float | None = None
    base: Base = None

    name: ClassVar[str] = "convex"
    score: ClassVar[ScoreKind] = "value"
    quantity: ClassVar[Quantity] = "radius"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _fix(self, "d_eps", validation.positive("d_eps", self.d_eps))
        _fix(self, "L_eps", validation.positive("L_eps", self.L_eps))
        validation.one_of("option", self.option, ("smooth", "universal"))
        _fix(self, "value_floor", validation.number("value_floor", self.value_floor))
        _fix(self, "delta", validation.confidence("delta", self.delta, Fraction(1, 2)))
        _fix(self, "probe", validation.probe_share("probe", self.probe))
        registry.check_base(self.base)

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0: floor(T/8) of each by default."""
        if self.probe is None:
            return budget // 8, budget // 8  # Algorithm 3, lines 1 and 2
        each = max(1, math.floor(validation.as_fraction(self.probe) * budget / 2))
        return each, each

    def plan(
        self,
        budget: int,
        grad_norm: float | None = None,
        value: float | None = None,
        ensemble: str = "resample",
    ) -> Plan:
        """Return the paper's plan for `budget` oracle calls and what the probe measured.

        Option "smooth" needs `grad_norm`; "universal" needs `value`. A gradient norm of zero means
        a stationary start in both.
        """
        budget = validation.whole_budget(budget)
        smooth = self.option == "smooth"
        norm = _norm(self, grad_norm) if smooth or grad_norm is not None else None
        mean = _mean(value)
        gap = 0.0 if smooth else self._gap(mean)
        frame = _frame(self, sampled_choice(ensemble), norm, mean)

        def layout(budget: int) -> Layout:
            if smooth:
                high = bounds.distance_max_smooth(norm or 0.0, budget, self.d_eps, self.L_eps)
            else:
                high = bounds.distance_max_universal(gap, budget, self.d_eps, self.L_eps)
            low, high = check_range(self.quantity, self.d_eps, high)
            count = bounds.geometric_count(low, high)
            gradients, values = self.probe_counts(budget)
            spent = gradients + values
            if frame.ensemble == "window":
                first = bounds.harmonic_calls(max(0, budget - spent), 1, count)
                return Layout((low, high), count, first, 1, gradients, values)
            calls, parts = training_calls(budget, spent, self.probe)
            return Layout(
                range=(low, high),
                count=count,
                first=bounds.harmonic_calls(calls, parts, count),
                power=1,
                gradients=gradients,
                values=values,
                samples=bounds.uniform_calls(budget, 4, count),
                least=4 * count,
            )

        return settle(frame, layout, budget)

    def _gap(self, mean: float | None) -> float:
        """Return how far the mean value at x0 lies above the floor; Option II needs it."""
        if mean is None:
            raise InputError("convex with option='universal' needs value, the mean value at x0")
        if mean < self.value_floor:
            raise InputError(
                f"value={mean!r} is below value_floor={self.value_floor!r}, so the floor is not a "
                f"lower bound of the objective; give a value_floor of at most {mean!r}"
            )
        return mean - self.value_floor


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvexFree(_Variant):
    r"""GRASP-C without a lower bound of the objective, Algorithm 4.

    Universal like `Convex(option="universal")`, with a coarser choice as the price. The grid
    depends on the budget alone, so planning needs no measurement.
    """

    d_eps: float = 1e-2
    delta: float = 0.05
    base: Base = None

    name: ClassVar[str] = "convex-free"
    score: ClassVar[ScoreKind] = "value"
    quantity: ClassVar[Quantity] = "radius"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _fix(self, "d_eps", validation.positive("d_eps", self.d_eps))
        _fix(self, "delta", validation.confidence("delta", self.delta, Fraction(1, 2)))
        registry.check_base(self.base)

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return the (gradients, values) to sample at x0: as many values as a candidate gets."""
        return 0, bounds.uniform_calls(budget, 2, bounds.free_count(budget) + 1)

    def plan(
        self,
        budget: int,
        grad_norm: float | None = None,
        value: float | None = None,
        ensemble: str = "resample",
    ) -> Plan:
        """Return the paper's plan for `budget` oracle calls; the grid needs no measurement.

        What is given is still checked, since a value that is not finite must stop the sweep.
        """
        budget = validation.whole_budget(budget)
        if grad_norm is not None:
            _norm(self, grad_norm)  # not used: Algorithm 4 samples no gradient at x0
        frame = _frame(self, sampled_choice(ensemble), None, _mean(value))

        def layout(budget: int) -> Layout:
            count = bounds.free_count(budget)
            # The range ends at the last radius that is a double; the formulas keep N.
            high = bounds.last_value(self.d_eps, count)
            samples = self.probe_counts(budget)[1]
            if frame.ensemble == "window":  # all but the probe on training: 6/pi^2 for cell 1
                first = bounds.square_calls(budget - samples, 1)
                return Layout((self.d_eps, high), count, first, 2, None, samples)
            return Layout(
                range=(self.d_eps, high),
                count=count,
                first=bounds.square_calls(budget, 2),
                power=2,
                gradients=None,
                values=samples,
                samples=samples,
                least=2 * (count + 1),
            )

        return settle(frame, layout, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deterministic(_Variant):
    r"""Algorithm 1: exact gradients of a convex, smooth objective; exact values choose.

    The gradient at x0 and the values are not counted, as in the paper.
    """

    d_eps: float = 1e-2
    L_eps: float = 1e-2
    base: Base = None

    name: ClassVar[str] = "deterministic"
    score: ClassVar[ScoreKind] = "value"
    quantity: ClassVar[Quantity] = "radius"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _fix(self, "d_eps", validation.positive("d_eps", self.d_eps))
        _fix(self, "L_eps", validation.positive("L_eps", self.L_eps))
        registry.check_base(self.base)

    def probe_counts(self, budget: int) -> tuple[int, int]:
        """Return (0, 0): the exact gradient at x0 is not counted."""
        return 0, 0

    def plan(
        self,
        budget: int,
        grad_norm: float | None = None,
        value: float | None = None,
        ensemble: str = "exact",
    ) -> Plan:
        """Return the paper's plan for `budget` oracle calls and the norm of the gradient at x0.

        Exact values choose; `ensemble="resample"`, the others' default, means the same here.
        """
        budget = validation.whole_budget(budget)
        norm = _norm(self, grad_norm)
        validation.one_of("ensemble", ensemble, ("exact", "resample"))
        frame = _frame(self, "exact", norm, _mean(value))

        def layout(budget: int) -> Layout:
            high = bounds.distance_max_smooth(norm, budget, self.d_eps, self.L_eps)
            low, high = check_range(self.quantity, self.d_eps, high)
            count = bounds.geometric_count(low, high)
            first = bounds.harmonic_calls(budget, 1, count)
            return Layout((low, high), count, first, 1, None, None)

        return settle(frame, layout, budget)


Method = NonConvex | Convex | ConvexFree | Deterministic
METHODS: Mapping[str, type[Method]] = {
    kind.name: kind for kind in (NonConvex, Convex, ConvexFree, Deterministic)
}


def method_from_dict(data: Mapping[str, Json], base: Factory | None = None) -> Method:
    """Return the method that `to_dict` wrote, or that a plan's `method` record names.

    A `base` that is a function is written by name only, so it has to be given again here.
    """
    values = dict(data)
    kind = METHODS[validation.one_of("method name", values.pop("name", None), tuple(METHODS))]
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


# ---- what the four share -------------------------------------------------------------------------


def _fix(method: Method, name: str, value: object) -> None:
    """Set a field of a frozen method while it is being made."""
    object.__setattr__(method, name, value)


def _norm(method: Method, given: float | None) -> float:
    if given is None:
        raise InputError(f"{method.name} needs grad_norm, the norm of the mean gradient at x0")
    return validation.not_negative("grad_norm", given)


def _mean(given: float | None) -> float | None:
    return None if given is None else validation.number("value", given)


def _frame(method: Method, how: Ensemble, norm: float | None, mean: float | None) -> Frame:
    return Frame(
        recipe=Recipe(**method.to_dict()),
        score=method.score,
        quantity=method.quantity,
        ensemble=how,
        step=registry.described(method.base_name("paper")).calls_per_step,
        grad_norm=norm,
        value=mean,
    )
