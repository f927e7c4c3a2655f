"""The paper's formulas by hand, and as instances of self-bounding."""

import math
import sys
from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core import bounds
from grasp_tune.core.bounds import geometric_count, geometric_values, self_bound
from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import _root

inputs = st.floats(-12.0, 12.0).map(lambda power: 10.0**power)
budgets = st.integers(1, 10**15)


def geometric_grid(low: float, high: float) -> tuple[float, ...]:
    """Return the whole grid of a range."""
    return geometric_values(low, geometric_count(low, high))


def test_geometric_grid_by_hand() -> None:
    # 2 * 3 = 6, then 12, 24 are below 40; 48 is the first at or above it.
    assert geometric_grid(3.0, 40.0) == (6.0, 12.0, 24.0, 48.0)


def test_geometric_grid_has_a_point_where_the_range_is_one_value() -> None:
    assert geometric_grid(0.7, 0.7) == (1.4,)


def test_geometric_count_takes_rounding_errors_for_what_they_are() -> None:
    # 0.1 * 6.4 rounds to 0.6400000000000001, a hair above 64 * 0.01: still 2^6.
    assert 0.1 * 6.4 > 0.64
    assert geometric_count(0.01, 0.1 * 6.4) == 6
    assert geometric_count(0.01, 0.64 * (1 + 1e-12)) == 7  # no rounding error is that large


@given(low=inputs, power=st.integers(1, 80), ulps=st.integers(-8, 8))
def test_geometric_count_is_right_at_powers_of_two(low: float, power: int, ulps: int) -> None:
    high = low * 2.0**power * (1 + ulps * sys.float_info.epsilon)
    assert geometric_count(low, high) == power


@given(low=st.floats(1e-300, 1e300), high=st.floats(1e-300, 1e300))
def test_geometric_count_agrees_with_exact_fractions(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    goal, reach, count = Fraction(high) / (1 + Fraction(1, 10**14)), Fraction(low) * 2, 1
    while reach < goal:
        reach, count = reach * 2, count + 1
    # The tolerance itself is a double; leave out what lies within a rounding of it.
    if abs(reach / goal - 1) > 1e-15 and abs(reach / 2 / goal - 1) > 1e-15:
        assert geometric_count(low, high) == count


def test_geometric_count_spans_all_doubles() -> None:
    # From 2^-1074 to just below 2^1024.
    assert geometric_count(5e-324, sys.float_info.max) == 1074 + 1024


@given(low=st.floats(1e-6, 1e6), span=st.floats(1.0, 1e6), power=st.integers(-20, 20))
def test_geometric_grid_covers_the_range_in_any_unit(low: float, span: float, power: int) -> None:
    high, unit = low * span, 2.0**power  # powers of two scale floats exactly
    grid = geometric_grid(low, high)
    assert grid[-1] >= high * (1 - 1e-14)
    assert len(grid) == 1 or grid[-2] < high  # no wasted cell
    assert geometric_grid(unit * low, unit * high) == tuple(unit * value for value in grid)


def test_geometric_values_stop_at_the_largest_double() -> None:
    # 3e307 doubles to 6e307 and 1.2e308; 2.4e308 is beyond 1.8e308.
    assert bounds.geometric_values(3e307, 10) == (6e307, 1.2e308)
    assert bounds.geometric_values(3e307, 1) == (6e307,)
    assert bounds.geometric_values(1.7e308, 3) == ()


@pytest.mark.parametrize(
    ("delta", "draws"),
    # 2^4 = 16 < 20 <= 32; 3.33 <= 4; exact powers; 512 < 1000 <= 1024.
    [(0.05, 5), (0.3, 2), (0.25, 2), (0.125, 3), (0.001, 10)],
)
def test_trajectory_draws_by_hand(delta: float, draws: int) -> None:
    assert geometric_count(delta, 1.0) == draws


@pytest.mark.parametrize(
    ("budget", "count"),
    # 31622776^2 = 999999961946176 is below 10^15, so one more.
    [
        (1, 1),
        (2, 2),
        (16, 4),
        (17, 5),
        (10**12, 10**6),
        (10**12 + 1, 10**6 + 1),
        (10**15, 31622777),
    ],
)
def test_convex_free_counts_the_root_rounded_up(budget: int, count: int) -> None:
    assert _root(budget) == count


def test_step_range_by_hand() -> None:
    # |g0| = 0.5, T = 1000, L_eps = 0.1, F_eps = 0.2, delta = 0.1:
    # L_max = 0.25 * 1000 / 0.2 = 1250,
    # Delta_max^2 = 250 / ln 10 = 250 / 2.302585093 = 108.5736205.
    # eta_min: 1 / 2500 = 4e-4 against
    # sqrt(0.4 / (1250 * 108.5736205 * 1000)) = sqrt(2.9473092e-9) = 5.42891e-5.
    assert bounds.step_min(0.5, 1000, 0.1, 0.2, 0.1) == pytest.approx(5.42891e-5, rel=1e-5)


def test_step_min_may_be_the_smoothness_term() -> None:
    # |g0| = 0.01, T = 10: L_max = 1e-4 * 10 / 4 < L_eps = 2, so the first term is 1/4;
    # the second is sqrt(8 / (2 * (1e-3 / ln 5) * 10)) = sqrt(643.8) = 25.4.
    assert bounds.step_min(0.01, 10, 2.0, 4.0, 0.2) == 0.25


def test_a_tiny_gradient_norm_is_not_lost_by_squaring() -> None:
    # 1e-200 squared is no double, but T / F_eps = 1e190 brings L_max back to 1e-210. The second
    # term is sqrt(2 F_eps log(1/delta) / L_max) / |g0| / T = sqrt(2 * 1e-180 * 2.302585 / 1e-210)
    # / 1e-200 / 1e10, far above the first, 1 / (2 L_max).
    assert bounds.step_min(1e-200, 10**10, 1e-250, 1e-180, 0.1) == pytest.approx(
        min(0.5e210, math.sqrt(4.605170186e30) * 1e190), rel=1e-9
    )
    assert bounds.step_min(1e-200, 10**4, 0.5, 1e-2, 0.05) == 1.0


def test_distance_bounds_by_hand() -> None:
    # 0.3 * 1000^2 / 2 = 150000; 3 * 1000^2 / 2 = 1.5e6; floors where the probe is small.
    assert bounds.distance_max(0.3, 1000, 0.05, 2.0) == pytest.approx(150_000.0, rel=1e-15)
    assert bounds.distance_max(3.0, 1000, 1.0, 2.0) == pytest.approx(1.5e6, rel=1e-15)
    assert bounds.distance_max(1e-9, 10, 0.05, 2.0) == 0.05


def test_budgets_by_hand() -> None:
    # 1 + ln 8 = 3.0794415: 1000 / 6.158883 = 162.37.
    assert bounds.harmonic_calls(1000, 2, 8) == 162
    assert bounds.harmonic_calls(1000, 2, 1) == 500  # ln 1 = 0
    assert bounds.square_calls(1000, 2) == 303  # 3000 / 9.8696 = 303.96


@given(
    budget=budgets, count=st.integers(2, 10**6), parts=st.integers(1, 4), cell=st.integers(1, 99)
)
def test_budgets_are_exact_floors(budget: int, count: int, parts: int, cell: int) -> None:
    # The formula as printed, with 100 digits, against dividing the first cell's whole calls.
    with_digits = Context(prec=100)
    share = with_digits.multiply(parts * cell, with_digits.add(1, with_digits.ln(count)))
    printed = int(with_digits.divide(Decimal(budget), share))
    assert bounds.harmonic_calls(budget, parts, count) // cell == printed
    # pi^2 lies between these two fractions, which agree to 39 digits.
    low = Fraction(9869604401089358618834490999876151135313, 10**39)
    high = low + Fraction(1, 10**39)
    floors = {math.floor(6 * budget / (parts * square * cell**2)) for square in (low, high)}
    assert bounds.square_calls(budget, parts) // cell**2 in floors


@given(norm=inputs, budget=budgets, L_eps=inputs, F_eps=inputs, delta=st.floats(1e-6, 0.33))
def test_bounds_of_grasp_nc_are_instances_of_self_bounding(
    norm: float, budget: int, L_eps: float, F_eps: float, delta: float
) -> None:
    # The three terms of the proof of Theorem 2: L F_eps / T, L_eps F / T, Delta^2 log(1/delta) / T,
    # each against the squared norm of the gradient at x0.
    benchmark = norm**2
    floor = 1e-300
    assert self_bound(lambda L: L * F_eps / budget, benchmark, floor) == pytest.approx(
        norm * (norm * budget / F_eps), rel=1e-13
    )
    assert self_bound(lambda F: L_eps * F / budget, benchmark, floor) == pytest.approx(
        norm * (norm * budget / L_eps), rel=1e-13
    )
    odds = math.log(1 / delta)
    assert self_bound(lambda square: square * odds / budget, benchmark, floor) == pytest.approx(
        norm * norm * budget / odds, rel=1e-13
    )


@given(norm=inputs, budget=budgets, L_eps=inputs, d_eps=inputs)
def test_bounds_of_grasp_c_are_instances_of_self_bounding(
    norm: float, budget: int, L_eps: float, d_eps: float
) -> None:
    # Option I and the deterministic case: L_eps d^2 / T^2 against |g0| d.
    smooth = self_bound(lambda d: L_eps * d**2 / budget**2, lambda d: norm * d, d_eps)
    closed = bounds.distance_max(norm, budget, d_eps, L_eps)
    assert smooth == pytest.approx(closed, rel=1e-13)
    # Option II: from d >= 1 on, the rate is at least L_eps d / T^2 for every Hölder exponent.
    universal = self_bound(lambda d: L_eps * d / budget**2, norm, max(1.0, d_eps))
    closed = bounds.distance_max(norm, budget, max(1.0, d_eps), L_eps)
    assert universal == pytest.approx(closed, rel=1e-13)


@given(budget=st.integers(2, 400_000), d_eps=inputs)
def test_bound_without_value_floor_is_an_instance_of_self_bounding(
    budget: int, d_eps: float
) -> None:
    # Theorem 5's rate is the benchmark L d^(1+nu) times a power of log2(d/d_eps)^2 / T.
    furthest = self_bound(lambda d: math.log2(d / d_eps) ** 2 / budget, 1.0, d_eps)
    assert math.log2(furthest / d_eps) == pytest.approx(math.sqrt(budget), rel=1e-12)
    if math.isqrt(budget) ** 2 != budget:  # at a square the logarithm's rounding decides
        assert geometric_count(d_eps, furthest) == _root(budget)


def test_self_bound_finds_the_last_double_that_passes() -> None:
    found = self_bound(lambda p: p, 0.7, 1e-12)
    assert found == 0.7  # the identity is exact, so is the answer
    assert self_bound(lambda p: 3.0 if p > 1e-200 else 1.0, 2.0, 1e-300) == 1e-200


def test_self_bound_passes_over_plateaus() -> None:
    stairs = self_bound(lambda p: math.floor(p / 10.0), 4.0, 0.5)
    assert stairs == math.nextafter(50.0, 0.0)


def test_self_bound_is_the_floor_where_the_target_is_worse_at_once() -> None:
    assert self_bound(lambda p: p + 5.0, 1.0, 0.25) == 0.25


def test_self_bound_is_infinite_where_the_target_is_never_worse() -> None:
    assert self_bound(lambda p: p / (1.0 + p), 1.0, 0.1) == math.inf
    assert self_bound(lambda p: 2.0 * p, lambda p: 3.0 * p, 0.1) < math.inf  # 2p overflows first


@pytest.mark.parametrize("beyond", [math.inf, math.nan])
def test_self_bound_takes_infinite_and_nan_targets_for_exceeded(beyond: float) -> None:
    assert self_bound(lambda p: 0.0 if p <= 8.0 else beyond, 1.0, 0.1) == 8.0
    assert self_bound(lambda p: 0.0 if p <= 8.0 else beyond, math.inf, 0.1) == 8.0


def test_self_bound_survives_overflow_in_a_power() -> None:
    with pytest.raises(OverflowError):
        _ = (1e200) ** 2.0  # what the target below runs into
    assert self_bound(lambda p: p**2.0, 9.0, 1e-3) == 3.0
    assert self_bound(lambda p: 1.0, lambda p: p**2.0, 2.0) == math.inf


@pytest.mark.parametrize("floor", [-1.0, math.inf, math.nan])
def test_self_bound_refuses_a_bad_floor(floor: float) -> None:
    with pytest.raises(InputError, match="floor="):
        self_bound(lambda p: p, 1.0, floor)


def test_self_bound_refuses_a_benchmark_that_is_no_number() -> None:
    with pytest.raises(InputError, match="benchmark is NaN"):
        self_bound(lambda p: p, math.nan, 1.0)


@given(scale=inputs, power=st.floats(0.5, 3.0), benchmark=inputs, floor=inputs)
def test_self_bound_is_the_boundary(
    scale: float, power: float, benchmark: float, floor: float
) -> None:
    def target(p: float) -> float:
        return scale * p**power

    found = self_bound(target, benchmark, floor)
    assert found >= floor
    assert found == floor or target(found) <= benchmark
    assert target(math.nextafter(found, math.inf)) > benchmark
