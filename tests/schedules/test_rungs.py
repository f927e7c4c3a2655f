"""The rungs: who enters, from which states, and which states nobody needs any more."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import state_key
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.rounds import Round
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Arm,
    Outcome,
    ProbeOutcome,
    SampleOutcome,
    ScoreOutcome,
    ScoreTask,
    SegmentOutcome,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.schedules.promote import Promote
from grasp_tune.schedules.promote_options import Rung
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.rungs import RungResult, entrants, run_rung
from tests.core.simulation import ORIGIN, answer

PROBE = ProbeOutcome(100, ORIGIN, 100, 2.0, 5.0, 400, 100, 2.3, 5.4)
FIVE = Rung(0.04, 3, (1 / 16, 1 / 4, 1.0, 4.0, 16.0))
THREE = Rung(0.05, 1, (1 / 4, 1.0, 4.0))


def standing(budget: int = 10_000, next_run: int = 50) -> PromoteState:
    spec = SweepSpec(NonConvex(), budget)
    plan = spec.method.plan(budget, 2.0)
    return PromoteState(Promote(), spec, PROBE, plan, left=budget, next_run=next_run)


def ranked(age: int, *arms: Arm, lost: tuple[Arm, ...] = ()) -> RungResult:
    """The ends of a rung: `arms` from the best to the worst, and those that diverged."""
    losses = {arm: 0.1 * place for place, arm in enumerate(arms, start=1)}
    return RungResult(age, list(arms), losses | dict.fromkeys(lost, math.nan), 0.0)


# ---- entrants ------------------------------------------------------------------------------------


def test_neighbours_that_exist_are_reused_and_missing_ones_begin_from_the_best() -> None:
    # Steps 16 apart, best 0.8: 0.05 and 12.8 are there, 0.2 and 3.2 are not.
    low, top, high = (Arm.of(i, "adam", v) for i, v in ((1, 0.05), (2, 0.8), (3, 12.8)))
    place = standing()
    arms, origins = entrants(place, FIVE, ranked(30, top, low, high))
    assert arms == [low, Arm.of(50, "adam", 0.2), top, Arm.of(51, "adam", 3.2), high]
    assert origins == {50: state_key(2, 30), 51: state_key(2, 30)}
    assert place.next_run == 52


def test_a_neighbour_that_diverged_is_tried_again_from_the_best() -> None:
    top, gone = Arm.of(1, "adam", 0.8), Arm.of(2, "adam", 3.2)
    arms, origins = entrants(standing(), THREE, ranked(30, top, lost=(gone,)))
    assert gone not in arms
    assert [arm.value for arm in arms] == pytest.approx([0.2, 0.8, 3.2])
    assert set(origins.values()) == {state_key(1, 30)}


def test_new_runs_are_of_the_kind_of_the_best() -> None:
    top, other = Arm.of(1, "adam", 0.8, power=0.5), Arm.of(2, "adam", 0.2, power=1.0)
    arms, _ = entrants(standing(), replace(THREE, kinds=2), ranked(30, top, other))
    assert [(arm.value, arm.power) for arm in arms] == [
        (0.2, 0.5), (0.8, 0.5), (3.2, 0.5), (0.05, 1.0), (0.2, 1.0), (0.8, 1.0),
    ]  # fmt: skip


def test_only_the_best_kinds_enter() -> None:
    # Best first: power 1, power 0, power 0, power 0.5.
    best, second = Arm.of(7, "adam", 0.3, power=1.0), Arm.of(8, "adam", 0.3, power=0.0)
    rest = (Arm.of(9, "adam", 1.2, power=0.0), Arm.of(10, "adam", 0.3, power=0.5))
    arms, _ = entrants(standing(), replace(THREE, kinds=2), ranked(30, best, second, *rest))
    assert {arm.power for arm in arms} == {1.0, 0.0}


def test_unixgrad_gets_no_new_runs() -> None:
    low, top = Arm.of(1, "unixgrad", 0.2), Arm.of(2, "unixgrad", 0.8)
    place = standing()
    assert entrants(place, FIVE, ranked(30, top, low)) == ([low, top], {})
    assert place.next_run == 50


def test_a_step_that_no_number_holds_is_left_out() -> None:
    top = Arm.of(1, "adam", 1e308)
    arms, _ = entrants(standing(), THREE, ranked(30, top))
    assert [arm.value for arm in arms] == [0.25e308, 1e308]


def test_states_nobody_needs_are_discarded() -> None:
    top, near, far, gone = (
        Arm.of(i, "adam", v) for i, v in ((1, 0.8), (2, 3.2), (3, 100.0), (4, 1e4))
    )
    place = standing()
    first, _ = entrants(place, THREE, ranked(30, top, near, far, lost=(gone,)))
    assert place.discard == (state_key(3, 30), state_key(4, 30))
    assert [arm.index for arm in first] == [50, 1, 2]
    # One rung further the states at 30 have served. The new ones at 90: run 50 is the best, its
    # quarter is new, 1 is four times as bold; 2 is sixteen times as bold and is left behind.
    entrants(place, THREE, ranked(90, first[0], top, near))
    assert place.discard == (state_key(1, 30), state_key(2, 30), state_key(2, 90))


# ---- a rung, its fresh samples and its ends ------------------------------------------------------


def trained(task: TrainTask, losses: dict[int, float]) -> TrainOutcome:
    items = tuple(
        SegmentOutcome(s.arm.index, s.calls, True, losses[s.arm.index], 1.0, 1.0)
        for s in task.segments
    )
    return TrainOutcome(task.calls, ORIGIN, items)


def looked(task: ScoreTask, means: dict[str, list[float]]) -> ScoreOutcome:
    """Each candidate's blocks score the given means, one after the other."""
    items = tuple(
        SampleOutcome(s.key, s.stop - s.start, mean := means[s.key].pop(0), mean * mean)
        for s in task.samples
    )
    return ScoreOutcome(task.calls, ORIGIN, items)


@pytest.mark.parametrize("unit", [1.0, 2.0**600, 2.0**-600])  # squares of which overflow
def test_fresh_samples_outvote_the_losses_of_training(unit: float) -> None:
    top, bold = Arm.of(1, "adam", 0.8), Arm.of(2, "adam", 3.2)
    place = standing(budget=3200)
    # 0.1 * 3200 / 2 = 160 calls each; 0.01 * 3200 / 2 = 16 samples each, 2 a block.
    rung = Rung(0.1, 1, (1.0, 4.0), samples=0.01)
    steps = run_rung(place, rung, 3, ranked(30, top, bold))
    training = next(steps)
    assert {s.stop - s.start for t in training.tasks if isinstance(t, TrainTask)
            for s in t.segments} == {160}  # fmt: skip
    told: dict[str, Outcome | None] = {
        task.id: trained(task, {1: 0.4, 2: 0.5})
        for task in training.tasks
        if isinstance(task, TrainTask)
    }
    looking = steps.send(told)
    # The differences are 0.2 and 0.4 by turns: mean 0.3, squared deviations 8 * 0.01, so that the
    # variance is 0.08 / 7 and the standard error sqrt(0.08 / 7 / 8) = 0.0378.
    blocks = {
        str(state_key(1, 190)): [0.5 * unit, 0.7 * unit] * 4,
        str(state_key(2, 190)): [0.3 * unit] * 8,
    }
    scored: dict[str, Outcome | None] = {
        task.id: looked(task, blocks) for task in looking.tasks if isinstance(task, ScoreTask)
    }
    with pytest.raises(StopIteration) as end:
        steps.send(scored)
    ends, _ = end.value.value
    assert ends.age == 190 and ends.arms == [bold, top]
    assert ends.losses[top] / unit == pytest.approx(0.6)
    assert ends.losses[bold] / unit == pytest.approx(0.3)
    assert ends.noise / unit == pytest.approx(0.0378, abs=1e-4)
    assert place.sampled == 16
    assert place.left == 3200 - 2 * 160 - 2 * 16


def test_a_run_that_was_lost_is_out_and_costs_nothing() -> None:
    top, bold = Arm.of(1, "adam", 0.8), Arm.of(2, "adam", 3.2)
    place = standing(budget=1000)
    steps = run_rung(place, Rung(0.1, 1, (1.0, 4.0)), 3, ranked(30, top, bold))
    training: Round = next(steps)
    first, second = (task for task in training.tasks if isinstance(task, TrainTask))
    with pytest.raises(StopIteration) as end:
        steps.send({first.id: None, second.id: trained(second, {2: 0.5})})
    ends, _ = end.value.value
    assert ends.arms == [bold] and math.isnan(ends.losses[top])
    assert place.left == 1000 - 50


# ---- in a whole search ---------------------------------------------------------------------------


def followed(
    budget: int, reply: Callable[[Task], Outcome], width: int = 0
) -> tuple[Search, list[Task], set[str]]:
    """A search to its end; every checkpoint must be there when it is read. What is there last."""
    search, tasks = Search(SweepSpec(NonConvex(base="adam"), budget, width=width)), []
    there: set[str] = set()
    while not isinstance(step := search.ask(), Step):
        assert set(step.reads) <= there, step.id
        there.update(step.writes)
        tasks.append(step)
        search.tell(step, reply(step))
        gone = search.discardable()
        assert search.leader not in gone
        there.difference_update(gone)
    return search, tasks, there


@given(budget=st.integers(30, 30_000), lost=st.sets(st.integers(1, 120)), bad=st.integers(0, 9))
def test_no_state_is_discarded_that_is_still_needed(budget: int, lost: set[int], bad: int) -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if not isinstance(outcome, TrainOutcome):
            return outcome
        down = task.id.startswith(f"rung{bad}")
        items = tuple(
            replace(item, finite=False, loss=math.nan) if down or item.arm in lost else item
            for item in outcome.segments
        )
        return replace(outcome, segments=items)

    search, _, there = followed(budget, reply)
    assert search.choice is not None
    assert search.choice.key in there | {"x0"}
    assert sum(search.calls.values()) <= budget


def test_what_the_rungs_leave_behind_is_the_winners_beginning_only() -> None:
    search, tasks, there = followed(20_000, answer)
    final = next(t for t in tasks if isinstance(t, TrainTask) and t.id.startswith("final0"))
    states = {key for key in there if key.endswith("-state")}
    made = {key for t in tasks if t.id.startswith("rung") for key in t.writes}
    assert states & made == {str(final.segments[0].state)}
    assert search.choice is not None


@pytest.mark.parametrize("bad", [1, 2, 3, 4])
def test_a_rung_in_which_all_diverges_lets_the_best_of_the_rung_before_go_on(bad: int) -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if task.id.startswith(f"rung{bad}") and isinstance(outcome, TrainOutcome):
            items = (replace(i, finite=False, loss=math.nan, calls=1) for i in outcome.segments)
            return replace(outcome, segments=tuple(items), calls=len(outcome.segments))
        return outcome

    search, tasks, _ = followed(20_000, reply)
    entered = [t for t in tasks if isinstance(t, TrainTask) and t.id.startswith(f"rung{bad}")]
    final = [t for t in tasks if isinstance(t, TrainTask) and t.id.startswith("final")]
    assert len(final) == 8 and not any(t.id.startswith(f"rung{bad + 1}") for t in tasks)
    first = final[0].segments[0]
    # The best of the rung before is the one that the first entrants of this one began from.
    assert first.start == entered[0].segments[0].start
    assert first.state in {s.state for t in entered for s in t.segments}
    assert search.choice is not None
    assert not any("finite" in note for note in search.choice.notes)
    # What the diverged rung did not use goes to the final stretch.
    assert sum(t.calls for t in final) > 0.6 * 20_000
