"""What a run would do: rehearsed with the real search, never above the budget."""

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import grasp_tune as gt
from grasp_tune.config import experiment_from, look_ahead
from grasp_tune.core.errors import BudgetTooSmall
from grasp_tune.core.spec import SweepSpec
from grasp_tune.report.dry_run import Start, rehearse

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
def test_a_rehearsal_ends_and_never_exceeds_the_budget(
    method: gt.NonConvex, schedule: str, budget: int, norm: float, value: float, width: int
) -> None:
    spec = SweepSpec(method=method, budget=budget, schedule=schedule, width=width)  # type: ignore[arg-type]
    try:
        rehearsal = rehearse(spec, Start(norm, value))
    except BudgetTooSmall:
        return
    assert rehearsal.calls <= budget
    assert rehearsal.calls == sum(map(rehearsal.calls_of, ("probe", "train", "score")))


def test_the_papers_rounds_are_the_plans_numbers() -> None:
    plan = gt.NonConvex().plan(budget=10_000, grad_norm=1.3)
    rehearsal = rehearse(
        SweepSpec(method=gt.NonConvex(), budget=10_000, schedule="paper"), Start(1.3, 2.0)
    )
    assert rehearsal.plan is not None and rehearsal.plan.cells == plan.cells
    assert [item.phase for item in rehearsal.rounds] == ["probe", "train", "score"]
    assert rehearsal.values == tuple(cell.value for cell in plan.cells)
    assert rehearsal.calls_of("train") == plan.training_calls


def test_disk_space_counts_what_is_kept_at_a_time() -> None:
    experiment = experiment_from(
        {
            "problem": {"dataset": "digits", "model": "softmax"},
            "method": "convex",
            "schedule": "paper",
            "budget": 4000,
        }
    )
    outlook = look_ahead(experiment)
    cells = len(outlook.rehearsal.plan.cells)  # type: ignore[union-attr]
    assert outlook.speed is not None and outlook.disk is not None
    # One candidate a cell, and the model that is returned; 65 * 10 numbers of 4 bytes and a header.
    assert outlook.disk == (cells + 1) * outlook.speed.point
    assert 2600 < outlook.speed.point < 4000
    assert outlook.seconds == pytest.approx(sum(phase.seconds or 0.0 for phase in outlook.phases))


def test_a_wide_range_and_its_phases_are_told_in_words() -> None:
    experiment = experiment_from(
        {
            "problem": {"dataset": "digits"},
            "method": {"name": "nonconvex", "base": "adam"},
            "budget": 2000,
        }
    )
    outlook = look_ahead(experiment, grad_norm=1.3, value=2.3)
    names = [phase.name for phase in outlook.phases]
    assert (names[0], names[1], names[-1]) == ("probe", "rung 1", "choose")
    assert "runs" in outlook.phases[1].what
    assert outlook.range is not None and outlook.range[1] / outlook.range[0] > 1e6
