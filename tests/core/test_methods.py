"""The four variants: plans worked by hand, and what holds for every input."""

import json
import math
import pickle
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from grasp_tune.core.errors import BudgetTooSmall, GraspError, InputError, PlanError
from grasp_tune.core.methods import (
    METHODS,
    Convex,
    ConvexFree,
    Deterministic,
    Method,
    NonConvex,
    as_fraction,
    method_from_dict,
)
from grasp_tune.core.plan import Cell, Plan

inputs = st.floats(-12.0, 12.0).map(lambda power: 10.0**power)
norms = st.one_of(inputs, st.floats(-200.0, 12.0).map(lambda power: 10.0**power), st.just(0.0))
shares = st.one_of(st.none(), st.sampled_from([1 / 4096, 1 / 64, 0.1, 0.25, 1 / 3, 0.5]))
methods = st.one_of(
    st.builds(NonConvex, L_eps=inputs, F_eps=inputs, delta=st.floats(1e-9, 0.333), probe=shares),
    st.builds(
        Convex,
        d_eps=inputs,
        L_eps=inputs,
        option=st.sampled_from(["smooth", "universal"]),
        value_floor=st.just(-2.5),
        probe=shares,
    ),
    st.builds(ConvexFree, d_eps=inputs),
    st.builds(Deterministic, d_eps=inputs, L_eps=inputs),
)
budgets = st.one_of(st.integers(1, 2000), st.integers(1, 10**15))
ensembles = st.sampled_from(["resample", "window"])


def plan_of(method: Method, budget: int, norm: float, value: float, ensemble: str) -> Plan:
    how = "resample" if isinstance(method, Deterministic) else ensemble
    return method.plan(budget, grad_norm=norm, value=value, ensemble=how)


def refused(method: Method, budget: int, norm: float, value: float, how: str) -> int | None:
    """Return the smallest budget that the error names, None where `budget` works."""
    try:
        plan_of(method, budget, norm, value, how)
    except BudgetTooSmall as error:
        return error.smallest
    return None


# ---- by hand ---------------------------------------------------------------------------------


def test_nonconvex_by_hand() -> None:
    # L_max = 0.25 * 1000 / 0.2 = 1250; Delta_max^2 = 250 / ln 10 = 108.5736;
    # eta_min = min(1/2500, sqrt(0.4 / (1250 * 108.5736 * 1000))) = 5.42891e-5, eta_max = 5;
    # 5 / 5.42891e-5 = 92099.5 lies between 2^16 and 2^17: N = 17. K: 8 < 10 <= 16 gives 4.
    plan = NonConvex(L_eps=0.1, F_eps=0.2, delta=0.1).plan(budget=1000, grad_norm=0.5)
    low, high = plan.range
    assert low == pytest.approx(5.42891e-5, rel=1e-5)
    assert high == 5.0
    assert [cell.index for cell in plan.cells] == list(range(1, 18))
    assert [cell.value for cell in plan.cells] == [low * 2.0**i for i in range(1, 18)]
    assert {cell.budget for cell in plan.cells} == {29}  # 1000 / 34 = 29.4
    assert plan.skipped == ()
    assert (plan.probe_gradients, plan.probe_values, plan.probe_calls) == (250, 0, 250)
    assert plan.candidates_per_cell == 4
    assert plan.samples_per_candidate == 3  # 1000 / (4 * 4 * 17) = 3.7
    assert plan.total_calls == 250 + 17 * 29 + 4 * 17 * 3
    assert (plan.score, plan.quantity, plan.ensemble) == ("gradient", "step size", "resample")


def test_nonconvex_with_a_smaller_probe_trains_on_what_it_saves() -> None:
    # M = floor(1000/64) = 15; (3 * 1000/4 - 15) / 17 = 735 / 17 = 43.2; the ensemble is the same.
    plan = NonConvex(L_eps=0.1, F_eps=0.2, delta=0.1, probe=1 / 64).plan(1000, grad_norm=0.5)
    assert plan.probe_calls == 15
    assert {cell.budget for cell in plan.cells} == {43}
    assert plan.samples_per_candidate == 3


def test_nonconvex_with_the_window_trains_on_all_but_the_probe() -> None:
    # (1000 - 250) / 17 = 44.1
    method = NonConvex(L_eps=0.1, F_eps=0.2, delta=0.1)
    plan = method.plan(1000, grad_norm=0.5, ensemble="window")
    assert {cell.budget for cell in plan.cells} == {44}
    assert (plan.candidates_per_cell, plan.samples_per_candidate) == (1, 0)
    assert plan.total_calls == 250 + 17 * 44


def test_convex_smooth_by_hand() -> None:
    # d_max = 0.3 * 10^6 / 2 = 150000; / 0.05 = 3e6 lies between 2^21 and 2^22: N = 22.
    # 1 + ln 22 = 4.0910425; 1000 / (2 * 4.0910425) = 122.218, divided by i and rounded down.
    plan = Convex(d_eps=0.05, L_eps=2.0).plan(1000, grad_norm=0.3)
    assert plan.range[0] == 0.05
    assert plan.range[1] == pytest.approx(150_000.0, rel=1e-15)
    budgets = [122, 61, 40, 30, 24, 20, 17, 15, 13, 12, 11, 10, 9, 8, 8, 7, 7, 6, 6, 6, 5, 5]
    assert plan.cells == tuple(
        Cell(i, 0.05 * 2.0**i, budget) for i, budget in enumerate(budgets, start=1)
    )
    assert (plan.probe_gradients, plan.probe_values) == (125, 125)
    assert (plan.candidates_per_cell, plan.samples_per_candidate) == (1, 11)  # 1000 / 88 = 11.4
    assert plan.total_calls == 250 + 442 + 22 * 11  # the budgets above sum to 442
    assert (plan.score, plan.quantity) == ("value", "radius")


def test_convex_with_another_probe_and_window_by_hand() -> None:
    # probe 0.1: floor(50) of each, M = 100; (750 - 100) / 4.0910425 = 158.88.
    plan = Convex(d_eps=0.05, L_eps=2.0, probe=0.1).plan(1000, grad_norm=0.3)
    assert (plan.probe_gradients, plan.probe_values) == (50, 50)
    assert [cell.budget for cell in plan.cells[:3]] == [158, 79, 52]
    # window: (1000 - 250) / 4.0910425 = 183.33.
    plan = Convex(d_eps=0.05, L_eps=2.0).plan(1000, grad_norm=0.3, ensemble="window")
    assert [cell.budget for cell in plan.cells[:3]] == [183, 91, 61]
    assert plan.samples_per_candidate == 0


def test_convex_universal_by_hand() -> None:
    # gap = 3.5 - 0.5 = 3; d_max = 3 * 10^6 / 2 = 1.5e6; / 0.05 = 3e7 is between 2^24 and 2^25.
    # 1 + ln 25 = 4.2188758; 1000 / 8.4377516 = 118.515. Samples 1000 / 100 = 10.
    method = Convex(d_eps=0.05, L_eps=2.0, option="universal", value_floor=0.5)
    plan = method.plan(1000, value=3.5)
    assert len(plan.cells) == 25
    assert [cell.budget for cell in plan.cells[:4]] == [118, 59, 39, 29]
    assert plan.samples_per_candidate == 10
    assert plan == method.plan(1000, value=3.5, grad_norm=None)


def test_convex_universal_at_the_floor_still_searches_up_to_one() -> None:
    # d_max = max(1, 0.05, 0) = 1 and 1 / 0.05 = 20: N = 5.
    plan = Convex(d_eps=0.05, option="universal").plan(1000, value=0.0)
    assert plan.range == (0.05, 1.0)
    assert len(plan.cells) == 5
    assert not plan.stationary


def test_convex_free_by_hand() -> None:
    # N = 10; 100 / 22 = 4.5 samples each; 300 / pi^2 = 30.396, over i^2: 30, 7.6, 3.4, 1.9, 1.2,
    # 0.8, ...: one UniXGrad iteration takes two calls, so cells 4 to 10 are skipped.
    plan = ConvexFree(d_eps=0.5).plan(100)
    assert plan.range == (0.5, 512.0)
    assert plan.cells == (Cell(1, 1.0, 30), Cell(2, 2.0, 7), Cell(3, 4.0, 3))
    assert [(c.index, c.value, c.budget) for c in plan.skipped] == [
        (4, 8.0, 1), (5, 16.0, 1), (6, 32.0, 0), (7, 64.0, 0), (8, 128.0, 0), (9, 256.0, 0),
        (10, 512.0, 0),
    ]  # fmt: skip
    assert (plan.probe_gradients, plan.probe_values) == (0, 4)
    assert plan.samples_per_candidate == 4
    assert plan.total_calls == 4 + 40 + 3 * 4
    # window: 6 (100 - 4) / pi^2 = 58.36.
    window = ConvexFree(d_eps=0.5).plan(100, ensemble="window")
    assert [cell.budget for cell in window.cells] == [58, 14, 6, 3, 2]


def test_convex_free_leaves_out_radii_beyond_the_doubles() -> None:
    # N = 10^6; 0.01 = 1.28 * 2^-7, so 0.01 * 2^i is a double up to i = 7 + 1023 = 1030.
    plan = ConvexFree(d_eps=0.01).plan(10**12)
    assert len(plan.cells) == 1030
    assert plan.unrepresentable == 10**6 - 1030
    assert plan.samples_per_candidate == 499_999  # 10^12 / (2 * 1000001) = 499999.5
    assert plan.cells[0].budget == 303_963_550_927  # 3 * 10^12 / 9.8696044010893586
    assert math.isinf(plan.cells[-1].value * 2)


def test_deterministic_by_hand() -> None:
    # d_max = 2 * 10^4 / 0.5 = 40000; / 0.1 = 4e5 lies between 2^18 and 2^19: N = 19.
    # 1 + ln 19 = 3.944439; 100 / 3.944439 = 25.35; 25.35 / 12 = 2.1, 25.35 / 13 < 2.
    plan = Deterministic(d_eps=0.1, L_eps=0.5).plan(100, grad_norm=2.0)
    assert [cell.budget for cell in plan.cells] == [25, 12, 8, 6, 5, 4, 3, 3, 2, 2, 2, 2]
    assert [cell.index for cell in plan.skipped] == list(range(13, 20))
    assert (plan.probe_calls, plan.samples_per_candidate) == (0, 0)
    assert plan.total_calls == 74
    assert plan.ensemble == "exact"
    assert plan == Deterministic(d_eps=0.1, L_eps=0.5).plan(100, 2.0, ensemble="resample")


def test_a_base_of_one_call_a_step_skips_less() -> None:
    # The same grid with AdaGrad, whose step takes one call: 25.35 / 19 = 1.3 still reaches.
    plan = Deterministic(d_eps=0.1, L_eps=0.5, base="adagrad").plan(100, grad_norm=2.0)
    assert len(plan.cells) == 19
    assert plan.skipped == ()


def test_a_share_means_the_number_that_was_written() -> None:
    # As doubles, 0.3 * 10 = 3.0 but 0.3 is a hair below 3/10, and 0.29 * 100 = 28.999...
    assert as_fraction(0.3) == Fraction(3, 10)
    assert as_fraction(1 / 3) == Fraction(1, 3)
    assert as_fraction(1e-9) == Fraction(1, 10**9)
    assert NonConvex(probe=0.3).probe_counts(10) == (3, 0)
    assert NonConvex(probe=0.29).probe_counts(100) == (29, 0)
    assert NonConvex(probe=1 / 4096).probe_counts(10) == (1, 0)
    assert Convex(probe=0.3).probe_counts(100) == (15, 15)


def test_a_zero_gradient_is_a_stationary_start() -> None:
    for plan in (
        NonConvex().plan(100, grad_norm=0.0),
        Convex().plan(100, grad_norm=0.0, value=1.0),
        Convex(option="universal").plan(100, grad_norm=0.0, value=1.0),
        Deterministic().plan(100, grad_norm=0.0),
    ):
        assert plan.stationary
        assert plan.cells == plan.skipped == ()
        assert plan.total_calls == plan.probe_calls


# ---- for every input -------------------------------------------------------------------------


@given(method=methods, budget=budgets, norm=norms, value=inputs, ensemble=ensembles)
def test_plan_never_spends_more_than_budget(
    method: Method, budget: int, norm: float, value: float, ensemble: str
) -> None:
    try:
        plan = plan_of(method, budget, norm, value, ensemble)
    except BudgetTooSmall:
        assume(False)
    cells = sum(cell.budget for cell in plan.cells)
    chosen = len(plan.cells) * plan.candidates_per_cell * plan.samples_per_candidate
    assert plan.total_calls == plan.probe_calls + cells + chosen <= budget
    # Skipped cells would not have gone over it either.
    assert plan.total_calls + sum(cell.budget for cell in plan.skipped) <= budget
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict(), allow_nan=False))) == plan


@given(method=methods, budget=budgets, norm=norms, value=inputs, place=st.floats(0.0, 1.0))
def test_every_value_of_the_range_has_a_cell_within_a_factor_of_two(
    method: Method, budget: int, norm: float, value: float, place: float
) -> None:
    try:
        plan = plan_of(method, budget, norm, value, "resample")
    except BudgetTooSmall:
        assume(False)
    assume(not plan.stationary)
    low, high = plan.range
    sought = low * 2.0 ** (place * (math.log2(high) - math.log2(low)))
    slack = 1e-12
    grid = [cell.value for cell in (*plan.cells, *plan.skipped)]
    assert any(sought * (1 - slack) <= value <= 2 * sought * (1 + slack) for value in grid)
    assert grid[-1] >= high * (1 - slack)
    assert len(grid) == 1 or grid[-2] < high


# One sample of each kind is more than a budget of 1, even where nothing is to be trained.
@example(method=Convex(probe=1 / 4096), budget=1, norm=0.0, value=1.0, ensemble="resample")
@given(method=methods, budget=st.integers(1, 3000), norm=norms, value=inputs, ensemble=ensembles)
def test_smallest_budget_works_and_one_less_does_not(
    method: Method, budget: int, norm: float, value: float, ensemble: str
) -> None:
    for start in (1, budget):
        smallest = refused(method, start, norm, value, ensemble)
        if smallest is None:
            continue
        assert smallest > start
        assert plan_of(method, smallest, norm, value, ensemble).total_calls <= smallest
        with pytest.raises(BudgetTooSmall, match=f"for these inputs is {smallest}$"):
            plan_of(method, smallest - 1, norm, value, ensemble)


def test_smallest_budget_by_hand() -> None:
    # T = 8: N = 3, 8 / 8 = 1 sample each, 24 / pi^2 = 2.4 calls. T = 7: 7 / 8 < 1.
    with pytest.raises(BudgetTooSmall, match="it does not reach one value at x0") as error:
        ConvexFree().plan(7)
    assert error.value.smallest == 8
    # No gradient without a fourth of T; a stationary start needs nothing else.
    with pytest.raises(BudgetTooSmall, match="does not reach one gradient at x0") as error:
        NonConvex().plan(3, grad_norm=0.0)
    assert error.value.smallest == 4
    # d_max = 0.3 * T^2 / 2 over 0.05 is 3 T^2: T = 60 gives 10800, N = 14, 56 <= 60; T = 55 gives
    # 9075, N = 14 and 56 > 55; T = 56 gives 9408, N = 14: it works.
    with pytest.raises(BudgetTooSmall, match="one sample for each of 14 candidates") as error:
        Convex(d_eps=0.05, L_eps=2.0).plan(55, grad_norm=0.3)
    assert error.value.smallest == 56
    # 3 / (1 + ln N) < 2 for any N > 1: d_max / d_eps = 2 * 9 / 0.5 / 0.1 = 360, N = 9.
    with pytest.raises(BudgetTooSmall, match=r"one iteration \(2 oracle calls\) .* 9 cells"):
        Deterministic(d_eps=0.1, L_eps=0.5).plan(3, grad_norm=2.0)


@given(
    budget=st.integers(5000, 10**15),
    norm=inputs,
    L_eps=inputs,
    F_eps=inputs,
    power=st.integers(-10, 10),
    stretch=st.integers(-10, 10),
)
def test_nonconvex_plans_the_same_in_any_unit(
    budget: int, norm: float, L_eps: float, F_eps: float, power: int, stretch: int
) -> None:
    # The objective times c = 4^power, the space times s = 2^stretch: gradients c/s, smoothness
    # c/s^2, gap c, step sizes s^2/c. Powers of four have exact roots.
    c, s = 4.0**power, 2.0**stretch
    plan = NonConvex(L_eps=L_eps, F_eps=F_eps).plan(budget, grad_norm=norm)
    other = NonConvex(L_eps=L_eps * c / s**2, F_eps=F_eps * c).plan(budget, grad_norm=norm * c / s)
    assert [cell.budget for cell in other.cells] == [cell.budget for cell in plan.cells]
    assert [c.value for c in other.cells] == [cell.value * s**2 / c for cell in plan.cells]


@given(
    budget=st.integers(1000, 10**15),
    norm=inputs,
    L_eps=inputs,
    d_eps=inputs,
    power=st.integers(-10, 10),
    stretch=st.integers(-10, 10),
)
def test_convex_plans_the_same_in_any_unit(
    budget: int, norm: float, L_eps: float, d_eps: float, power: int, stretch: int
) -> None:
    c, s = 2.0**power, 2.0**stretch
    plan = Convex(L_eps=L_eps, d_eps=d_eps).plan(budget, grad_norm=norm)
    other = Convex(L_eps=L_eps * c / s**2, d_eps=d_eps * s).plan(budget, grad_norm=norm * c / s)
    assert [cell.budget for cell in other.cells] == [cell.budget for cell in plan.cells]
    assert [cell.value for cell in other.cells] == [cell.value * s for cell in plan.cells]


def test_no_overflow_at_the_ends_of_what_is_promised() -> None:
    for eps in (1e-12, 1e12):
        for norm in (1e-200, 1e-12, 1e12):
            for method in (NonConvex(L_eps=eps, F_eps=1 / eps), Convex(d_eps=eps, L_eps=1 / eps)):
                plan = method.plan(10**15, grad_norm=norm)
                assert all(0.0 < cell.value < math.inf for cell in plan.cells)


def test_a_range_beyond_the_doubles_is_refused() -> None:
    with pytest.raises(PlanError, match="beyond what a double holds"):
        NonConvex().plan(10**6, grad_norm=1e160)
    with pytest.raises(PlanError, match="beyond what a double holds"):
        Convex().plan(10**6, grad_norm=1e300)


# ---- what is refused, and in which words -----------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NonConvex(L_eps=0.0), r"L_eps=0\.0 must be above 0"),
        (lambda: NonConvex(F_eps=-1), "F_eps=-1 must be above 0"),
        (lambda: NonConvex(L_eps=math.nan), "L_eps=nan must be a finite number"),
        (lambda: NonConvex(L_eps="1"), "L_eps='1' must be a number"),  # type: ignore[arg-type]
        (lambda: NonConvex(L_eps=True), "L_eps=True must be a number"),
        (lambda: NonConvex(L_eps=10**400), "must be a finite number"),
        (lambda: NonConvex(delta=1 / 3), r"delta=0\.333.* must be in \(0, 1/3\)"),
        (lambda: NonConvex(delta=0.0), r"must be in \(0, 1/3\)"),
        (lambda: NonConvex(probe=0.6), r"probe=0\.6 must be a share .* \(0, 1/2\]"),
        (lambda: NonConvex(probe=0), r"probe=0 must be a share"),
        (lambda: NonConvex(base="lion"), "base='lion' must be one of 'sgd', 'unixgrad', 'adagrad'"),
        (lambda: NonConvex(base=3), "base=3 must be one of"),  # type: ignore[arg-type]
        (lambda: Convex(d_eps=math.inf), "d_eps=inf must be a finite number"),
        (lambda: Convex(L_eps=-0.0), "L_eps=-0.0 must be above 0"),
        (lambda: Convex(option="rough"), "option='rough' must be one of 'smooth', 'universal'"),
        (lambda: Convex(value_floor=-math.inf), "value_floor=-inf must be a finite number"),
        (lambda: Convex(delta=0.5), r"delta=0\.5 must be in \(0, 1/2\)"),
        (lambda: ConvexFree(d_eps=-2.0), r"d_eps=-2\.0 must be above 0"),
        (lambda: ConvexFree(delta=7), r"delta=7 must be in \(0, 1/2\)"),
        (lambda: Deterministic(d_eps=0), "d_eps=0 must be above 0"),
        (lambda: Deterministic(L_eps=None), "L_eps=None must be a number"),  # type: ignore[arg-type]
    ],
)
def test_bad_inputs_say_what_was_given_and_what_would_be_right(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make()
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, GraspError)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NonConvex().plan(1000), "nonconvex needs grad_norm"),
        (lambda: NonConvex().plan(1000, grad_norm=-1.0), r"grad_norm=-1\.0 must be 0 or above"),
        (lambda: NonConvex().plan(1000, grad_norm=math.nan), "grad_norm=nan must be a finite"),
        (lambda: NonConvex().plan(1000, 1.0, value=math.inf), "value=inf must be a finite"),
        (lambda: Convex().plan(1000, value=1.0), "convex needs grad_norm"),
        (lambda: Convex(option="universal").plan(1000, 1.0), "option='universal' needs value"),
        (
            lambda: Convex(option="universal", value_floor=0.5).plan(1000, value=0.25),
            r"value=0\.25 is below value_floor=0\.5.* at most 0\.25",
        ),
        (lambda: ConvexFree().plan(1000, value=math.nan), "value=nan must be a finite"),
        (lambda: ConvexFree().plan(1000, grad_norm=-1.0), "grad_norm=-1.0"),
        (lambda: ConvexFree(d_eps=1.5e308).plan(1000), "cannot be doubled"),
        (lambda: Deterministic().plan(1000), "deterministic needs grad_norm"),
        (lambda: Deterministic().plan(1000, 1.0, ensemble="window"), "'exact', 'resample'"),
        (lambda: NonConvex().plan(1000, 1.0, ensemble="exact"), "'resample', 'window'"),
        (lambda: NonConvex().plan(0, 1.0), "budget: got 0, expected a whole number >= 1"),
        (lambda: NonConvex().plan(-5, 1.0), "budget: got -5, expected a whole number >= 1"),
        (lambda: NonConvex().plan(10**30, 1.0), "and <= 9223372036854775807"),
        (lambda: NonConvex().plan(1e4, 1.0), "budget: got 10000.0, expected a whole number"),  # type: ignore[arg-type]
        (lambda: NonConvex().plan(True, 1.0), "budget: got True, expected a whole number"),
    ],
)
def test_bad_measurements_are_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_convex_smooth_does_not_mind_values_below_the_unused_floor() -> None:
    assert Convex().plan(1000, grad_norm=0.3, value=-7.0).value == -7.0


def test_budget_too_small_survives_a_pickle() -> None:
    with pytest.raises(BudgetTooSmall) as error:
        ConvexFree().plan(3)
    copy = pickle.loads(pickle.dumps(error.value))
    assert copy.smallest == 8
    assert str(copy) == str(error.value)


# ---- names, bases, files ---------------------------------------------------------------------


def own_base(params: Any, value: float) -> Any:
    raise NotImplementedError


@given(method=methods)
def test_save_and_load_gives_the_same_method(method: Method) -> None:
    written = json.loads(json.dumps(method.to_dict(), allow_nan=False))
    assert method_from_dict(written) == method
    assert METHODS[method.name] is type(method)
    assert pickle.loads(pickle.dumps(method)) == method


def test_a_plan_names_the_method_that_made_it() -> None:
    method = Convex(d_eps=0.7, probe=0.1, base="adagrad")
    plan = method.plan(5000, grad_norm=1.0)
    assert method_from_dict(plan.to_dict()["method"]) == method


def test_a_base_of_ones_own_is_written_by_name_and_given_again() -> None:
    method = NonConvex(base=own_base)
    written = method.to_dict()
    assert written["base"] == f"{__name__}:own_base"
    with pytest.raises(InputError, match="own_base' was a function of one's own"):
        method_from_dict(written)
    assert method_from_dict(written, base=own_base) == method
    assert method.plan(5000, grad_norm=1.0).method.base == f"{__name__}:own_base"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "newton"}, "method name='newton' must be one of 'nonconvex'"),
        ({}, "method name=None"),
        ({"name": "nonconvex", "d_eps": 0.1}, r"nonconvex has no inputs \['d_eps'\]"),
        ({"name": "nonconvex", "L_eps": "big"}, "L_eps='big' must be a number"),
    ],
)
def test_reading_a_method_is_strict(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        method_from_dict(data)


def test_the_paper_schedule_runs_the_papers_base() -> None:
    assert NonConvex().base_name("paper") == "sgd"
    assert Convex().base_name("paper") == ConvexFree().base_name("paper") == "unixgrad"
    assert Deterministic().base_name("paper") == "unixgrad"
    assert Convex(base="sgd").base_name("paper") == "sgd"
    assert NonConvex().covered("paper")
    assert not Convex(base="adagrad").covered("paper")
    assert Convex(base="unixgrad").covered("promote")
    assert not Convex(base=own_base).covered("paper")


def test_methods_are_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        NonConvex().delta = 0.1  # type: ignore[misc]
    with pytest.raises(TypeError):
        NonConvex(0.1)  # type: ignore[call-arg]
    assert type(NonConvex(L_eps=1).L_eps) is float
