"""Which step the long run takes: who runs, who is looked at again, who wins."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import place_of, state_key
from grasp_tune.core.methods import Convex, NonConvex
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Outcome,
    Point,
    ProbeOutcome,
    ScoreOutcome,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.schedules.promote import Promote
from tests.core.simulation import answer, checked_run, run, segments


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
        return 0.5 + 0.1 * abs(math.log(value / best)) - 1e-6 * place_of(key)[1]

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


def test_first_runs_of_small_budgets_come_to_their_full_step() -> None:
    # 0.34 * 300 ** 0.6 = 10.4 calls, of which ten steps of warm-up would leave none.
    for budget, warmup in ((300, 3), (600, 10)):
        _, tasks = run(SweepSpec(NonConvex(), budget))
        first = segments(tasks, "list0")[0]
        assert first.warmup == warmup < first.stop
        assert {item.warmup for item in segments(tasks, "final")} == {warmup}
        assert first.step_share(first.stop - 1) == 1.0


def test_a_network_gets_matrix_shaped_steps_and_other_models_divided_ones() -> None:
    for matrices, kind in ((3, ("muon", 0.0)), (0, ("adam", 0.5))):
        spec = SweepSpec(NonConvex(), 10_000)
        _, tasks = run(spec, reply_with(1.0, 0.01, matrices=matrices))
        assert {(s.arm.base, s.arm.power) for s in segments(tasks, "list0")} == {kind}
    _, tasks = run(replace(spec, challengers=("sgd",)), reply_with(1.0, 0.01, matrices=3))
    assert {segment.arm.base for segment in segments(tasks, "list0")} == {"muon", "sgd"}


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


def test_runs_that_all_fail_while_they_wait_leave_the_states_before() -> None:
    usual = plateau(10**6, 0.01)

    def reply(task: Task) -> Outcome:
        outcome = usual(task)
        if not task.id.startswith("wait") or not isinstance(outcome, TrainOutcome):
            return outcome
        failed = (replace(item, finite=False, loss=math.nan) for item in outcome.segments)
        return replace(outcome, segments=tuple(failed))

    search, tasks = checked_run(SweepSpec(NonConvex(), 2_000), reply)
    assert [segment.stop for segment in segments(tasks, "wait")] == [64] * 3
    assert {segment.start for segment in segments(tasks, "second")} == {32}
    assert search.choice is not None and search.choice.key != "x0"
