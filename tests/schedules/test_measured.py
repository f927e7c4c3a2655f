"""Runs of the default schedule that measure their own distance: who gets what, and who goes on."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import average_key
from grasp_tune.core.methods import Convex, Method, NonConvex
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Outcome,
    Point,
    ScoreOutcome,
    ScoreTask,
    Segment,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.schedules.promote import Promote
from tests.core.simulation import answer, checked_run, run, segments

GROWING, PROMOTED, SHORT = Promote().measuring, Promote().searching, Promote().short_budget
FAN = Promote().fan_budget


def growing(tasks: list[Task]) -> list[Segment]:
    """The segments of the one run that measures its own distance."""
    return [segment for segment in segments(tasks, "") if segment.arm.base == GROWING]


@pytest.mark.parametrize("method", [NonConvex(), Convex()], ids=["nonconvex", "convex"])
@pytest.mark.parametrize("budget", [300, 1000, SHORT - 1])
def test_a_short_budget_goes_to_one_run_that_measures_its_distance(
    method: Method, budget: int
) -> None:
    search, tasks = run(SweepSpec(method, budget))
    alone = segments(tasks, "final")
    assert {s.arm.base for s in alone} == {GROWING} and len({s.arm for s in alone}) == 1
    assert not segments(tasks, "rung")
    assert [s.start for s in alone[1:]] == [s.stop for s in alone[:-1]]
    fan = sum(s.calls for s in segments(tasks, "entry") + segments(tasks, "fan"))
    assert fan == (18 + 3 * 24 if budget >= FAN else 0)
    # The rest: 1/64, 1/16, 0.01, 0.005.
    assert sum(segment.calls for segment in alone) > 0.85 * budget - fan
    assert 0.97 * budget - 8 < sum(search.calls.values()) <= budget
    # The whole distance at 300 calls; at 1000 (10 / 3) ** (-1 / 3) = 0.669 of it.
    expected = {300: 1.0, 1000: 0.66943}.get(budget, (budget / 300) ** (-1 / 3))
    assert alone[0].arm.value == pytest.approx(expected, rel=1e-4)
    floor = segments(tasks, "paper")
    assert [s.arm.index for s in floor] == list(range(1, len(floor) + 1))  # the paper's come first


@pytest.mark.parametrize(
    ("losses", "chosen", "runs"),  # by reach; x0 has 2.3
    [
        ({1 / 4: 1.3, 1: 1.0, 4: 0.97}, 1, 3),  # larger steps flatter
        ({1 / 4: 1.3, 1: 1.0, 4: 0.9, 16: 0.89}, 4, 4),
        ({1 / 4: 1.3, 1: 1.0, 4: 0.9, 16: 0.8, 64: 0.7}, 64, 5),  # no more than two beyond
        ({1 / 4: 0.99, 1: 1.0, 4: 1.5}, 1 / 4, 3),  # better, but not clearly: none beyond
        ({1 / 4: 1.0, 1: 5.0, 4: 9.0, 1 / 16: 1.1}, 1 / 4, 4),
        ({1 / 4: 2.295, 1: 2.29, 4: 2.27, 16: 3.0}, 4, 4),  # hardly lower, but it gained the most
        ({1 / 4: -2.0, 1: -3.0, 4: -3.5}, 1, 3),  # of losses below 0 what was gained counts
        ({1 / 4: 1.5, 1: math.inf, 4: math.inf, 1 / 16: 1.6}, 1 / 4, 4),
    ],
)
def test_the_losses_of_the_fan_choose_the_reach(
    losses: dict[float, float], chosen: float, runs: int
) -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if not task.id.startswith("fan") or not isinstance(outcome, TrainOutcome):
            return outcome
        assert isinstance(task, TrainTask)
        loss = losses[dict(task.segments[0].arm.values)["reach"]]
        # The mean of the later half counts, so high losses before it do not.
        curve = tuple(Point(at, value, 1.0) for at, value in enumerate([9.0, 9.0, loss, loss]))
        item = replace(outcome.segments[0], curve=curve, finite=loss < math.inf)
        return replace(outcome, segments=(item,))

    _, tasks = checked_run(SweepSpec(NonConvex(), 1000), reply)
    assert len(segments(tasks, "fan")) == runs
    final = segments(tasks, "final")
    assert {dict(segment.arm.values)["reach"] for segment in final} == {chosen}
    owner = [s for s in segments(tasks, "fan") if dict(s.arm.values)["reach"] == chosen]
    assert final[0].state == owner[0].writes[-1]


def not_below_the_start(task: Task) -> Outcome:
    """The answer of a world where the run that measures its distance gets nowhere."""
    outcome = answer(task)
    if not isinstance(task, TrainTask) or not isinstance(outcome, TrainOutcome):
        return outcome
    if task.segments[0].arm.base != GROWING or task.id.startswith(("entry", "fan")):
        return outcome
    return replace(outcome, segments=(replace(outcome.segments[0], loss=2.4),))  # x0 has 2.3


def lost_at_once(task: Task) -> Outcome:
    """The answer of a world where a run that measures its distance diverges at its first call."""
    outcome = not_below_the_start(task)
    entry = task.id.startswith("entry")
    if isinstance(outcome, TrainOutcome) and (entry or outcome.segments[0].loss == 2.4):
        lost = replace(outcome.segments[0], finite=False, loss=math.nan, calls=1)
        return replace(outcome, segments=(lost,), calls=1)
    return outcome


@pytest.mark.parametrize(
    ("reply", "budget"),
    [(not_below_the_start, 1000), (not_below_the_start, 3000)]
    + [(lost_at_once, budget) for budget in (300, 1000, 3000)],
)
def test_where_the_one_run_gets_nowhere_the_rest_is_searched(
    reply: Callable[[Task], Outcome], budget: int
) -> None:
    search, tasks = checked_run(SweepSpec(Convex(), budget), reply)
    assert len(growing(tasks)) == (5 if reply is not_below_the_start else 1)  # its first part
    assert segments(tasks, "rung0") and segments(tasks, "rung1")
    final = [segment for segment in segments(tasks, "final") if segment.arm.base == PROMOTED]
    assert sum(segment.calls for segment in final) > 0.15 * budget
    assert sum(search.calls.values()) <= budget
    assert search.choice is not None
    assert GROWING not in {row.base for row in search.choice.candidates}


def test_a_part_of_few_calls_cannot_tell_that_the_run_gets_nowhere() -> None:
    search, tasks = checked_run(SweepSpec(Convex(), 300), not_below_the_start)
    assert len(growing(tasks)) == 8 and not segments(tasks, "rung")
    assert search.choice is not None


@pytest.mark.parametrize(("noisy", "factor"), [(1.04, 1.0), (1.06, 0.5)])
def test_losses_above_the_average_of_the_first_part_calm_the_run(
    noisy: float, factor: float
) -> None:
    looked: list[ScoreTask] = []

    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if isinstance(task, ScoreTask) and task.id.startswith("final0-score"):
            looked.append(task)
            assert isinstance(outcome, ScoreOutcome)
            level = tuple(replace(item, mean=1.0) for item in outcome.samples)
            return replace(outcome, samples=level)
        if task.id[:6] in ("final0", "final1", "final2") and isinstance(outcome, TrainOutcome):
            loss = noisy if task.id.startswith("final2") else 1.2
            return replace(outcome, segments=(replace(outcome.segments[0], loss=loss),))
        return outcome

    _, tasks = checked_run(SweepSpec(NonConvex(), 20_000), reply)
    final = segments(tasks, "final")
    values = [segment.arm.value for segment in final]
    assert values == pytest.approx([values[0]] * 3 + [factor * values[0]] * 5)
    assert sum(item.stop - item.start for task in looked for item in task.samples) == 100  # 0.5 %
    assert {item.key for task in looked for item in task.samples} == {
        str(average_key(final[0].arm.index, final[0].stop, 8.0))
    }


@pytest.mark.parametrize(("high", "undone"), [(1, False), (4, True)])
def test_a_part_is_undone_where_most_of_its_late_losses_are_high(high: int, undone: bool) -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if not task.id.startswith("final3") or not isinstance(outcome, TrainOutcome):
            return outcome
        (part,) = outcome.segments
        losses = [part.loss] * (12 - high) + [1e4] * high
        curve = tuple(Point(call, loss, 1.0) for call, loss in enumerate(losses, start=1))
        return replace(outcome, segments=(replace(part, loss=2e3, curve=curve),))

    _, tasks = checked_run(SweepSpec(NonConvex(), 20_000), reply)
    assert len({segment.arm for segment in segments(tasks, "final")}) == 1 + undone


def test_a_chosen_base_or_challengers_bring_the_search_back() -> None:
    for spec in (
        SweepSpec(NonConvex(base="adam"), 1000),
        SweepSpec(Convex(base="adagrad"), 300),
        SweepSpec(NonConvex(), 1000, challengers=("sgd",)),
        SweepSpec(NonConvex(base=GROWING), 1000, challengers=("sgd",)),
    ):
        _, tasks = run(spec)
        assert segments(tasks, "rung0"), spec
        asked = {segment.arm.base for segment in segments(tasks, "rung0")}
        assert asked == {spec.method.base_name("promote"), *spec.challengers}


@pytest.mark.parametrize(
    ("losses", "chosen"),  # of the powers 0 and 1/2; x0 has 2.3
    [
        ((1.0, 0.9), 0.5),
        ((0.9, 1.0), 0.5),  # not clearly better
        ((0.7, 1.0), 0.0),
        ((2.2, 2.4), 0.0),  # the other one is above the start
        ((-2.0, -1.9), 0.5),  # gained 4.3 and 4.2
        ((-7.7, -2.7), 0.0),  # gained 10 and 5
    ],
)
def test_another_kind_must_be_clearly_better_than_divided_steps(
    losses: tuple[float, float], chosen: float
) -> None:
    powers: dict[str, float] = {}

    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if isinstance(task, TrainTask) and task.id.startswith("rung1"):
            powers.update({str(s.writes[-1]): s.arm.power for s in task.segments})
        if task.id.startswith("rung1-score-") and isinstance(outcome, ScoreOutcome):
            return replace(
                outcome,
                samples=tuple(
                    replace(item, mean=losses[powers[item.key] > 0.0]) for item in outcome.samples
                ),
            )
        return outcome

    _, tasks = checked_run(SweepSpec(NonConvex(), 20_000), reply)
    assert {segment.arm.power for segment in segments(tasks, "final")} == {chosen}


def test_two_kinds_begin_and_one_gets_the_rest() -> None:
    _, tasks = run(SweepSpec(NonConvex(), 20_000))
    begun, final = segments(tasks, "rung1"), segments(tasks, "final")
    assert [(s.arm.base, s.arm.power) for s in begun] == [(GROWING, 0.0), (GROWING, 0.5)]
    assert len({s.arm.value for s in begun}) == 1 and len({s.stop for s in begun}) == 1
    assert any(task.id.startswith("rung1-score-") for task in tasks)
    assert len({s.arm for s in final}) == 1  # with the step that it began with
    assert final[0].state in {s.writes[-1] for s in begun}
    assert sum(s.calls for s in final) > 0.75 * 20_000
    assert not segments(tasks, "rung0")


@pytest.mark.parametrize("method", [NonConvex(), Convex()], ids=["nonconvex", "convex"])
def test_the_last_race_uses_no_sample_that_chose_before(method: Method) -> None:
    _, tasks = run(SweepSpec(method, 10_000))

    def used(*names: str) -> set[int]:
        found = [t for t in tasks if isinstance(t, ScoreTask) and t.id.startswith(names)]
        assert found, names
        return {at for t in found for s in t.samples for at in range(s.start, s.stop)}

    assert not used("race") & (used("rung1-score-") | used("paper-score"))


def test_where_neither_kind_gets_below_the_start_the_rest_is_searched() -> None:
    def high(task: Task) -> Outcome:
        outcome = answer(task)
        if task.id.startswith("rung1-score-") and isinstance(outcome, ScoreOutcome):
            items = tuple(replace(item, mean=1e3, square=1e6) for item in outcome.samples)
            return replace(outcome, samples=items)
        return outcome

    for reply in (high, lost_at_once):
        search, tasks = checked_run(SweepSpec(NonConvex(), 20_000), reply)
        assert {s.arm.base for s in segments(tasks, "rung0")} == {PROMOTED}
        assert sum(search.calls.values()) <= 20_000


def test_a_growing_base_that_was_chosen_brings_no_search() -> None:
    for budget in (1000, 20_000):
        for reply in (answer, lost_at_once):
            search, tasks = checked_run(SweepSpec(NonConvex(base=GROWING), budget), reply)
            assert not segments(tasks, "rung0")
            assert {s.arm.base for s in segments(tasks, "rung")} <= {GROWING}
            assert sum(search.calls.values()) <= budget


@given(
    budget=st.one_of(st.integers(16, 200), st.integers(16, 20_000)),
    reply=st.sampled_from([answer, not_below_the_start, lost_at_once]),
    method=st.sampled_from([NonConvex(), Convex(), Convex(base="adam"), NonConvex(base=GROWING)]),
)
@settings(deadline=None)
def test_calls_never_exceed_the_budget(
    budget: int, reply: Callable[[Task], Outcome], method: Method
) -> None:
    budget = max(budget, 25 if method.paper_base == "sgd" else 16)  # below, plans are refused
    search, _ = checked_run(SweepSpec(method, budget), reply)
    assert sum(search.calls.values()) <= budget
