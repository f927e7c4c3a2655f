"""The ramp that finds the edge of what is stable."""

import math

import pytest

from grasp_tune.core.methods import Convex, Method, NonConvex
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Arm,
    ProbeOutcome,
    Segment,
)
from grasp_tune.schedules.promote import Promote
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.ramp import distance_range, last_doubling
from tests.core.simulation import ORIGIN

PROBE = ProbeOutcome(100, ORIGIN, 100, 2.0, 5.0, 400, 100, 2.3, 5.4)


def state_of(method: Method, budget: int = 1000, probe: ProbeOutcome = PROBE) -> PromoteState:
    spec = SweepSpec(method, budget)
    return PromoteState(Promote(), spec, probe, method.plan(10**6, 2.0, 2.3), left=budget)


def test_the_edge_by_hand() -> None:
    # The loss at call i follows i steps. 3.1 is above the first losses, at most 2, and 1.5 times
    # the lowest, 1.5 * 0.9; so is 9 after it: the third step, doubled twice, did it.
    assert last_doubling([2.0, 1.4, 0.9, 3.1, 9.0], -9.0, 1.5) == (2, True)
    # One unlucky minibatch is no edge; what comes at the very end is.
    assert last_doubling([2.0, 1.4, 0.9, 3.1, 0.9, math.nan], -9.0, 1.5) == (4, True)
    # Nothing has risen: the last step made, the fourth of five calls.
    assert last_doubling([2.0, 1.9, 1.8, 1.7, 1.6], -9.0, 1.5) == (3, False)
    assert last_doubling([], -9.0, 1.5) == (0, False)
    # What minibatches at x0 have as well is no rise.
    assert last_doubling([2.0, 1.4, 0.9, 3.1, 9.0], 4.0, 1.5) == (3, True)
    # A negative loss has no multiples: it has risen above the first one.
    assert last_doubling([-1.0, -2.0, -1.5, -0.5, -0.4], -9.0, 1.5) == (2, True)


def test_the_edge_of_a_loss_that_is_bounded() -> None:
    # 0.5 was gained, and from 0.7 on more than half of it is lost, though 0.8 is never passed.
    losses = [0.8, 0.8, 0.8, 0.5, 0.3, 0.7, 0.4, 0.7, 0.75, 0.75]
    assert last_doubling(losses, 0.85, 1.5) == (6, True)
    # One may be unlucky: nothing has risen, and 0.3, after the fourth step, is all that was gained.
    assert last_doubling(losses[:-2], 0.85, 1.5) == (3, False)
    assert last_doubling(losses, 1.4, 1.5) == (8, False)  # less than noise was gained
    # A start that is far off: 9 is far from it, and a multiple of what it was.
    assert last_doubling([99.0, 99.0, 99.0, 20.0, 4.0, 9.0, 9.0], 99.0, 1.5) == (4, True)


def test_steps_that_change_nothing_any_more_are_not_the_edge() -> None:
    # A loss that no step can raise, as with normalized outputs: 0.305 is within a tenth of the
    # 0.06 that were gained, after the fifth step.
    losses = [0.36, 0.36, 0.36, 0.35, 0.33, 0.305, 0.3, 0.31, 0.3, 0.305, 0.3]
    assert last_doubling(losses, 0.38, 1.5) == (4, False)


def test_a_ramp_doubles_its_step_and_lanes_and_warm_up_scale_it() -> None:
    arm = Arm.of(1, "adam", 0.1)
    ramp = Segment(arm, 0, 5, ramp=True)
    assert [ramp.step_share(call) for call in range(5)] == [1.0, 2.0, 4.0, 8.0, 16.0]
    run = Segment(arm, 0, 40, warmup=10, anneal=(20, 40), lanes=4)
    # The root of four lanes is 2: 2 * 3/10 at the third call, 2 * 1 at call 15, 2 * 10/20 at 30.
    assert run.step_share(2) == pytest.approx(0.6)
    assert (run.step_share(15), run.step_share(30)) == (2.0, 1.0)
    assert not Segment(arm, 10, 20, warmup=10).shaped and Segment(arm, 0, 20, warmup=10).shaped


def test_distances_by_hand() -> None:
    # GRASP-NC: F_eps / |g0| = 0.01 / 2 up to |g0| T^2 / L_eps = 2 * 10^6 / 0.01.
    low, high = distance_range(state_of(NonConvex()))
    assert (low, high) == (pytest.approx(0.005), pytest.approx(2e8))
    # GRASP-C: d_eps up to the same.
    low, high = distance_range(state_of(Convex(d_eps=0.3)))
    assert (low, high) == (0.3, pytest.approx(2e8))
