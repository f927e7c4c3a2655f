"""The base optimizers by name: what a step of each costs, and which one a schedule takes.

What they compute is the torch side's business. A base may also be a function
`(params, value) -> Optimizer`; it is then known by its qualified name only.
"""

from collections.abc import Callable, Mapping
from typing import Any

from grasp_tune.core.errors import InputError

# Oracle calls of one iteration. The one place for the names.
CALLS_PER_ITERATION: Mapping[str, int] = {
    "sgd": 1,
    "unixgrad": 2,
    "adagrad": 1,
    "adam": 1,
    "growing": 1,
    "momentum": 1,
    "adamw": 1,
}
BASES = tuple(CALLS_PER_ITERATION)

# Bases whose number may change in the middle of a run. UniXGrad's is the size of its domain.
_FIXED = ("unixgrad",)

# What `schedule="promote"` runs where no base was chosen: first the one whose number is a share of
# a distance that it measures itself, so that there is no range to search; where that fails, and
# beside challengers, a search with the other.
GROWING = "growing"
PROMOTED = "adam"

_QUANTITY: Mapping[str, str] = {
    "unixgrad": "radius",
    "adagrad": "distance",
    "growing": "distance share",
}

# Any: the parameters and the optimizer are torch's, which this layer never loads.
BaseFactory = Callable[[Any, float], Any]
Base = str | BaseFactory | None


def quantity(base: str) -> str:
    """Return what the number of a base is called."""
    return _QUANTITY.get(base, "step size")


def check_base(base: object) -> None:
    """Raise InputError unless `base` is a known name, a function, or None (the default)."""
    if base is None or callable(base) or (isinstance(base, str) and base in BASES):
        return
    names = ", ".join(map(repr, BASES))
    raise InputError(f"base={base!r} must be one of {names}, a function (params, value), or None")


def written_base(base: Base) -> str | None:
    """Return the name of a base; a function's has a colon: `module:qualified.name`."""
    if base is None or isinstance(base, str):
        return base
    named = base if hasattr(base, "__qualname__") else type(base)
    return f"{named.__module__}:{named.__qualname__}"


def chosen_base(base: Base, paper: str, schedule: str) -> str:
    """Return the name of the base that `schedule` runs, `paper` being the paper's own."""
    name = written_base(base)
    if name is not None:
        return name
    return paper if schedule == "paper" else PROMOTED


def changes_step(base: str) -> bool:
    """Return whether a run of this base can go on with another number."""
    return base not in _FIXED


def calls_per_iteration(base: Base, paper: str) -> int:
    """Return what one iteration costs, in oracle calls, with the paper's base as the default.

    A function counts as 1: what its optimizer asks of the closure is only known when it runs.
    """
    base = paper if base is None else base
    return CALLS_PER_ITERATION[base] if isinstance(base, str) else 1
