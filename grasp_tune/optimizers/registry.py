"""The registry of base optimizers: one entry holds all that the package knows about one.

Importing this module does not import torch. To add an optimizer, call `register`, or pass a
function `(params, value) -> Optimizer` as `base` or as a challenger.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from grasp_tune.core.errors import InputError, expect

# Any: the types of parameters and optimizers are torch's, which this module never imports.
Factory = Callable[[Any, float], Any]
Base = str | Factory | None  # what a method's `base` may be
DistanceRule = Callable[[float, float, int, int], float]

# Rules that turn a distance D into an optimizer's value, given |g0|, P parameters and T calls.


def whole_distance(distance: float, grad_norm: float, parameters: int, calls: int) -> float:
    """Return D: the value is the distance that a run may move."""
    return distance


def coordinate_distance(distance: float, grad_norm: float, parameters: int, calls: int) -> float:
    r"""Return $D/\sqrt P$: the value is the distance of one coordinate."""
    return distance / math.sqrt(parameters)


def gradient_step(distance: float, grad_norm: float, parameters: int, calls: int) -> float:
    r"""Return $D/(|g_0|\sqrt T)$: $T$ plain gradient steps in random directions cover $D$."""
    return distance / (grad_norm * math.sqrt(calls))


def normalised_step(distance: float, grad_norm: float, parameters: int, calls: int) -> float:
    r"""Return $D/\sqrt{PT}$: a normalised step moves every coordinate by about its size."""
    return distance / math.sqrt(parameters * calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOptimizer:
    """The entry of one base optimizer.

    `make` is called with the parameters, and with keywords: the run's values, `options`,
    `coordinates` (`coordinatewise.Coordinates` or None) if `uses_power` is set, and `matrices` (the
    positions of the hidden matrices among the parameters) if `uses_matrices` is set.
    """

    name: str  # what methods, tasks and results call it
    make: str | Callable[..., Any]  # `module:name` of a class or function, or the function itself
    value: str = "lr"  # the keyword of the searched number; a run's other values keep their names
    quantity: str = "step size"  # its name in reports
    from_distance: DistanceRule = normalised_step  # for schedules that search over distances
    group_entry: str | None = "lr"  # entry that scales a group's step; None: never annealed
    options: tuple[tuple[str, Any], ...] = ()  # further keywords, the same for every run
    # Oracle calls of one step. If more than one, the optimizer also needs `begin` and `feed`, as
    # `UniXGrad` has, which take the gradients one by one.
    calls_per_step: int = 1
    changes_step: bool = True  # whether the value may change during a run
    uses_power: bool = False  # whether steps can be divided by powers of gradient sizes
    uses_matrices: bool = False  # whether it makes matrix-shaped steps
    theorem: tuple[str, ...] = ()  # names of the methods whose theorem covers this optimizer

    def build(
        self,
        params: Any,
        values: Mapping[str, float],
        coordinates: Any = None,
        matrices: Collection[int] = (),
    ) -> Any:
        """Return an optimizer of the parameters with these values, including the searched one."""
        make = resolve_name(self.make) if isinstance(self.make, str) else self.make
        keywords = {**dict(self.options), **values}
        keywords.pop("power", None)  # is part of the coordinates
        if self.uses_power:
            keywords["coordinates"] = coordinates
        if self.uses_matrices:
            keywords["matrices"] = matrices
        return make(params, **keywords)


_HOME = "grasp_tune.optimizers"
_ENTRIES: dict[str, BaseOptimizer] = {}


def register(entry: BaseOptimizer) -> BaseOptimizer:
    """Add an optimizer to the registry and return it; its name must be new and have no colon."""
    if entry.name in _ENTRIES or ":" in entry.name or not entry.name:
        raise InputError(f"base: {entry.name!r} is taken, or no name for an optimizer")
    _ENTRIES[entry.name] = entry
    return entry


def _add(name: str, make: str, **known: Any) -> None:
    register(BaseOptimizer(name=name, make=make, **known))


_add("sgd", "torch.optim:SGD", from_distance=gradient_step, theorem=("nonconvex",))
_add(
    "unixgrad",
    f"{_HOME}.unixgrad:UniXGrad",
    value="radius",
    quantity="radius",
    from_distance=whole_distance,
    group_entry=None,
    calls_per_step=2,
    changes_step=False,  # the radius is the size of its domain
    theorem=("convex", "convex-free", "deterministic"),
)
_add(
    "adagrad",
    f"{_HOME}.adagrad:DiagonalAdaGrad",
    value="distance",
    quantity="distance",
    from_distance=coordinate_distance,
    group_entry="distance",
    uses_power=True,
)
_add("adam", f"{_HOME}.adam:CoordinateAdam", uses_power=True)
_add("muon", f"{_HOME}.muon:MatrixAdam", uses_matrices=True)
_MOMENTUM = (("momentum", 0.9), ("nesterov", True))
_add("momentum", "torch.optim:SGD", from_distance=gradient_step, options=_MOMENTUM)
_add("adamw", "torch.optim:AdamW")


def optimizer_names() -> tuple[str, ...]:
    return tuple(_ENTRIES)


def described(name: str) -> BaseOptimizer:
    """Return an optimizer's entry by name; an entry with defaults for the user's own functions."""
    return _ENTRIES.get(name) or BaseOptimizer(name=name, make="", value="value")


def find_optimizer(name: str, own: Mapping[str, Factory]) -> BaseOptimizer:
    """Return the optimizer called `name`: one of the user's `own` functions, or registered."""
    if name not in own:
        expect(name in _ENTRIES, "base", repr(name), f"one of {', '.join(sorted(_ENTRIES))}")
        return _ENTRIES[name]

    def make(params: Any, **values: float) -> Any:
        optimizer = own[name](params, next(iter(values.values())))
        if not hasattr(optimizer, "param_groups"):
            kind = type(optimizer).__name__
            raise InputError(f"base: {name} returned {kind}, expected a torch Optimizer")
        return optimizer

    return BaseOptimizer(name=name, make=make, value="value")


def theorem_optimizer(method: str) -> str:
    return next(entry.name for entry in _ENTRIES.values() if method in entry.theorem)


def check_base(base: object) -> None:
    """Raise InputError unless `base` is a known name, a function, or None (the default)."""
    if not (base is None or callable(base) or (isinstance(base, str) and base in _ENTRIES)):
        names = ", ".join(map(repr, _ENTRIES))
        wanted = f"one of {names}, a function (params, value), or None"
        raise InputError(f"base={base!r} must be {wanted}")


def written_base(base: Base) -> str | None:
    """Return the name of a base; a function's has a colon: `module:qualified.name`."""
    if base is None or isinstance(base, str):
        return base
    named = base if hasattr(base, "__qualname__") else type(base)
    return f"{named.__module__}:{named.__qualname__}"


def own_functions(
    base: Base, challengers: Mapping[str, Any] | tuple[str, ...]
) -> dict[str, Factory]:
    """Return the user's own optimizers by the names that tasks use."""
    found: dict[str, Factory] = {str(written_base(base)): base} if callable(base) else {}
    if isinstance(challengers, Mapping):
        found.update({name: make for name, make in challengers.items() if callable(make)})
    for name in challengers:
        find_optimizer(name, found)  # raises for an unknown name
    return found
