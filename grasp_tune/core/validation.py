"""Checks for what a person gives: each returns the value, or says what would be right."""

import math
from collections.abc import Callable, Collection
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from grasp_tune.core.errors import InputError

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


def one_of(name: str, given: object, choices: Collection[str]) -> str:
    """Return `given`, one of the words `choices`."""
    if not isinstance(given, str) or given not in choices:
        raise InputError(f"{name}={given!r} must be one of {', '.join(map(repr, choices))}")
    return given


def whole(name: str, given: Any, low: int | None = 1, high: int | None = None) -> int:
    """Return `given` as an int within limits; NumPy's integers will do, booleans will not."""
    counts = isinstance(given, Integral) and not isinstance(given, bool)
    if not counts or (low is not None and given < low) or (high is not None and given > high):
        least = "" if low is None else f" >= {low}"
        most = "" if high is None else f" and <= {high}"
        raise InputError(f"{name}: got {given!r}, expected a whole number{least}{most}")
    return int(given)


def as_fraction(share: float) -> Fraction:
    """Return the simplest fraction that is the same double as `share`.

    Who writes 0.3 means 3/10: the double lies a hair beside it, and rounding down would then lose
    an oracle call.
    """
    simple = Fraction(share).limit_denominator(10**6)
    return simple if float(simple) == share else Fraction(repr(share))
