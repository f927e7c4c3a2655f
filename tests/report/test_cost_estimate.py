"""What a run would do: a dry run of the real search, never above the budget."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import grasp_tune as gt
from grasp_tune.config import estimate_cost, experiment_from
from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.spec import SweepSpec
from grasp_tune.report.dry_run import dry_run, start_point

METHODS = (gt.NonConvex(), gt.Convex(), gt.Convex(option="universal"), gt.ConvexFree())


@given(
    method=st.sampled_from(METHODS),
    schedule=st.sampled_from(["paper", "promote"]),
    budget=st.integers(1, 30_000),
    norm=st.floats(1e-6, 1e6),
    value=st.floats(1e-6, 1e6),
    width=st.sampled_from([0, 64]),
)
@examples(max_examples=60)
def test_a_dry_run_ends_and_never_exceeds_the_budget(
    method: gt.NonConvex, schedule: str, budget: int, norm: float, value: float, width: int
) -> None:
    spec = SweepSpec(method=method, budget=budget, schedule=schedule, width=width)
    try:
        run = dry_run(spec, start_point(norm, value))
    except BudgetTooSmall:
        return
    assert run.calls <= budget
    assert run.calls == sum(map(run.calls_of, ("probe", "train", "score")))


def test_the_papers_rounds_are_the_plans_numbers() -> None:
    plan = gt.NonConvex().plan(budget=10_000, grad_norm=1.3)
    run = dry_run(
        SweepSpec(method=gt.NonConvex(), budget=10_000, schedule="paper"), start_point(1.3, 2.0)
    )
    assert run.plan is not None and run.plan.cells == plan.cells
    assert [item.phase for item in run.rounds] == ["probe", "probe", "train", "score"]
    assert run.values == tuple(cell.value for cell in plan.cells)
    assert run.calls_of("train") == plan.training_calls


def test_disk_space_counts_what_is_kept_at_a_time() -> None:
    experiment = experiment_from(
        {
            "problem": {"dataset": "digits", "model": "softmax"},
            "method": "convex",
            "schedule": "paper",
            "budget": 4000,
        }
    )
    estimate = estimate_cost(experiment)
    cells = len(estimate.run.plan.cells)  # type: ignore[union-attr]
    assert estimate.measured is not None and estimate.disk is not None
    # One candidate a cell, and the model that is returned; 65 * 10 numbers of 4 bytes and a header.
    assert estimate.disk == (cells + 1) * estimate.measured.point
    assert 2600 < estimate.measured.point < 4000
    assert estimate.seconds == pytest.approx(estimate.run.calls * estimate.measured.call)


def test_a_wide_range_and_its_phases_are_told_in_words() -> None:
    experiment = experiment_from(
        {
            "problem": {"dataset": "digits"},
            "method": {"name": "nonconvex", "base": "adam"},
            "budget": 2000,
        }
    )
    estimate = estimate_cost(experiment, grad_norm=1.3, value=2.3)
    names = [phase.name for phase in estimate.phases]
    assert (names[0], names[1], names[-1]) == ("probe", "rung 1", "choose")
    assert "run" in estimate.phases[1].what and "runs" in estimate.phases[2].what
    assert estimate.range is not None and estimate.range[1] / estimate.range[0] > 15.9


def test_a_run_that_is_looked_at_is_one_line_and_says_on_what() -> None:
    problem = {"dataset": "digits", "validation": 0.1}
    estimate = estimate_cost(experiment_from({"problem": problem, "budget": 3000}))
    *_, final, choose = estimate.phases
    assert final.what.endswith(", going on, in 8 parts, looked at on validation rows")
    assert choose.name == "choose" and " on validation rows" in choose.what
    assert sum(phase.calls for phase in estimate.phases) == estimate.run.calls


def test_a_plan_with_patience_expects_a_run_that_gets_better() -> None:
    spec = SweepSpec(gt.NonConvex(), 3000, gt.Promote(patience=2))
    run = dry_run(spec, start_point(1.0, 2.0, 10))
    assert 2900 <= run.calls <= 3000
    assert sum("look" in task.id for item in run.rounds for task in item.tasks) == 11  # 4 early
