"""The errors of the package, each also the built-in that it resembles, and checks of inputs."""

import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any


class GraspError(Exception):
    """The root: whatever the package raises on purpose."""


class InputError(GraspError, ValueError):
    """An input that cannot be right; the message says what was given and what would be right."""


class PlanError(InputError):
    """A plan that cannot be made or read."""


class BudgetTooSmall(PlanError):
    """A budget that does not reach, with the smallest one that does."""

    def __init__(self, message: str, smallest: int = 0) -> None:  # pickle gives the first alone
        super().__init__(message)
        self.smallest = smallest  # oracle calls; never below the budget that was refused


class ProblemError(InputError):
    """A problem (model, loss, data) that cannot be minimised as given."""


class SearchError(GraspError, RuntimeError):
    """A search that was used out of order, or that cannot go on."""


class CheckpointError(GraspError, RuntimeError):
    """A checkpoint that is missing, damaged, or belongs to another run."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key  # the checkpoint that could not be read, so that it can be made again


class DamagedState(CheckpointError):
    """A state file of ours of which nothing can be used: what it knew has to be done again."""


class LockedError(GraspError, RuntimeError):
    """A folder that another process is using."""


class MissingExtra(GraspError, ImportError):
    """An optional dependency that is not installed; the message names the extra to install."""


def expect(fine: bool, name: str, got: object, wanted: str, kind: Any = InputError) -> None:
    """Raise an error that says what was given and what would be right, unless it is `fine`."""
    if not fine:
        raise kind(f"{name}: got {got}, expected {wanted}")


Fits = Callable[[float], bool]


def number(name: str, given: object, wanted: str = "", fits: Fits = math.isfinite) -> float:
    """Return `given` as a finite float that `fits`; `wanted` says which ones do."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise InputError(f"{name}={given!r} must be a number")
    try:
        value = float(given)
    except OverflowError:  # an int beyond the largest double
        value = math.inf
    if not math.isfinite(value) or not fits(value):
        words = wanted if math.isfinite(value) else "a finite number"
        raise InputError(f"{name}={given!r} must be {words}")
    return value


def misfit(function: Callable[..., object], *given: object, **options: object) -> str:
    """Return why a function cannot be called with these arguments; empty if it can."""
    try:
        inspect.signature(function).bind(*given, **options)
    except TypeError as error:
        return str(error)
    except ValueError:  # one in C does not say
        pass
    return ""


def whole(name: str, given: Any, low: int | None = 1, high: int | None = None) -> int:
    """Return `given` as an int within limits; NumPy's integers will do, booleans will not."""
    counts = isinstance(given, Integral) and not isinstance(given, bool)
    if not counts or (low is not None and given < low) or (high is not None and given > high):
        least = "" if low is None else f" >= {low}"
        most = "" if high is None else f" and <= {high}"
        raise InputError(f"{name}: got {given!r}, expected a whole number{least}{most}")
    return int(given)
