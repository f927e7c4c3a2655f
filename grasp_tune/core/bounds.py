r"""The paper's formulas, one function each, and self-bounding in its general form.

Ranges are floats, arranged so that no intermediate result leaves the doubles while the result is
inside them; budgets are integers, exact for any `budget`. Inputs are checked by `methods`.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np

from grasp_tune.core.errors import InputError, number

Rate = Callable[[float], float]
LARGEST = sys.float_info.max
NEAR = 1e-14  # a ratio this close to a power of two counts as that power
_EXACT = Context(prec=60)  # digits
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")


def geometric_count(low: float, high: float) -> int:
    r"""Return N, the least n >= 1 with `low` 2^n >= `high`.

    Algorithm 2, line 4: $N = \lceil \log_2(\eta_{\max}/\eta_{\min}) \rceil$ and
    $K = \lceil \log_2(1/\delta) \rceil$; Algorithms 1 and 3 likewise for distances. Departures: at
    least one point even where low = high; a ratio within a relative `NEAR` of a power of two counts
    as that power, since a rounding error (0.01 is not exact) must not cost a whole cell.
    """
    # Mantissas lie in [1/2, 1): their ratio decides between three exponents, without a logarithm.
    (low_part, low_power), (high_part, high_power) = math.frexp(low), math.frexp(high)
    ratio = high_part / low_part / (1.0 + NEAR)
    carry = 1 if ratio > 1.0 else 0 if ratio > 0.5 else -1
    return max(1, high_power - low_power + carry)


def geometric_values(low: float, count: int) -> tuple[float, ...]:
    r"""Return the grid: `low` 2^i for i = 1..`count`, without those beyond the largest double.

    Algorithm 2, line 6: $\eta_i = \eta_{\min} 2^i$. Algorithms 1 and 3, $D_i = d_\epsilon 2^i$.
    """
    doublings = sys.float_info.max_exp - math.frexp(low)[1]
    powers = np.arange(1, min(count, doublings) + 1)
    return tuple(np.ldexp(low, powers).tolist())  # exact, and a thousand cells at once


def step_min(grad_norm: float, budget: int, L_eps: float, F_eps: float, delta: float) -> float:
    r"""Return the smallest step size worth trying: Algorithm 2, line 3.

    $\eta_{\min} = \min\{ 1/(2\hat L), \sqrt{2 F_\epsilon / (\hat L \Delta_{\max}^2 T)} \}$, where
    (1) $\hat L = \max\{L_\epsilon, \|\hat g^0\|^2 T / F_\epsilon\}$, and
    (2) $\Delta_{\max} = \|\hat g^0\| \sqrt{T/\log(1/\delta)}$. The root is taken factor by factor,
    so that neither $\Delta_{\max}^2$ nor the product below the line has to be a double.
    """
    # (1); not squared first: 1e-200 would vanish
    smoothness = max(L_eps, grad_norm * (grad_norm * budget / F_eps))
    noise = grad_norm * math.sqrt(budget / -math.log(delta))  # (2)
    if noise == 0.0:  # no noise bound, hence no second term: the probe saw no gradient
        return 0.5 / smoothness
    by_noise = math.sqrt(2.0 * F_eps) / math.sqrt(smoothness) / math.sqrt(budget) / noise
    return min(0.5 / smoothness, by_noise)


def distance_max(slope: float, budget: int, least: float, L_eps: float) -> float:
    r"""Return how far the optimum may be.

    Algorithm 3, line 3, Option I: $d_{\max} = \max\{d_\epsilon, \|\hat g^0\| T^2 / L_\epsilon\}$;
    Algorithm 1, line 1 likewise, with the exact gradient. Option II:
    $d_{\max} = \max\{1, d_\epsilon, (\hat\ell^0-\ell_\epsilon^\star) T^2 / L_\epsilon\}$.
    """
    return max(least, slope * budget / L_eps * budget)


# Budgets are whole oracle calls. floor(x / n) = floor(floor(x) / n) for a whole n, so the
# irrational part of each formula is rounded down once, and the cells divide an integer.


def harmonic_calls(calls: int, parts: int, count: int) -> int:
    r"""Return floor(`calls` / (`parts` (1 + ln N))), the budget of cell 1; cell i has 1/i.

    Algorithm 3, line 5: $\lfloor T/(2i(1+\ln N)) \rfloor$; Algorithm 1, line 3 without the 2.
    """
    return int(_EXACT.divide(calls, _EXACT.multiply(parts, _EXACT.add(1, _EXACT.ln(count)))))


def square_calls(calls: int, parts: int) -> int:
    r"""Return floor(6 `calls` / (`parts` pi^2)), the budget of cell 1; cell i has 1/i^2 of it.

    Algorithm 4, line 4: $\lfloor 3T/(\pi^2 i^2) \rfloor$, which is `parts` = 2.
    """
    return int(_EXACT.divide(6 * calls, _EXACT.multiply(parts, _EXACT.multiply(_PI, _PI))))


def self_bound(target: Rate, benchmark: float | Rate, floor: float) -> float:
    r"""Return the largest p >= `floor` with `target`(p) <= `benchmark`.

    Section 3.1: $p_{\max} = \arg\max_p \{\epsilon^{BM} \ge \epsilon^{TAR}(T, \dots, p, \dots)\}$,
    the other unknowns at their floors; $[p_\epsilon, \max\{p_\epsilon, p_{\max}\}]$ is worth
    searching. The answer is exact: the last double that passes; inf where the target never exceeds.

    target: a rate that does not decrease; one that is infinite, NaN or overflows has exceeded.
    benchmark: a number, or a rate that, once exceeded, stays exceeded.
    floor: the answer where no p passes.
    """
    floor = number("floor", floor, "0 or above", lambda value: value >= 0.0)
    if not callable(benchmark) and math.isnan(benchmark):
        raise InputError("benchmark is NaN; it must be a number or a function of the unknown")

    def at(rate: float | Rate, p: float) -> float:
        try:
            return rate(p) if callable(rate) else rate
        except OverflowError:  # such as p**2 for a huge p
            return math.inf

    def passes(p: float) -> bool:
        reached = at(target, p)
        return reached < math.inf and reached <= at(benchmark, p)

    def float_of(bits: int) -> float:
        return float(np.int64(bits).view(np.float64))

    if not passes(floor):
        return floor
    if passes(LARGEST):
        return math.inf
    # Positive doubles are ordered as their bit patterns: halving those takes at most 63 steps
    # whatever the span, and ends on neighbours.
    bits = range(*np.array([floor + 0.0, LARGEST]).view(np.int64).tolist())
    return float_of(bits[bisect_left(bits, True, key=lambda at: not passes(float_of(at))) - 1])
