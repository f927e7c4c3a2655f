"""The default schedule: who goes on, what the final stretch does, and what it all costs."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.methods import Convex, Method, NonConvex
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Outcome,
    ProbeOutcome,
    ProbeTask,
    ScoreTask,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.schedules.promote import Promote
from tests.core.simulation import answer, checked_run, run, segments

SHARES = Promote().paper_shares


@pytest.mark.parametrize("budget", [16, 17, 23, 32, 47, 61, 100, 250])
def test_a_tiny_budget_still_trains_something(budget: int) -> None:
    search, tasks = run(SweepSpec(Convex(), budget))
    assert search.choice is not None
    assert search.calls["train"] > 0 and segments(tasks, "final")
    assert sum(search.calls.values()) <= budget
    assert not any("finite" in note for note in search.choice.notes)


def test_the_winner_gets_most_of_the_budget_and_anneals_to_zero() -> None:
    search, tasks = run(SweepSpec(NonConvex(), 20_000))
    final = segments(tasks, "final")
    assert len({segment.arm for segment in final}) == 1
    assert sum(segment.calls for segment in final) > 0.6 * 20_000
    begin, end = final[0].start, final[-1].stop
    assert all(segment.anneal == (begin, end) for segment in final)
    assert final[-1].step_share(end - 1) < 1e-3
    shares = [final[0].step_share(call) for call in range(begin, end, 500)]
    # Eight lanes: the root of eight times the full step.
    assert shares == sorted(shares, reverse=True) and shares[0] == pytest.approx(8**0.5)
    assert sum(search.calls.values()) > 0.97 * 20_000  # little is left over


def test_fresh_samples_are_paired_and_serve_nobody_else() -> None:
    _, tasks = run(SweepSpec(NonConvex(base="adam"), 40_000))
    ranges: dict[str, set[int]] = {}
    for name in ("paper-score", "race1", "race2"):
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
            jumped = replace(outcome.segments[0], loss=1e3, curve=())
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


def final_losses(
    losses: dict[str, float], silent: dict[str, float] | None = None
) -> Callable[[Task], Outcome]:
    """Replies whose parts end at these losses, by how their names begin; the start's is 2.3.

    The runs before them end above 1.3. A part has so many silent units, and none unless told.
    """

    def reply(task: Task) -> Outcome:
        outcome = answer(task)
        if not isinstance(outcome, TrainOutcome) or task.id.startswith(("ramp", "paper")):
            return outcome
        told = [loss for name, loss in losses.items() if task.id.startswith(name)]
        quiet = [0.0, *(x for name, x in (silent or {}).items() if task.id.startswith(name))]
        ended = (
            replace(run, loss=(told or [1.3 + run.loss])[-1], curve=(), silent=quiet[-1])
            for run in outcome.segments
        )
        return replace(outcome, segments=tuple(ended))

    return reply


def test_a_run_that_stalls_is_measured_against_the_next_smaller_step() -> None:
    stalled = {"final": 1.2, "final0": 1.5, "final1": 1.49, "other": 1.51}
    spec = SweepSpec(NonConvex(base="adam"), 20_000)
    search, tasks = checked_run(spec, final_losses(stalled))
    (other,), second = segments(tasks, "other"), segments(tasks, "second")
    first, later = segments(tasks, "final0")[0], segments(tasks, "final")[2:]
    assert other.start == first.start and other.arm in [run.arm for run in second]
    assert other.arm.value < first.arm.value and abs(other.stop - first.stop) <= 8
    # About as low after one part, it goes on; its run has the calls that are left.
    assert {run.arm for run in later} == {other.arm} and later[0].start == other.stop
    assert later[-1].step_share(later[-1].stop - 1) < 1e-3
    assert 0.97 * 20_000 < sum(search.calls.values()) <= 20_000
    assert search.choice is not None
    assert {row.arm for row in search.choice.candidates} >= {other.arm.index}
    # Where it is not as low, the run itself does.
    _, tasks = checked_run(spec, final_losses(stalled | {"other": 1.6}))
    later = segments(tasks, "final")[2:]
    assert {run.arm for run in later} == {first.arm} and len(later) == 5


@pytest.mark.parametrize("loss", [1.1, 0.2])  # 0.2: a tenth of the start's loss, not of the run's
def test_a_part_that_silences_half_of_a_layer_is_undone(loss: float) -> None:
    losses, spec = {"final": loss}, SweepSpec(NonConvex(), 20_000)
    _, tasks = checked_run(spec, final_losses(losses, {"final3": 0.6}))
    third, fourth, fifth = (segments(tasks, f"final{part}")[0] for part in (2, 3, 4))
    assert fifth.arm.value == fourth.arm.value / 4 and fifth.state == third.writes[-1]
    # Neither where few are silent, nor where they were before, nor where little loss is left.
    always = {"second": 0.5} | {f"final{part}": 0.5 + part / 100 for part in range(8)}
    for reply in (
        final_losses(losses, {"final3": 0.4}),
        final_losses(losses, always),
        final_losses({"final": 0.1}, {"final3": 0.6}),
    ):
        _, tasks = checked_run(spec, reply)
        assert len({segment.arm for segment in segments(tasks, "final")}) == 1


def test_units_that_are_silent_at_a_smaller_step_too_cost_one_part_only() -> None:
    # Such as those of a network whose outputs do not all matter to the loss.
    spec, silent = SweepSpec(NonConvex(), 20_000), {"final": 0.8, "final0": 0.1, "other": 0.8}
    _, tasks = checked_run(spec, final_losses({"final": 1.1}, silent))
    parts = segments(tasks, "final")
    assert segments(tasks, "other") and len({part.arm for part in parts[:2]}) == 1
    assert {part.arm.value for part in parts[2:]} == {parts[1].arm.value / 4}


def test_a_winner_keeps_its_silent_units_when_a_run_beyond_it_follows() -> None:
    spec = SweepSpec(NonConvex(base="adam"), 20_000, Promote(most_places=9))
    _, tasks = run(spec, final_losses({"final": 1.1}))
    largest = max((part.arm for part in segments(tasks, "second")), key=lambda arm: arm.value)
    losses = {"final": 1.1, "end": 1.3, "second": 1.3, f"second-run{largest.index:03d}": 1.2}
    silent = {"second": 0.6, "final": 0.7}  # not half a threshold more than before
    _, tasks = checked_run(spec, final_losses(losses, silent))
    assert segments(tasks, "end") and not segments(tasks, "other")
    assert len({part.arm for part in segments(tasks, "final")}) == 1


def test_a_run_whose_units_die_early_gives_way_to_the_next_smaller_step() -> None:
    # Its loss is lower, and falls; but the state before the part has dying units, too.
    losses = {"final": 1.2, "final0": 1.5, "final1": 1.3, "other": 1.9}
    spec = SweepSpec(NonConvex(base="adam"), 20_000)
    _, tasks = checked_run(spec, final_losses(losses, {"final1": 0.6}))
    (other,) = segments(tasks, "other")
    assert {run.arm for run in segments(tasks, "final")[2:]} == {other.arm}
    # Where its units die as well, the run goes on from its first part with a smaller step.
    _, tasks = checked_run(spec, final_losses(losses, {"final1": 0.6, "other": 0.7}))
    first, later = segments(tasks, "final0")[0], segments(tasks, "final")[2:]
    assert later[0].state == first.writes[-1] and later[0].arm.value == first.arm.value / 4


@pytest.mark.parametrize("losses", [(1.5, 1.4), (1.1, 1.1)])
def test_a_run_that_learns_or_has_learned_needs_no_second_chance(
    losses: tuple[float, float],
) -> None:
    spec, parts = (
        SweepSpec(NonConvex(base="adam"), 20_000),
        dict(zip(("final0", "final1"), losses, strict=True)),
    )
    _, tasks = checked_run(spec, final_losses(parts))
    assert not segments(tasks, "other") and len(segments(tasks, "final")) == 8


def test_the_calls_of_the_last_choice_by_hand() -> None:
    # A hundredth of 10,000; 24 where a hundredth is less; a twentieth of 300; 8; half of 10.
    found = [Promote().race_budget(budget, budget) for budget in (10_000, 1_000, 300, 100)]
    assert found == [100, 24, 15, 8] and Promote().race_budget(1_000, 10) == 5


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_few_parts_still_reach_the_end_of_the_budget(parts: int) -> None:
    spec = SweepSpec(NonConvex(base="adam"), 20_000, Promote(parts=parts))
    search, _ = checked_run(spec, final_losses({"final": 1.5, "other": 1.5}))
    assert 0.97 * 20_000 < sum(search.calls.values()) <= 20_000


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
        (NonConvex(base="muon"), 32_000, 1 / 32),
    ],
    ids=["nonconvex", "convex", "convex-small", "adam", "muon"],
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
    probed = sum(task.calls for task in tasks if isinstance(task, ProbeTask))
    assert probed >= plan.probe_calls // (1 if method.score == "gradient" else 2)
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
