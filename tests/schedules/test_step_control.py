"""The step of the final run: when it shrinks, when it grows, and what is undone."""

import math
from collections.abc import Sequence

import pytest

from grasp_tune.core.methods import NonConvex
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome
from grasp_tune.schedules.promote import Promote
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.step_control import StepControl, jump_above
from tests.core.simulation import ORIGIN


def control(start: float = 1.0, average: float = math.nan, *, adapts: bool = True) -> StepControl:
    """A final run whose first step is 8, of runs that are numbered from 5."""
    probe = ProbeOutcome(100, ORIGIN, 100, 2.0, 5.0, 400, 100, start, start * start)
    spec = SweepSpec(NonConvex(), 1000)
    plan: Plan = spec.method.plan(1000, grad_norm=2.0, value=start, ensemble="window")
    state = PromoteState(Promote(), spec, probe, plan, left=1000, next_run=5)
    return StepControl(state, Arm.of(1, "growing", 8.0, power=0.5), adapts, average)


def steps(found: StepControl, losses: Sequence[float]) -> list[float]:
    """The step after each part."""
    made = []
    for part, loss in enumerate(losses):
        if found.accepts(loss):
            found.go_on(part, loss)
        else:
            found.go_back()
        made.append(found.arm.value)
    return made


def test_a_run_that_simply_falls_keeps_its_step() -> None:
    found = control(average=0.45)
    assert steps(found, [0.5, 0.4, 0.3, 0.2, 0.1]) == [8.0] * 5
    assert found.arm.index == 1


def test_losses_above_the_average_of_two_parts_ago_halve_the_step_once() -> None:
    # 0.5 > 1.05 * 0.4; what comes before and later is not compared.
    assert steps(control(average=0.4), [0.6, 0.5, 0.5, 0.5, 0.5]) == [8.0, 8.0, 4.0, 4.0, 4.0]
    assert steps(control(average=0.4), [0.6, 0.5, 0.41, 0.5]) == [8.0] * 4  # 2.5 % may be noise


def test_a_negative_loss_is_compared_by_its_size() -> None:
    # 5 % of 4 is 0.2: -3.9 is within it, -3.7 is not.
    assert steps(control(average=-4.0), [-3.0, -3.0, -3.9])[-1] == 8.0
    assert steps(control(average=-4.0), [-3.0, -3.0, -3.7])[-1] == 4.0


def test_no_average_no_comparison() -> None:
    assert steps(control(), [0.6, 0.7, 0.9]) == [8.0] * 3


def test_a_jump_is_undone_with_a_quarter_of_the_step() -> None:
    found = control()
    assert steps(found, [0.5, 0.99, 2.1, 0.5]) == [8.0, 8.0, 2.0, 2.0]  # 0.99 < 2 * 0.5
    assert found.arm.index == 5 and found.before == 0.5


def test_a_mean_that_a_few_minibatches_have_raised_is_no_jump() -> None:
    found = control()
    found.go_on(0, 0.5)
    assert not found.accepts(90.0) and not found.accepts(90.0, 1.1)  # 1.1 is above 2 * 0.5 as well
    assert found.accepts(90.0, 0.9) and found.accepts(0.9, 90.0)
    assert not found.accepts(math.nan, 0.9) and not found.accepts(math.inf, 0.9)


@pytest.mark.parametrize("first", [math.nan, math.inf])
def test_a_first_part_that_is_not_finite_is_undone(first: float) -> None:
    assert steps(control(), [first, 0.5]) == [2.0, 2.0]


def test_where_nearly_all_of_the_loss_is_gone_larger_steps_are_tried_while_they_help() -> None:
    # Below 1e-3 of the start and at most 0.8 of the part before: 4 times the step, again and again.
    falling = [1e-2, 5e-4, 2e-4, 1e-4]
    assert steps(control(average=1.0), falling) == [8.0, 32.0, 128.0, 512.0]
    assert steps(control(average=1.0, adapts=False), falling) == [8.0] * 4
    assert steps(control(average=1.0), [1e-2, 5e-4, 4.5e-4]) == [8.0, 32.0, 32.0]  # hardly falls


def test_a_larger_step_that_does_not_help_is_undone_and_a_smaller_one_tried_next() -> None:
    # 5e-4 at 32 is above the 2e-4 at 8: undone. The next one is tried once the loss has fallen
    # again, with the root of 4; then with the root of that; 2 ** 0.25 is not worth a part.
    found = control(average=1.0)
    losses = [1e-2, 2e-4, 5e-4, 1e-4, 3e-4, 5e-5, 4e-4, 2e-5, 1e-5]
    root = math.sqrt(2.0)
    expected = [8.0, 32.0, 8.0, 16.0, 8.0, 8.0 * root, 8.0, 8.0, 8.0]
    assert steps(found, losses) == pytest.approx(expected)


@pytest.mark.parametrize("losses", [[-1.0, -2.0, -4.0], [0.0, 0.0, 0.0]])
def test_a_loss_without_a_zero_to_reach_is_never_nearly_gone(losses: list[float]) -> None:
    assert steps(control(average=5.0), losses)[-1] <= 8.0


def test_jumps_by_hand() -> None:
    assert jump_above(0.5, 2.0, 2.0) == 1.0
    assert jump_above(-3.0, -1.0, 2.0) == 0.0  # at least its own size
    assert jump_above(-1.0, 4.0, 2.0) == 4.0  # or all that was gained
    assert jump_above(math.inf, 2.0, 2.0) == math.inf
