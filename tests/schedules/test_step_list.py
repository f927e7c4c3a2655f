"""The list of steps: the ramp that finds the edge, who runs, who is looked at again, who wins."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import Key, state_key
from grasp_tune.core.methods import Convex, Method, NonConvex
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Arm,
    Outcome,
    Point,
    ProbeOutcome,
    ScoreOutcome,
    Segment,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.schedules.promote import Promote
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.step_list import StepList, distance_range, is_lower, last_doubling
from tests.core.simulation import ORIGIN, answer, checked_run, run, segments

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


def of(losses: dict[int, float]) -> StepList:
    return StepList(Arm.of(0, "adam", 1.0), 1.0, 4.0, (2, 3, 4), losses=losses)


def test_a_list_grows_beyond_the_end_where_its_best_run_is() -> None:
    assert of({2: 1.0, 3: 0.7, 4: 0.9}).beyond(7) is None
    assert of({2: 1.0, 3: 0.9, 4: 0.7}).beyond(7) == 5
    assert of({2: 0.5, 3: 0.9, 4: 1.2}).beyond(7) == 1
    assert of({2: math.inf, 3: math.inf, 4: math.inf}).beyond(7) == 5
    assert of({2: 0.5, 3: 0.9, 4: 1.2}).beyond(3) is None


def test_where_nothing_was_learned_the_usual_place_stands_for_those_alike() -> None:
    losses = {2: 2.52, 3: 2.312, 4: 2.309, 5: 2.31}
    kind = Arm.of(0, "adam", 1.0)
    tried = StepList(kind, 1.0, 4.0, (2, 3, 4), losses=losses, gain=0.01, start=2.311)
    # 3, 4 and 5 are within 0.01 of the lowest, which is not 0.01 below the start.
    assert tried.best == 3 and tried.beyond(7) is None
    assert replace(tried, gain=0.002).best == 4  # then 3 is worse
    assert replace(tried, start=2.4).best == 4  # then something was learned
    # Where the largest step is alike, all may be too small, and larger ones are tried.
    small = replace(tried, losses={2: 2.309, 3: 2.312, 4: 2.31})
    assert small.best == 2 and small.beyond(7) == 1
    # A larger step whose losses are lower on the same minibatches has learned something: 0.1, 0.2,
    # 0.3 and 0.2 less, 0.2 on the mean, with a standard error of 0.08 / 2.
    late: dict[int, tuple[float, ...]] = {
        2: (2.3,) * 4,
        3: (2.5, 2.4, 2.3, 2.4),
        4: (2.6, 2.6, 2.6, 2.6),
    }
    assert replace(tried, curves=late).best == 4 and is_lower(late[3], late[4])
    assert not is_lower(late[4], late[3]) and not is_lower((2.0, 2.0), (1.0, 9.0))
    assert not is_lower((), ()) and not is_lower((1.0,), (2.0,))
    # A run that has overshot says that its step is too large: 4 is the next most usual place.
    assert replace(tried, overshot={3}).best == 4
    # A single run that did not blow up says that smaller steps are wanted.
    alone = replace(tried, losses={2: math.inf, 3: math.inf, 4: 2.4})
    assert alone.best == 4 and alone.beyond(7) == 5


def test_a_smaller_step_is_always_looked_at_again_a_larger_one_where_it_gained_as_much() -> None:
    # From 2.0 the best gained 1.3; 0.7 * 1.3 = 0.91 is what a larger step must have gained.
    item = of({2: 1.05, 3: 0.7, 4: 1.9})
    assert item.comes_near(4, 2.0, 0.7) and item.comes_near(2, 2.0, 0.7)
    assert not of({2: 1.12, 3: 0.7, 4: 1.9}).comes_near(2, 2.0, 0.7)
    assert not of({2: 0.9, 3: 0.7, 4: math.inf}).comes_near(4, 2.0, 0.7)


def test_the_list_grows_beyond_a_winner_at_either_end() -> None:
    item = of({2: 2.0, 3: 1.0, 4: 4.0})
    arms = {place: Arm.of(place, "adam", 4.0**-place) for place in (2, 3, 4)}
    item.arms.update(arms)
    assert [item.at_end(arms[place], 7) for place in (2, 3, 4)] == [1, None, 5]
    assert item.at_end(arms[2], 3) is None  # no place is left


def test_the_vertex_by_hand() -> None:
    item = of({2: 2.0, 3: 1.0, 4: 4.0, 5: 9.0})
    # Neighbours e times and e^3 times as high: (1 - 3) / (2 * (1 + 3)) = -1/4, to the larger step.
    assert item.vertex({2: math.e, 3: 1.0, 4: math.e**3}) == pytest.approx(-0.25)
    # Those without a second look keep their ratio: log 2 and log 4, so -1/6.
    assert item.vertex({3: 0.5, 2: None}) == pytest.approx(-1 / 6)
    # Half a place between equals; a best one at the end of the list stays where it is.
    assert item.vertex({3: 1.0, 4: 1.0}) == pytest.approx(0.5)
    assert item.vertex({4: 3.0, 5: 2.0}) == 0.0
    # Losses that may be negative are taken as they are: rises of 1 and 3.
    assert of({2: 0.0, 3: -1.0, 4: 2.0}).vertex({3: -2.0}) == pytest.approx(-0.25)


def reply_with(edge: float, best: float, matrices: int = 0) -> Callable[[Task], Outcome]:
    """Outcomes of runs whose loss rises at steps above `edge` and ends lowest at `best`."""

    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if isinstance(outcome, ProbeOutcome):
            return replace(outcome, matrices=matrices)
        if isinstance(task, TrainTask) and isinstance(outcome, TrainOutcome):
            found = []
            for segment, item in zip(task.segments, outcome.segments, strict=True):
                value = segment.arm.value
                if segment.ramp:
                    steps = [value * 2.0**at for at in range(segment.calls)]
                    losses = [2.0, *(9.0 if step > edge else 1.9 for step in steps)]
                    curve = tuple(Point(at + 1, x, x) for at, x in enumerate(losses[:-1]))
                    found.append(replace(item, finite=True, calls=segment.calls, curve=curve))
                    continue
                loss = 0.5 + 0.1 * abs(math.log(value / best)) + 1.0 / (1 + segment.stop)
                found.append(replace(item, finite=True, loss=loss, calls=segment.calls, curve=()))
            calls = sum(item.calls for item in found)
            return replace(outcome, segments=tuple(found), calls=calls)
        if isinstance(outcome, ScoreOutcome):
            rows = tuple(replace(item, mean=score(item.key)) for item in outcome.samples)
            return replace(outcome, samples=rows)
        return outcome

    values: dict[int, float] = {}

    def score(key: str) -> float:
        if key == "x0":
            return 2.0
        value = values[int(key[3:6])]
        return 0.5 + 0.1 * abs(math.log(value / best)) - 1e-6 * Key.parse(key).call

    def watching(task: Task) -> Outcome:
        if isinstance(task, TrainTask):
            values.update({s.arm.index: s.arm.value for s in task.segments})
        return reply(task)

    return watching


@given(best=st.floats(1e-4, 10.0), budget=st.integers(1_000, 20_000))
def test_the_final_step_is_within_a_factor_of_the_best(best: float, budget: int) -> None:
    search, tasks = checked_run(SweepSpec(NonConvex(), budget), reply_with(64.0 * best, best))
    final = segments(tasks, "final")
    assert max(final[0].arm.value / best, best / final[0].arm.value) <= 8.0
    assert sum(search.calls.values()) <= budget
    assert final[0].state is not None  # it goes on from where its run was


def test_the_list_runs_side_by_side_below_the_edge() -> None:
    _, tasks = run(SweepSpec(NonConvex(), 1_200), reply_with(1.0, 0.01))
    first = segments(tasks, "list0")
    values = sorted(segment.arm.value for segment in first)
    assert len(values) == 3 and values[1] == pytest.approx(4 * values[0])
    # The edge is the first doubled step above 1, at most 2; the list begins 4 ** 2 below it.
    assert 1.0 / 16 < values[-1] <= 2.0 / 16
    assert {segment.stop for segment in first} == {int(0.34 * 1_200**0.6)}
    assert all(segment.start == 0 and segment.state is None for segment in first)
    second = segments(tasks, "second")
    every = segments(tasks, "list")
    assert {s.state for s in second} <= {state_key(s.arm.index, s.stop) for s in every}


def test_a_network_gets_matrix_shaped_steps_and_a_second_kind_where_the_budget_pays() -> None:
    for budget, kinds in ((1_200, {"muon"}), (10_000, {"muon", "adam"})):
        _, tasks = run(SweepSpec(NonConvex(), budget), reply_with(1.0, 0.01, matrices=3))
        assert {segment.arm.base for segment in segments(tasks, "list0")} == kinds
    _, tasks = run(SweepSpec(NonConvex(), 10_000), reply_with(1.0, 0.01))
    assert {(s.arm.base, s.arm.power) for s in segments(tasks, "list0")} == {
        ("adam", 0.5),
        ("adam", 0.0),
    }


def test_an_optimizer_whose_value_is_fixed_has_a_list_over_its_range() -> None:
    _, tasks = run(SweepSpec(Convex(base="unixgrad"), 10_000))
    values = sorted(segment.arm.value for segment in segments(tasks, "list0"))
    # |g0| T^2 / L_eps = 1.3 * 10^8 / 0.01 at the top; seven places down to d_eps = 0.01.
    assert len(values) == 7 and values[-1] == pytest.approx(1.3e10)
    assert values[0] == pytest.approx(0.01 * (1.3e12) ** (1 / 7))
    assert not segments(tasks, "ramp")


def plateau(leaves: int, best: float) -> Callable[[Task], Outcome]:
    """Outcomes of runs that learn nothing for so many calls, and then most at `best`."""
    usual = reply_with(64.0 * best, best)

    def reply(task: Task) -> Outcome:
        outcome = usual(task)
        if not isinstance(task, TrainTask) or not isinstance(outcome, TrainOutcome):
            return outcome
        found = [
            item if segment.ramp or segment.stop > leaves else replace(item, loss=2.3)
            for segment, item in zip(task.segments, outcome.segments, strict=True)
        ]
        return replace(outcome, segments=tuple(found))

    return reply


def test_runs_go_on_while_none_has_learned_anything() -> None:
    search, tasks = checked_run(SweepSpec(NonConvex(), 2_000), plateau(50, 0.01))
    # The list's runs have 32 calls each and learn nothing, those of 64 do.
    assert {segment.stop for segment in segments(tasks, "list")} == {32}
    assert [segment.stop for segment in segments(tasks, "wait")] == [64] * 3
    assert {segment.start for segment in segments(tasks, "second")} == {64}
    assert sum(search.calls.values()) <= 2_000
    # On a plateau without an end the most usual step of the list gets the rest.
    _, tasks = checked_run(SweepSpec(NonConvex(), 2_000), plateau(10**6, 0.01))
    values = sorted({segment.arm.value for segment in segments(tasks, "list0")})
    assert segments(tasks, "final0")[0].arm.value == pytest.approx(values[1])
    _, tasks = checked_run(
        SweepSpec(NonConvex(), 2_000, schedule=Promote(wait=0.0)), plateau(50, 0.01)
    )
    assert not segments(tasks, "wait")


@pytest.mark.parametrize("loss", [2.2, 1.5])
def test_a_small_step_that_has_learned_little_gives_way_to_the_usual_one(loss: float) -> None:
    item = of({2: 2.5, 3: 2.25, 4: 2.2})
    item.arms.update({place: Arm.of(place, "adam", 4.0**-place) for place in (2, 3, 4)})
    item.start, usual, small = 2.3, item.arms[3], item.arms[4]
    # 2.2 is above 0.95 times the loss of the first rung, and above 0.85 times the start's, 1.96.
    assert item.is_stuck(small, loss, usual, Promote()) == (loss == 2.2)
    assert not item.is_stuck(item.arms[2], loss, usual, Promote())  # a larger one
    assert not item.is_stuck(small, loss, usual, Promote(plateau=math.inf))
