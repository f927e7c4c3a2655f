"""A trial's budget as a loop."""

from pathlib import Path

import optuna
import pytest
import torch
from optuna.artifacts import FileSystemArtifactStore

import grasp_tune as gt
from grasp_tune.core.plan import Plan
from grasp_tune.core.random_streams import trajectory_indices
from grasp_tune.executors.study import CALLS, label_of
from grasp_tune.optuna import GraspSampler, grasp_budget


def asked(plan: Plan) -> tuple[optuna.Study, optuna.Trial]:
    sampler = GraspSampler(plan, "lr", seed=7)
    study = optuna.create_study(sampler=sampler)
    trial = study.ask()
    sampler.suggest(trial)
    return study, trial


def test_two_calls_a_step_never_overrun(plan: Plan) -> None:
    _, trial = asked(plan)
    assert label_of(trial)["budget"] == 96  # floor(6000 / (2 * 31))
    budget = grasp_budget(trial, per_step=7)
    # 13 steps of 7 are 91 calls; a fourteenth would be two calls too many.
    assert list(budget) == [7 * step for step in range(13)]
    assert budget.spent == 91 == trial.user_attrs[CALLS]
    assert next(iter(budget), None) is None  # it stays at its end


def test_a_trial_without_a_cell_says_its_own_budget(plan: Plan) -> None:
    study, _ = asked(plan)
    study.enqueue_trial({"lr": 0.5})
    trial = study.ask()
    with pytest.raises(gt.InputError, match="has no cell"):
        grasp_budget(trial)
    assert list(grasp_budget(trial, calls=3)) == [0, 1, 2]


def test_a_surplus_trial_has_no_budget(plan: Plan) -> None:
    study, _ = asked(plan)
    for _ in plan.cells[1:]:
        study.ask()
    with pytest.raises(optuna.TrialPruned, match="every cell"):
        grasp_budget(study.ask())


def test_a_step_of_no_calls_is_refused(plan: Plan) -> None:
    _, trial = asked(plan)
    with pytest.raises(gt.InputError, match="per_step: got 0"):
        grasp_budget(trial, per_step=0)


def test_the_drawn_iterates_are_uploaded_as_they_are(plan: Plan, tmp_path: object) -> None:
    _, trial = asked(plan)
    index, calls = label_of(trial)["index"], label_of(trial)["budget"]
    wanted = sorted(set(trajectory_indices(7, index, plan.candidates_per_cell, calls)))
    model = torch.nn.Linear(1, 1)
    store = FileSystemArtifactStore(str(tmp_path))
    budget = grasp_budget(trial)
    due = []
    for call in budget:
        if budget.offer(model, store):
            due.append(call)
    assert not budget.offer(model, store)  # the last iterate is not one of them
    assert due == wanted == list(budget.keep)
    assert len(list(Path(str(tmp_path)).iterdir())) == len(wanted)


def test_a_run_whose_last_point_counts_offers_it_after_the_loop(tmp_path: object) -> None:
    plan = gt.Convex().plan(budget=900, grad_norm=1.3)
    _, trial = asked(plan)
    store = FileSystemArtifactStore(str(tmp_path))
    budget = grasp_budget(trial, per_step=2)
    model = torch.nn.Linear(1, 1)
    assert [budget.offer(model, store) for _ in budget].count(True) == 0
    assert budget.offer(model, store)
    assert not budget.offer(model, store)  # once
    assert len(list(Path(str(tmp_path)).iterdir())) == 1
