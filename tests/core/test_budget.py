"""No search ever asks for more oracle calls than its budget, from one call on."""

import math
import random
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grasp_tune.core.choice import Choice
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, Method, NonConvex
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import AnySchedule, EnsembleName, SweepSpec
from grasp_tune.core.tasks import Outcome, ProbeOutcome, Task, TrainOutcome
from grasp_tune.schedules.promote import Promote
from tests.core.simulation import answer, unit

METHODS: tuple[Method, ...] = (
    NonConvex(),
    NonConvex(L_eps=1.0, F_eps=1.0),
    NonConvex(probe=0.5, base="adam"),
    NonConvex(delta=0.3, base="unixgrad"),
    NonConvex(base="muon"),
    Convex(),
    Convex(probe=1e-6),
    Convex(option="universal", probe=0.5),
    Convex(base="adagrad"),
    ConvexFree(),
    ConvexFree(d_eps=1e3),
    Deterministic(),
    Deterministic(base="sgd"),
)
ENSEMBLES: tuple[EnsembleName, ...] = ("resample", "window")


def spent(spec: SweepSpec, reply: object = answer) -> int:
    """The calls of a whole search, or of its beginning where the budget is refused."""
    search = Search(spec)
    total, there = 0, {"x0"}
    try:
        while not isinstance(step := search.ask(), Step):
            assert there.issuperset(step.reads), step.id  # what it reads has been left for it
            there.update(step.writes)
            total += step.calls
            outcome = reply(step)  # type: ignore[operator]
            total += outcome.calls - step.calls
            search.tell(step, outcome)
    except InputError:  # too small a budget; and exact values need no window
        return total
    assert search.choice is not None
    assert total == sum(search.calls.values())
    return total


@pytest.mark.parametrize("schedule", ["promote", "paper"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_no_budget_is_exceeded_from_one_call_on(method: Method, schedule: str) -> None:
    for budget, ensemble in product([*range(1, 61), *range(61, 201, 7)], ENSEMBLES):
        spec = SweepSpec(method, budget, schedule, ensemble=ensemble)
        assert spent(spec) <= budget, spec


def wild(seed: int) -> object:
    """A worker whose runs diverge, stall or solve the problem by chance."""

    def reply(task: Task) -> Outcome:
        outcome, chance = answer(task), unit("wild", seed, task.id)
        if isinstance(outcome, ProbeOutcome):
            return replace(outcome, gradient_norm=10.0 ** (20 * chance - 10))
        if isinstance(outcome, TrainOutcome):
            items = [
                replace(
                    item,
                    finite=unit("finite", seed, task.id, item.arm) > 0.3,
                    loss=math.nan if chance < 0.2 else 10.0 ** (8 * chance - 5),
                )
                for item in outcome.segments
            ]
            return replace(outcome, segments=tuple(items))
        return outcome

    return reply


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    method=st.sampled_from(METHODS),
    budget=st.one_of(st.integers(1, 300), st.integers(300, 6_000)),
    schedule=st.one_of(
        st.sampled_from(["promote", "paper"]),
        st.builds(
            Promote,
            probe_share=st.sampled_from([0.0, 1 / 64, 0.9]),
            paper_shares=st.sampled_from([(), (1 / 64, 1 / 16), (0.9,)]),
            lanes_budget=st.sampled_from([1, 4_000]),
            lane_calls=st.sampled_from([1, 1_000]),
            race_share=st.sampled_from([0.0, 0.01, 0.9]),
            patience=st.sampled_from([0, 2]),
            look_share=st.sampled_from([0.004, 0.2]),
            least_length=st.sampled_from([1, 8, 50]),
            second_length=st.sampled_from([1.0, 3.0, 20.0]),
            doublings=st.sampled_from([2, 24]),
            parts=st.sampled_from([1, 8, 40]),
            jump=st.sampled_from([1.0, 2.0]),
        ),
    ),
    ensemble=st.sampled_from(ENSEMBLES),
    challengers=st.sampled_from([(), ("sgd",), ("sgd", "adamw", "unixgrad")]),
)
def test_no_options_and_no_outcomes_make_a_search_exceed_its_budget(
    seed: int,
    method: Method,
    budget: int,
    schedule: AnySchedule,
    ensemble: EnsembleName,
    challengers: tuple[str, ...],
) -> None:
    spec = SweepSpec(method, budget, schedule, ensemble=ensemble, challengers=challengers)
    assert spent(spec, wild(seed)) <= budget


def test_a_schedule_that_asks_for_too_much_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Promote, "probe_calls", lambda self, spec: spec.budget + 1)
    with pytest.raises(SearchError, match="asks for 101 oracle calls, but 100 are left"):
        Search(SweepSpec(NonConvex(), 100))


powers = st.floats(-300.0, 300.0).map(lambda power: 10.0**power)
chances = st.floats(-300.0, -0.5).map(lambda power: 10.0**power)
any_method = st.one_of(
    st.builds(NonConvex, L_eps=powers, F_eps=powers, delta=chances),
    st.builds(Convex, d_eps=powers, L_eps=powers, delta=chances),
    st.builds(Convex, d_eps=powers, L_eps=powers, option=st.just("universal")),
    st.builds(ConvexFree, d_eps=powers, delta=chances),
    st.builds(Deterministic, d_eps=powers, L_eps=powers),
)


@settings(max_examples=60, deadline=None)
@given(
    method=any_method,
    budget=st.integers(1, 200),
    schedule=st.sampled_from(["promote", "paper"]),
    norm=st.one_of(powers, st.just(0.0)),
    loss=st.one_of(powers, powers.map(lambda x: -x)),
    seed=st.integers(0, 10**6),
)
def test_any_inputs_and_any_order_of_tells_end_in_the_same_choice_within_the_budget(
    method: Method, budget: int, schedule: str, norm: float, loss: float, seed: int
) -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if isinstance(outcome, ProbeOutcome):
            squares = (min(x * x, 1e308) if abs(x) < 1e154 else 1e308 for x in (norm, loss))
            gradient, value = squares
            found = replace(outcome, gradient_norm=norm, gradient_square=gradient)
            return replace(found, value=loss, value_square=value)
        if isinstance(outcome, TrainOutcome):
            items = (replace(item, loss=item.loss * loss) for item in outcome.segments)
            return replace(outcome, segments=tuple(items))
        return outcome

    choices, draw = list[Choice | None](), random.Random(seed)
    for shuffled in (False, True):
        search, calls = Search(SweepSpec(method, budget, schedule)), 0
        try:
            while tasks := _asked(search):
                if shuffled:
                    draw.shuffle(tasks)
                for task in tasks:
                    if shuffled and draw.random() < 0.1:
                        search.release(task)
                        continue
                    outcome = reply(task)
                    calls += outcome.calls
                    assert search.tell(task, outcome)
                    assert not search.tell(task, outcome)  # twice is no news
                if shuffled and draw.random() < 0.1:
                    search = Search.from_state(search.state())
        except InputError:  # a range beyond the doubles, or too small a budget
            choices.append(None)
            continue
        assert calls <= budget
        choices.append(search.choice)
    assert choices[0] == choices[1]


def _asked(search: Search) -> list[Task]:
    """All tasks that can be had at once."""
    tasks = []
    while not isinstance(step := search.ask(), Step):
        tasks.append(step)
    return tasks
