"""The default schedule: who goes on, what the final stretch does, and what it all costs."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.checkpoint_keys import state_key
from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.methods import Convex, Method, NonConvex
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Arm,
    Outcome,
    ProbeOutcome,
    ProbeTask,
    ScoreOutcome,
    ScoreTask,
    Segment,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.schedules.grid import (
    distance_range,
    first_grid,
    thinned,
)
from grasp_tune.schedules.promote import Promote
from tests.core.simulation import ORIGIN, answer, run, segments

GROWING, SHARES = Promote().measuring, Promote().paper_shares

PROBE = ProbeOutcome(100, ORIGIN, 100, 2.0, 5.0, 400, 100, 2.3, 5.4)


def test_distances_by_hand() -> None:
    # GRASP-NC: F_eps / |g0| = 0.01 / 2 up to |g0| T^2 / L_eps = 2 * 10^6 / 0.01.
    low, high = distance_range(SweepSpec(NonConvex(), 1000), PROBE)
    assert (low, high) == (pytest.approx(0.005), pytest.approx(2e8))
    # GRASP-C: d_eps up to the same.
    low, high = distance_range(SweepSpec(Convex(d_eps=0.3), 1000), PROBE)
    assert (low, high) == (0.3, pytest.approx(2e8))


def test_every_power_has_every_distance_and_runs_are_numbered_from_one() -> None:
    grid = first_grid(Promote(), SweepSpec(Convex(), 10_000), PROBE, most=10_000)
    # log_16(2 * 10^8 / 0.01 / 0.01) = 12.28 / 1.204 = 10.2: 11 distances.
    assert grid.spacing == 16.0
    assert len(grid.arms) == 11 * len(Promote().search_powers)
    assert [arm.index for arm in grid.arms] == list(range(1, 34))
    assert {arm.power for arm in grid.arms} == set(Promote().search_powers)
    assert all(arm.base == "adam" for arm in grid.arms)
    values = [arm.value for arm in grid.arms[:11]]
    assert values == pytest.approx([values[0] * 16**step for step in range(11)])


def test_a_base_whose_number_is_fixed_gets_a_finer_grid() -> None:
    grid = first_grid(Promote(), SweepSpec(Convex(base="unixgrad"), 10_000), PROBE, most=10_000)
    # log_4(2 * 10^12) = 20.4: 21 distances.
    assert grid.spacing == 4.0 and len(grid.arms) == 21
    assert grid.arms[0].value == pytest.approx(4 * 0.01)


@given(most=st.integers(1, 200))
def test_a_coarser_grid_makes_room_and_then_fewer_kinds_do(most: int) -> None:
    # 0.005 to 2 * 10^10: log_256(4 * 10^12) = 5.2, so 6 distances of one kind at the least.
    arms = first_grid(Promote(), SweepSpec(NonConvex(), 10_000), PROBE, most=most).arms
    assert 6 <= len(arms) <= max(most, 6)
    assert arms[0].power == 0.0


@given(count=st.integers(1, 100), most=st.integers(0, 100))
def test_a_thinned_grid_is_spread_evenly(count: int, most: int) -> None:
    arms = [Arm.of(index, "adam", 2.0**index) for index in range(1, count + 1)]
    found = [arm.index for arm in thinned(arms, most)]
    assert len(found) == min(count, most)
    gaps = {after - before for before, after in itertools.pairwise(found)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("budget", [16, 17, 23, 32, 47, 61, 100, 250])
def test_a_tiny_budget_still_trains_something(budget: int) -> None:
    search, tasks = run(SweepSpec(Convex(), budget))
    assert search.choice is not None
    assert search.calls["train"] > 0 and segments(tasks, "final")
    assert sum(search.calls.values()) <= budget
    assert not any("finite" in note for note in search.choice.notes)


def test_a_budget_for_no_run_at_all_says_so() -> None:
    # 2 for the probe, half of the other 10 for the race; half of the 5 left pays for no run of 3.
    search, tasks = run(SweepSpec(Convex(base="adam"), 12))
    assert search.choice is not None
    assert search.choice.key == "x0" and not segments(tasks, "")
    assert any("budget" in note for note in search.choice.notes)


def test_the_winner_gets_most_of_the_budget_and_anneals_to_zero() -> None:
    search, tasks = run(SweepSpec(NonConvex(), 20_000))
    final = segments(tasks, "final")
    assert len({segment.arm for segment in final}) == 1
    assert sum(segment.calls for segment in final) > 0.6 * 20_000
    begin, end = final[0].start, final[-1].stop
    assert all(segment.anneal == (begin, end) for segment in final)
    assert final[-1].step_share(end - 1) < 1e-3
    shares = [final[0].step_share(call) for call in range(begin, end, 500)]
    assert shares == sorted(shares, reverse=True) and shares[0] == 1.0
    assert sum(search.calls.values()) > 0.97 * 20_000  # little is left over


def test_each_rung_goes_on_from_the_runs_that_ended_lowest() -> None:
    _, tasks = run(SweepSpec(NonConvex(base="adam"), 20_000))
    for number, kinds in enumerate((3, 3, 2, 1)):
        before, after = segments(tasks, f"rung{number}"), segments(tasks, f"rung{number + 1}")
        losses = {s.arm: loss for s in before if (loss := end_loss(tasks, number, s)) is not None}
        ranked = sorted(losses, key=losses.__getitem__)
        tops = {arm.kind: arm for arm in reversed(ranked)}  # the best of each kind
        kept = sorted(tops.values(), key=ranked.index)[:kinds]
        assert {s.arm.kind for s in after} == {arm.kind for arm in kept}
        for top in kept:
            entered = [s for s in after if s.arm.kind == top.kind]
            assert top in [s.arm for s in entered]
            fresh = [s for s in entered if s.arm not in losses]
            assert all(s.state == state_key(top.index, s.start) for s in fresh)


def end_loss(tasks: list[Task], number: int, segment: Segment) -> float | None:
    """The loss by which the end of a rung's run is ranked: of fresh samples where there are any."""
    trained = answer(TrainTask("x", (segment,)))
    assert isinstance(trained, TrainOutcome)
    if not trained.segments[0].finite:
        return None
    looks = [task for task in tasks if task.id.startswith(f"rung{number}-score-")]
    assert bool(looks) == (number >= 2)
    told = [out for task in looks if isinstance(out := answer(task), ScoreOutcome)]
    means = {item.key: item.mean for out in told for item in out.samples}
    return means[str(segment.writes[-1])] if looks else trained.segments[0].loss


def test_fresh_samples_of_a_rung_are_paired_and_serve_nobody_else() -> None:
    _, tasks = run(SweepSpec(NonConvex(base="adam"), 40_000))
    ranges: dict[str, set[int]] = {}
    for name in ("paper-score", "rung2-score", "rung3-score", "rung4-score", "race1", "race2"):
        scores = [t for t in tasks if isinstance(t, ScoreTask) and t.id.startswith(f"{name}-")]
        of_key: dict[str, set[int]] = {}
        for sample in (sample for task in scores for sample in task.samples):
            of_key.setdefault(sample.key, set()).update(range(sample.start, sample.stop))
        assert of_key, name
        if name != "paper-score":  # the paper's are independent
            assert len(set(map(frozenset, of_key.values()))) == 1
        ranges[name] = set().union(*of_key.values())
    for one, other in itertools.combinations(ranges.values(), 2):
        assert not one & other


def test_a_jump_of_the_loss_is_undone_with_a_smaller_step_on_fresh_minibatches() -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if task.id.startswith("final3") and isinstance(outcome, TrainOutcome):
            jumped = replace(outcome.segments[0], loss=1e3)
            return replace(outcome, segments=(jumped,))
        return outcome

    search, tasks = run(SweepSpec(NonConvex(), 20_000), reply)
    third, fourth, fifth = (segments(tasks, f"final{part}")[0] for part in (2, 3, 4))
    assert fifth.arm.value == fourth.arm.value / 4
    assert fifth.arm.index != fourth.arm.index
    assert fifth.state == third.writes[-1]  # the last good state
    assert fifth.start == fourth.stop  # its minibatches are new
    assert search.choice is not None
    assert sum(search.calls.values()) <= 20_000
    values = {segment.arm.index: segment.arm.value for segment in segments(tasks, "")}
    assert all(row.value == values[row.arm] for row in search.choice.candidates if row.arm)


def test_where_every_run_diverges_x0_is_returned_and_the_result_says_so() -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if isinstance(outcome, TrainOutcome):
            lost = tuple(
                replace(item, finite=False, loss=math.nan, calls=1) for item in outcome.segments
            )
            return replace(outcome, segments=lost, calls=len(lost))
        return outcome

    search, _ = run(SweepSpec(NonConvex(), 20_000), reply)
    assert search.choice is not None
    assert search.choice.key == "x0"
    assert any("finite" in note for note in search.choice.notes)


@pytest.mark.parametrize(
    ("method", "budget", "share"),
    [
        (NonConvex(), 32_000, 1 / 32),
        (Convex(), 32_000, 1 / 64),
        (Convex(), 2000, 1 / 16),
        (NonConvex(base="adam"), 32_000, 1 / 32),
        (NonConvex(base=GROWING), 32_000, 1 / 32),
    ],
    ids=["nonconvex", "convex", "convex-small", "adam", "growing"],
)
def test_the_paper_runs_on_its_share_and_its_choice_is_in_the_race(
    method: Method, budget: int, share: float
) -> None:
    search, tasks = run(SweepSpec(method, budget))
    probe = tasks[0]
    assert isinstance(probe, ProbeTask)
    measured = answer(probe)
    assert isinstance(measured, ProbeOutcome)
    for smaller in SHARES[: SHARES.index(share)]:
        with pytest.raises(BudgetTooSmall, match="too small"):
            method.plan(int(budget * smaller), measured.gradient_norm, measured.value)
    plan = method.plan(int(budget * share), measured.gradient_norm, measured.value)
    floor = segments(tasks, "paper-run")
    assert [(s.arm.value, s.stop) for s in floor] == [(c.value, c.budget) for c in plan.cells]
    assert {s.arm.base for s in floor} == {method.paper_base}
    assert probe.calls >= plan.probe_calls // (1 if method.score == "gradient" else 2)
    assert search.choice is not None
    assert search.choice.share == share and search.choice.covered
    racing = {row.arm for row in search.choice.candidates}
    assert racing & {s.arm.index for s in floor}


def test_a_budget_too_small_for_the_share_says_that_the_theorem_does_not_apply() -> None:
    search, _ = run(SweepSpec(NonConvex(), 3000))
    assert search.choice is not None
    assert search.choice.share == 0.0 and not search.choice.covered


@pytest.mark.parametrize("bad", ["0", "7", "01", "67", "0123456", "01234567"])
def test_whatever_parts_jump_the_candidates_are_there_and_bear_their_runs_numbers(bad: str) -> None:
    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if task.id[:5] == "final" and task.id[5] in bad and isinstance(outcome, TrainOutcome):
            lost = replace(outcome.segments[0], finite=False, loss=math.nan)
            return replace(outcome, segments=(lost,))
        return outcome

    search = Search(SweepSpec(NonConvex(), 20_000))
    there: set[str] = set()
    values: dict[int, float] = {}
    while not isinstance(step := search.ask(), Step):
        assert set(step.reads) <= there, step.id
        there.update(step.writes)
        if isinstance(step, TrainTask):
            values |= {segment.arm.index: segment.arm.value for segment in step.segments}
        search.tell(step, reply(step))
        there.difference_update(search.discardable())
    assert search.choice is not None
    assert all(row.value == values[row.arm] for row in search.choice.candidates if row.arm)
    assert sum(search.calls.values()) <= 20_000


@pytest.mark.parametrize("budget", [60, 1000, 20_000])
@pytest.mark.parametrize("method", [NonConvex(), Convex(base="adam")])
def test_a_choice_without_fresh_samples_has_the_loss_of_the_runs_last_minibatches(
    method: Method, budget: int
) -> None:
    search, tasks = run(SweepSpec(method, budget, ensemble="window"))
    assert search.choice is not None
    chosen = search.choice.chosen
    (last,) = [s for s in segments(tasks, "final") if chosen.call == s.stop]
    outcome = answer(TrainTask("final", (last,)))
    assert isinstance(outcome, TrainOutcome)
    assert chosen.score == outcome.segments[0].window_loss
