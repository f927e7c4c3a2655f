"""Checks for what a person gives: each returns the value, or says what would be right."""

import math
from collections.abc import Collection
from fractions import Fraction
from numbers import Integral, Real

from grasp_tune.core.errors import InputError

LARGEST_BUDGET = 2**63 - 1  # what a 64-bit counter of oracle calls can hold


def number(name: str, given: object) -> float:
    """Return `given` as a finite float."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise InputError(f"{name}={given!r} must be a number")
    try:
        value = float(given)
    except OverflowError:  # an int beyond the largest double
        value = math.inf
    if not math.isfinite(value):
        raise InputError(f"{name}={given!r} must be a finite number")
    return value


def positive(name: str, given: object) -> float:
    """Return `given` as a finite float above zero."""
    if (value := number(name, given)) <= 0.0:
        raise InputError(f"{name}={given!r} must be above 0 (any positive number will do)")
    return value


def not_negative(name: str, given: object) -> float:
    """Return `given` as a finite float, zero or above."""
    if (value := number(name, given)) < 0.0:
        raise InputError(f"{name}={given!r} must be 0 or above")
    return value


def confidence(name: str, given: object, below: Fraction) -> float:
    """Return `given` as a probability of failure in (0, below)."""
    if not 0.0 < (value := number(name, given)) < float(below):  # as doubles: 1/3 is its own limit
        raise InputError(f"{name}={given!r} must be in (0, {below}), for example 0.05")
    return value


def probe_share(name: str, given: object) -> float | None:
    """Return `given` as a share of the budget in (0, 1/2], or None: the default share."""
    if given is not None and not 0.0 < number(name, given) <= 0.5:
        raise InputError(f"{name}={given!r} must be a share of the budget in (0, 1/2], or None")
    return None if given is None else number(name, given)


def one_of(name: str, given: object, choices: Collection[str]) -> str:
    """Return `given`, one of the words `choices`."""
    if not isinstance(given, str) or given not in choices:
        raise InputError(f"{name}={given!r} must be one of {', '.join(map(repr, choices))}")
    return given


def whole_budget(given: object) -> int:
    """Return `given` as a budget T: a whole number of oracle calls, at least 1."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise InputError(f"budget={given!r} must be a whole number of oracle calls, as an int")
    if not 1 <= int(given) <= LARGEST_BUDGET:
        raise InputError(f"budget={given!r} must be between 1 and {LARGEST_BUDGET} oracle calls")
    return int(given)


def as_fraction(share: float) -> Fraction:
    """Return the simplest fraction that is the same double as `share`.

    A person who writes 0.3 or 1/3 means that number: the double's exact binary value lies a hair
    beside it, and rounding down would then lose a whole oracle call.
    """
    simple = Fraction(share).limit_denominator(10**6)
    return simple if float(simple) == share else Fraction(repr(share))
