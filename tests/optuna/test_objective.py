"""Objectives of the user's own: the learning rate solved inside each trial."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import torch
import torch.nn.functional as F
from optuna.trial import TrialState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import grasp_tune as gt
from grasp_tune.executors import study as log_module
from grasp_tune.optuna import TaskSampler, optimizer, train
from grasp_tune.optuna.objective import ObjectiveTrial
from tests.optuna.conftest import Place


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
    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"width": [3, 5, 8]}))
    study.optimize(lambda trial: train(trial, wide(trial.suggest_int("width", 1, 8)), 120))
    assert len(study.trials) == 3
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
    assert 0 < study.trials[0].user_attrs["oracle_calls"] < 100


def test_the_paper_s_choice_by_gradients_still_gives_a_loss() -> None:
    study = optuna.create_study()
    how = {"method": gt.NonConvex(L_eps=9.0, F_eps=9.0, delta=0.3), "schedule": "paper"}
    study.optimize(lambda trial: train(trial, wide(2), 400, **how), 1)
    assert math.isfinite(study.best_value)


def test_something_else_than_a_problem_is_named() -> None:
    study = optuna.create_study()
    with pytest.raises(gt.InputError, match="problem: got Linear"):
        study.optimize(lambda trial: train(trial, nn.Linear(1, 1), 10), 1)  # type: ignore[arg-type]


def test_a_study_that_would_look_for_the_worst_loss_is_refused() -> None:
    study = optuna.create_study(direction="maximize")
    with pytest.raises(gt.InputError, match="the study maximizes, but train returns a loss"):
        study.optimize(lambda trial: train(trial, wide(2), 100), 1)


# -- one task a trial ------------------------------------------------------------------------------


def rows() -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(96, 6, generator=draw)
    return TensorDataset(x, (x[:, 0] + 0.3 * torch.randn(96, generator=draw) > 0.1).long())


def whole_loss(model: nn.Module) -> float:
    x, y = rows().tensors
    with torch.no_grad():
        return float(F.cross_entropy(model(x), y))


def classify(trial: optuna.Trial, fault: str = "") -> float:
    """What a user has: nothing is seeded, so that every trial builds another model."""
    model = nn.Linear(6, 2)
    opt = optimizer(trial, model)
    while not opt.done:
        for x, y in DataLoader(rows(), batch_size=8, shuffle=True):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if fault == "error" and opt.calls == 1:
                raise RuntimeError("the network is down")
            if fault == "early" and opt.calls == 2:
                opt.finish()
            if fault == "silent" and opt.calls == 2:
                return 0.0
            opt.step({"nan": loss * math.nan, "forgotten": None}.get(fault, loss))
    if fault == "late":
        opt.step(0.0)
    return whole_loss(model)


def test_each_trial_is_a_task_and_the_best_has_the_chosen_weights() -> None:
    torch.manual_seed(0)  # of this process: what the trials build and shuffle
    sampler = TaskSampler(budget=150)
    study = optuna.create_study(sampler=sampler)
    study.optimize(classify)  # ends by itself
    result = sampler.result(study)
    assert not result.partial
    assert sum(result.calls.values()) <= 150
    *parts, last = study.trials
    assert all(trial.state == TrialState.PRUNED for trial in parts)
    assert {trial.user_attrs["phase"] for trial in parts} == {"probe", "train", "score"}
    assert study.best_trial == last and last.user_attrs["step"] > 0
    assert study.best_value == whole_loss(result.restore(nn.Linear(6, 2))) < 0.45
    study.optimize(classify)  # nothing is left: one trial, which ends before it begins
    assert study.trials[-1].state == TrialState.PRUNED
    assert len(study.trials) == len(parts) + 2


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("error", RuntimeError, "the network is down"),
        ("nan", gt.ProblemError, "the loss at the start point is nan"),
        ("forgotten", gt.InputError, r"call opt.step\(loss\)"),
        ("early", gt.InputError, r"the loop ended after 2 of the \d+ oracle calls .*opt.done"),
        ("silent", gt.InputError, "the objective ended in the middle of .*loop until opt.done"),
    ],
)
def test_a_fault_is_one_sentence_and_the_study_goes_on(
    fault: str, kind: type[Exception], words: str
) -> None:
    sampler = TaskSampler(budget=150)
    study = optuna.create_study(sampler=sampler)
    with pytest.raises(kind, match=words):
        study.optimize(lambda trial: classify(trial, fault))
    if fault != "nan":
        study.optimize(classify)
        assert not sampler.result(study).partial
        assert study.best_value < 0.55


def test_a_last_trial_that_always_fails_ends_the_study_and_another_call_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampler = TaskSampler(budget=150)
    study = optuna.create_study(sampler=sampler)
    # `late` steps after the end of the last trial.
    study.optimize(lambda t: classify(t, "late"), n_trials=60, catch=(Exception,))
    failed = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    assert len(failed) == 3
    assert "the last trial, which has the chosen weights, failed 3 times" in caplog.text
    study.optimize(classify)
    assert study.best_value < 0.55


@pytest.mark.parametrize("phase", ["train", "result"])
def test_a_lost_checkpoint_is_made_again(phase: str) -> None:
    sampler, lost = TaskSampler(budget=150), list[str]()
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        task = ObjectiveTrial(sampler, trial).task
        kept = [sampler.result(study).choice.key] if task is None else list(task.reads)
        if kept and not lost and (task is None) == (phase == "result"):
            lost.append(kept[0])
            ObjectiveTrial(sampler, trial).store.delete(kept[0])
        return classify(trial)

    study.optimize(objective)
    result = sampler.result(study)
    assert lost and not result.partial and result.calls["repeated"] > 0
    assert study.best_value == whole_loss(result.restore(nn.Linear(6, 2)))


def test_a_step_too_many_changes_nothing() -> None:
    sampler = TaskSampler(budget=100)
    study = optuna.create_study(sampler=sampler)
    with pytest.warns(UserWarning, match="the budget is spent"):
        study.optimize(lambda trial: classify(trial, "late"))
    assert study.best_value == whole_loss(sampler.result(study).restore(nn.Linear(6, 2)))


def test_before_anything_has_run_there_is_no_result() -> None:
    sampler = TaskSampler(budget=100)
    with pytest.raises(gt.SearchError, match="no result yet"):
        sampler.result(optuna.create_study(sampler=sampler))


def test_another_sampler_is_named() -> None:
    with pytest.raises(gt.InputError, match="sampler is a TPESampler"):
        optuna.create_study().optimize(classify, 1)


def test_other_parameters_are_constants_of_the_sweep() -> None:
    seen: set[int] = set()

    def objective(trial: optuna.Trial) -> float:
        seen.add(trial.suggest_int("width", 1, 10**6))
        return classify(trial)

    optuna.create_study(sampler=TaskSampler(budget=100)).optimize(objective)
    assert len(seen) == 1


def test_processes_share_the_search(
    journal: Place, folder: Path, in_processes: Callable[..., None]
) -> None:
    def sampler() -> TaskSampler:
        store = optuna.artifacts.FileSystemArtifactStore(folder)
        method = gt.NonConvex(L_eps=9.0, F_eps=9.0, delta=0.3)
        return TaskSampler(400, method, "paper", artifact_store=store)

    optuna.create_study(study_name="shared", storage=journal.look())

    def work() -> None:
        study = optuna.load_study(study_name="shared", storage=journal.open(), sampler=sampler())
        study.optimize(classify)

    in_processes(2, work)
    study = optuna.load_study(study_name="shared", storage=journal.look())
    tasks = [trial.user_attrs["task"] for trial in study.trials]
    assert len([key for key in tasks if key]) == len({key for key in tasks if key})  # none twice
    result = sampler().result(study)
    assert not result.partial and sum(result.calls.values()) <= 400
    assert study.best_value == whole_loss(result.restore(nn.Linear(6, 2)))


def test_waiting_for_the_probe_of_another_ends_with_the_timeout(
    journal: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = optuna.artifacts.FileSystemArtifactStore(folder)
    sampler = TaskSampler(100, artifact_store=store)
    study = optuna.create_study(storage=journal.open(), sampler=sampler)
    with monkeypatch.context() as patch:
        patch.setattr(log_module, "in_optimize", lambda study: True)
        busy = study.ask()  # as another worker would, under `optimize`
    begun = time.monotonic()
    study.optimize(classify, timeout=0.5)
    assert time.monotonic() - begun < 15.0  # it used to wait for the other
    assert study.trials[busy.number].state == TrialState.RUNNING
