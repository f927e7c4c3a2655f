"""How the best step changes with the length of a run, from a few rungs."""

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.schedules.promote import Promote
from grasp_tune.schedules.step_extrapolation import StepLosses, StepTrend, step_trend

OPTIONS = Promote()
LEAST, SLOPE, SPREAD = OPTIONS.least_error, OPTIONS.slope, OPTIONS.slope_spread

STEPS = (0.02, 0.08, 0.32)
START = 5.0


def bowl(lowest: float, *, bend: float = 0.3, best: float = 0.7) -> Callable[[float], float]:
    """A loss whose log is a parabola in the log of the step."""
    return lambda step: best * math.exp(bend * math.log(step / lowest) ** 2)


def rung(length: int, loss: Callable[[float], float], noise: float = 0.0) -> StepLosses:
    return StepLosses(length, {step: loss(step) for step in STEPS}, noise)


def seen(*rungs: StepLosses, start: float = START) -> StepTrend:
    found = step_trend(rungs, start, OPTIONS)
    assert found is not None
    return found


def test_at_by_hand() -> None:
    # 0.3 * 9 ** -0.5 = 0.3 / 3.
    assert StepTrend(0.3, -0.5).at(9.0) == pytest.approx(0.1)
    assert StepTrend(0.3, 0.0).at(9.0) == 0.3


@pytest.mark.parametrize("bend", [0.05, 0.3, 1.0])
def test_a_symmetric_bowl_has_its_lowest_point_in_the_middle(bend: float) -> None:
    # The same loss at 0.08 / 4 and 0.08 * 4: whatever the bend, no side is favoured.
    assert seen(rung(100, bowl(0.08, bend=bend))).step == pytest.approx(0.08, rel=1e-6)


@pytest.mark.parametrize("lowest", [0.05, 0.08, 0.11])
def test_three_losses_on_a_parabola_give_its_lowest_point(lowest: float) -> None:
    found = seen(rung(100, bowl(lowest, bend=0.5)))
    assert math.log(found.step / lowest) == pytest.approx(0.0, abs=0.15)


def test_a_best_step_that_moves_with_the_length_gives_the_slope_its_sign() -> None:
    # From 100 to 1600 calls the lowest point goes from 0.16 to 0.04: 16 ** beta = 1/4.
    falling = seen(rung(100, bowl(0.16)), rung(400, bowl(0.08)), rung(1600, bowl(0.04)))
    rising = seen(rung(100, bowl(0.04)), rung(400, bowl(0.08)), rung(1600, bowl(0.16)))
    still = seen(rung(100, bowl(0.08)), rung(400, bowl(0.08)), rung(1600, bowl(0.08)))
    assert falling.slope == pytest.approx(-0.5, abs=0.1)
    assert 0.2 < rising.slope < 0.5  # drawn towards what is expected, which is far from +0.5
    assert falling.slope < SLOPE < still.slope < rising.slope
    assert falling.at(4.0) < falling.step and rising.at(4.0) > rising.step


def test_one_rung_leaves_the_slope_where_it_was_expected() -> None:
    assert seen(rung(100, bowl(0.04))).slope == pytest.approx(SLOPE, abs=1e-9)


def test_one_step_says_nothing_and_is_kept() -> None:
    found = seen(StepLosses(100, {0.3: 1.2}, 0.0), StepLosses(700, {0.3: 0.8}, 0.0))
    assert found.step == pytest.approx(0.3) and found.slope == pytest.approx(SLOPE, abs=1e-9)


def test_flat_or_noisy_losses_leave_the_slope_near_where_it_was_expected() -> None:
    flat = seen(*(rung(length, lambda step: 0.7) for length in (100, 400, 1600)))
    assert flat.slope == pytest.approx(SLOPE, abs=0.3 * SPREAD)
    lowest = {100: 0.04, 400: 0.08, 1600: 0.16}
    sharp = seen(*(rung(length, bowl(at, bend=0.05)) for length, at in lowest.items()))
    noisy = seen(*(rung(length, bowl(at, bend=0.05), 9.0) for length, at in lowest.items()))
    assert abs(noisy.slope - SLOPE) < 0.3 * abs(sharp.slope - SLOPE)


def test_only_the_last_three_rungs_count() -> None:
    last = [rung(length, bowl(0.08)) for length in (200, 400, 1600)]
    assert seen(rung(50, bowl(0.9)), *last) == seen(*last)


losses = st.fixed_dictionaries({step: st.floats(0.1, 4.0) for step in STEPS})


@given(first=losses, last=losses, power=st.integers(-40, 40))
def test_the_unit_of_the_step_does_not_matter(
    first: Mapping[float, float], last: Mapping[float, float], power: int
) -> None:
    unit = 2.0**power

    def scaled(values: Mapping[float, float]) -> dict[float, float]:
        return {unit * step: loss for step, loss in values.items()}

    found = seen(StepLosses(70, first, 0.01), StepLosses(900, last, 0.01))
    other = seen(StepLosses(70, scaled(first), 0.01), StepLosses(900, scaled(last), 0.01))
    assert other.step == pytest.approx(unit * found.step, rel=1e-6)
    assert other.slope == pytest.approx(found.slope, abs=1e-6)


@given(first=losses, last=losses, power=st.integers(-40, 40))
def test_the_unit_of_the_loss_does_not_matter(
    first: Mapping[float, float], last: Mapping[float, float], power: int
) -> None:
    unit = 2.0**power

    def scaled(values: Mapping[float, float]) -> dict[float, float]:
        return {step: unit * loss for step, loss in values.items()}

    found = seen(StepLosses(70, first, 0.01), StepLosses(900, last, 0.01))
    other = seen(
        StepLosses(70, scaled(first), 0.01 * unit),
        StepLosses(900, scaled(last), 0.01 * unit),
        start=START * unit,
    )
    assert (other.step, other.slope) == pytest.approx((found.step, found.slope), rel=1e-9)


def test_negative_losses_have_a_lowest_point_too() -> None:
    found = seen(StepLosses(100, {0.02: -2.0, 0.08: -3.0, 0.32: -2.0}, 0.0), start=1.0)
    assert found.step == pytest.approx(0.08, rel=1e-6)
    left = seen(StepLosses(100, {0.02: -3.0, 0.08: -2.5, 0.32: -1.0}, 0.0), start=1.0)
    assert left.step < 0.05


def test_runs_that_diverged_are_left_out() -> None:
    half = {0.02: 0.9, 0.08: 0.7}
    with_one = seen(StepLosses(100, {**half, 0.32: math.nan}, 0.0), StepLosses(300, half, 0.0))
    without = seen(StepLosses(100, half, 0.0), StepLosses(300, half, 0.0))
    assert with_one == without


def test_nothing_finite_gives_no_trend() -> None:
    assert step_trend([], START, OPTIONS) is None
    assert step_trend([StepLosses(100, {}, 0.0)], START, OPTIONS) is None
    assert (
        step_trend([StepLosses(100, {0.1: math.nan, 0.4: math.inf}, 0.0)], START, OPTIONS) is None
    )


@given(
    values=st.lists(
        st.sampled_from([0.0, 1e-320, 1e-200, 1e-9, 1.0, 3.0, 1e200, 1e308, -1e308, -1.0]),
        min_size=3,
        max_size=3,
    ),
    noise=st.sampled_from([0.0, 1e-300, LEAST, 1.0, 1e200]),
    start=st.sampled_from([0.0, 1.0, -1.0, 1e300, math.inf, math.nan]),
)
def test_losses_of_any_size_give_a_step_between_those_tried(
    values: list[float], noise: float, start: float
) -> None:
    # A hinge loss may be exactly 0, and nothing is a multiple of that.
    found = seen(StepLosses(100, dict(zip(STEPS, values, strict=True)), noise), start=start)
    assert STEPS[0] / 2.1 < found.step < STEPS[-1] * 2.1
    assert abs(found.slope - SLOPE) <= 4 * SPREAD
