"""Objectives of the user's own: the learning rate solved inside each trial."""

import math

import optuna
import pytest
import torch
from optuna.trial import TrialState
from torch import nn

import grasp_tune as gt
from grasp_tune.optuna import train


def wide(width: int) -> gt.TorchProblem:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(60, 3, generator=draw)
    y = torch.tanh(x @ torch.tensor([2.0, -1.0, 0.5]))
    return gt.TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1)),
        loss=lambda model, batch: ((model(batch[0]).squeeze(-1) - batch[1]) ** 2).mean(),
        data=(x, y),
        batch_size=8,
    )


def test_a_trial_trains_without_a_learning_rate_and_says_how() -> None:
    study = optuna.create_study()
    study.optimize(lambda trial: train(trial, wide(trial.suggest_int("width", 1, 8)), 120), 2)
    for trial in study.trials:
        assert trial.value is not None and trial.value < 0.5
        assert trial.user_attrs["oracle_calls"] <= 120
        assert trial.user_attrs["step"] > 0
        assert list(trial.intermediate_values) == list(range(1, len(trial.intermediate_values) + 1))
        losses = list(trial.intermediate_values.values())
        assert losses == sorted(losses, reverse=True)


def test_a_pruner_ends_it_early() -> None:
    class Second(optuna.pruners.BasePruner):
        def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
            return trial.last_step == 2

    study = optuna.create_study(pruner=Second())
    study.optimize(lambda trial: train(trial, wide(2), 200), 1)
    assert study.trials[0].state == TrialState.PRUNED
    assert list(study.trials[0].intermediate_values) == [1, 2]


def test_the_paper_s_choice_by_gradients_still_gives_a_loss() -> None:
    study = optuna.create_study()
    how = {"method": gt.NonConvex(L_eps=9.0, F_eps=9.0, delta=0.3), "schedule": "paper"}
    study.optimize(lambda trial: train(trial, wide(2), 400, **how), 1)
    assert math.isfinite(study.best_value)


def test_something_else_than_a_problem_is_named() -> None:
    study = optuna.create_study()
    with pytest.raises(gt.InputError, match="problem: got Linear"):
        study.optimize(lambda trial: train(trial, nn.Linear(1, 1), 10), 1)  # type: ignore[arg-type]
