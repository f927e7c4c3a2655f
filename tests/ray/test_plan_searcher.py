"""The paper's plan for a trainable of the user's own."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle, tune
from ray.tune.search import ConcurrencyLimiter, Searcher

import grasp_tune as gt
from grasp_tune.core.errors import SearchError
from grasp_tune.ray import GraspSearcher, PlanSearcher, load_result
from grasp_tune.ray.tune_internals import TuneRun
from grasp_tune.schedules.cells import training_only

GIVEN = gt.NonConvex(L_eps=3.0, F_eps=3.0).plan(budget=2000, grad_norm=2.0)
PLAN = training_only(GIVEN)


def row(config: dict[str, Any], step: int, loss: float) -> dict[str, Any]:
    flat = {f"config/{key}": value for key, value in config.items()}
    return {**flat, "training_iteration": step, "loss": loss}


def searcher(**how: Any) -> PlanSearcher:
    return GraspSearcher.from_plan(GIVEN, parameter="lr", **{"metric": "loss", **how})


def finish(found: PlanSearcher, losses: dict[int, list[float]]) -> None:
    """Give every cell its losses, the last as Tune does: once as a result, once as the end."""
    at = 0
    while (config := found.suggest(f"t{at}")) != Searcher.FINISHED:
        assert isinstance(config, dict)
        reports = losses.get(config["cell"], [9.0])
        for step, loss in enumerate(reports, 1):
            found.on_trial_result(f"t{at}", row(config, step, loss))
        found.on_trial_complete(f"t{at}", row(config, len(reports), reports[-1]))
        at += 1


def test_every_cell_is_suggested_once_with_its_value_and_budget() -> None:
    found = searcher()
    configs: list[dict[str, Any]] = []
    while isinstance(config := found.suggest(f"t{len(configs)}"), dict):
        configs.append(config)
    assert config is None  # all are running
    assert len(PLAN.cells) > 3
    assert configs == [{"lr": c.value, "budget": c.budget, "cell": c.index} for c in PLAN.cells]


def test_the_window_is_the_mean_of_the_last_reports() -> None:
    found = searcher(window=2)
    second, third = PLAN.cells[1].index, PLAN.cells[2].index
    # Means of the last two: (1 + 5) / 2 = 3 and (2 + 2.5) / 2 = 2.25; the last alone would say 2.5
    # against 5, the smallest alone 1 against 2.
    finish(found, {second: [7.0, 1.0, 5.0], third: [9.0, 2.0, 2.5]})
    assert found.best.cell == third
    assert found.best.score == 2.25
    assert found.best.calls == 3
    assert found.cell == PLAN.cells[2]


@pytest.mark.parametrize("kind", [np.float32, np.int64, torch.tensor])
def test_numbers_of_numpy_and_torch_are_scores(kind: Any, tmp_path: Path) -> None:
    found = searcher()
    finish(found, {PLAN.cells[1].index: [kind(2)]})
    assert (found.best.cell, found.best.score) == (PLAN.cells[1].index, 2.0)
    found.save(str(tmp_path / "state"))


def test_the_result_is_the_one_of_everywhere() -> None:
    found = searcher()
    finish(found, {PLAN.cells[1].index: [0.5]})
    result = found.result
    assert result.cell is not None
    assert result.cell.index == PLAN.cells[1].index
    assert result.score == 0.5
    assert not result.partial
    assert result.plan == PLAN
    assert result.calls["train"] == len(PLAN.cells)  # one report each
    assert "<- chosen" in result.table()


def test_what_is_not_finite_never_wins_and_the_largest_wins_where_asked() -> None:
    found = searcher(mode="max")
    indices = [cell.index for cell in PLAN.cells]
    finish(found, {indices[0]: [math.inf], indices[1]: [math.nan], indices[2]: [11.0]})
    assert found.best.cell == indices[2]


def test_failures_unknown_trials_and_restoring_are_harmless(tmp_path: Path) -> None:
    found = searcher()
    first = found.suggest("t0")
    second = found.suggest("t1")
    assert isinstance(first, dict) and isinstance(second, dict)
    found.on_trial_complete("nobody", error=True)
    found.on_trial_complete("nobody", {"loss": 0.0})
    found.on_trial_complete("t0", error=True)
    found.on_trial_complete("t1", row(second, 4, 0.25))
    assert found.suggest("t2") == first  # tried again
    found.save(str(tmp_path / "state.json"))
    again = cloudpickle.loads(cloudpickle.dumps(searcher()))
    again.restore(str(tmp_path / "state.json"))
    again.on_trial_complete("t2", row(first, 1, 9.0))  # it was running all the time
    finish(again, {})
    assert again.best.cell == second["cell"]
    assert again.best.score == 0.25
    other = GraspSearcher.from_plan(gt.NonConvex().plan(budget=9000, grad_norm=1.0), "lr")
    other.restore(str(tmp_path / "state.json"))  # Tune swallows what is raised here
    with pytest.raises(gt.InputError, match="another plan"):
        other.suggest("t0")


def test_the_reports_of_a_trial_that_failed_do_not_count() -> None:
    found = searcher(window=3)
    config = found.suggest("first")
    assert isinstance(config, dict)
    found.on_trial_result("first", row(config, 1, 100.0))
    found.on_trial_complete("first", error=True)
    assert found.suggest("second") == config
    for step, loss in enumerate((5.0, 2.0, 3.0, 1.0)):
        found.on_trial_result("second", row(config, step, loss))
    found.on_trial_complete("second", row(config, 3, 1.0))
    best = config["cell"], "second", 2.0, 3  # (2 + 3 + 1) / 3
    assert found.best == best
    found.on_trial_complete("second", row(config, 4, -9.0))  # it has ended
    assert found.best == best


@pytest.mark.parametrize("state", [{"outcomes": {}}, [], {"cells": 3}])
def test_a_state_of_another_kind_is_one_line(state: object, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(state))
    found = searcher()
    found.restore(str(tmp_path / "state.json"))
    with pytest.raises(gt.InputError, match=r"not a state of cells; where an earlier version"):
        found.suggest("t0")


def test_a_cell_that_always_fails_is_lost() -> None:
    found, at = searcher(), 0
    while isinstance(config := found.suggest(f"t{at}"), dict):
        if config["cell"] == PLAN.cells[0].index:
            found.on_trial_complete(f"t{at}", error=True)
        else:
            found.on_trial_complete(f"t{at}", row(config, 1, 1.0))
        at += 1
    assert at == len(PLAN.cells) + 2  # three attempts
    lost = next(item for item in found.result.candidates if item.arm == PLAN.cells[0].index)
    assert lost.note == "lost"


def test_the_stopper_ends_a_trial_at_its_budget() -> None:
    stopper = searcher(count="oracle_calls").stopper
    config = {"config": {"budget": 70}}
    assert [stopper("t", {**config, "oracle_calls": n}) for n in (69, 70)] == [False, True]
    assert not stopper("t", config)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mode": "best"}, "mode: got 'best'"),
        ({"window": 0}, "window: got 0"),
        ({"budget_key": "lr"}, "are taken"),
    ],
)
def test_bad_input_is_named(how: dict[str, Any], words: str) -> None:
    with pytest.raises(gt.InputError, match=words):
        searcher(**how)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_trainable_of_the_user_s_own_through_tune(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        point = 10.0
        while True:  # the stopper ends it
            point -= config["lr"] * point
            tune.report({"loss": point * point})

    given = gt.NonConvex(L_eps=20.0, F_eps=20.0).plan(budget=300, grad_norm=2.0)
    found = GraspSearcher.from_plan(given, parameter="lr")
    plan = found.plan
    assert plan is not None
    assert plan.training_calls > 300 - len(plan.cells)  # all of the budget, but for rounding
    analysis = tune.run(
        train,
        search_alg=found,
        stop=found.stopper,
        metric="loss",
        mode="min",
        storage_path=str(tmp_path),
        reuse_actors=True,
        verbose=0,
    )
    spent = {trial.config["cell"]: trial.last_result for trial in analysis.trials}
    assert {key: item["training_iteration"] for key, item in spent.items()} == {
        cell.index: cell.budget for cell in plan.cells
    }
    # (1 - lr)^(2 T) * 100 is smallest where lr is nearest to 1.
    best = min(plan.cells, key=lambda cell: abs(1.0 - cell.value))
    assert found.cell == best
    assert found.best.trial == analysis.best_trial.trial_id


# -- what used to give a wrong cell, or no answer ----------------------------------------------


class FakeRun:
    """The part of Tune's run that a plan searcher asks."""

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        self.metric, self.mode, self.generator = metric, mode, object()
        self.configs: dict[str, dict[str, Any]] = {}  # of the trials that live

    def live(self) -> dict[str, dict[str, Any]]:
        return self.configs

    def set_up(self, *names: Any) -> None:
        pass


def asked_by(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TuneRun, "asking", lambda: run)


def test_metric_and_mode_of_tune_count_where_there_is_no_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = GraspSearcher.from_plan(GIVEN, "lr")
    asked_by(FakeRun("loss", "max"), monkeypatch)
    finish(found, {PLAN.cells[1].index: [11.0]})
    assert found.best.cell == PLAN.cells[1].index  # the largest


@pytest.mark.parametrize("run", [FakeRun(), FakeRun("loss")])
def test_without_metric_and_mode_they_are_asked_for(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_by(run, monkeypatch)
    with pytest.raises(gt.InputError, match=r"metric, mode: got .*for_step\(.*metric="):
        GraspSearcher.from_plan(GIVEN, "lr").suggest("t0")


def test_a_limiter_with_batches_above_the_number_of_cells_runs_none_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, run = searcher(), FakeRun("loss", "min")
    asked_by(run, monkeypatch)
    limiter = ConcurrencyLimiter(found, max_concurrent=99, batch=True)
    for at in range(len(PLAN.cells)):
        config = limiter.suggest(f"t{at}")
        assert isinstance(config, dict)
        run.configs[f"t{at}"] = config
    # All but one have ended, and the limiter keeps that to itself until the last one has.
    for trial in list(run.configs)[1:]:
        limiter.on_trial_complete(trial, row(run.configs.pop(trial), 1, 2.0))
    assert limiter.suggest("again") is None
    limiter.on_trial_complete("t0", row(run.configs.pop("t0"), 1, 1.0))
    assert limiter.suggest("again") == Searcher.FINISHED
    assert found.best.trial == "t0"


def test_a_restored_searcher_knows_what_runs_and_what_was_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searcher(window=2)
    config = found.suggest("t0")
    assert isinstance(config, dict)
    for step, loss in ((1, 9.0), (2, 4.0)):
        found.on_trial_result("t0", row(config, step, loss))
    found.save(str(tmp_path / "state.json"))
    again, run = searcher(window=2), FakeRun("loss", "min")
    again.restore(str(tmp_path / "state.json"))
    run.configs["t0"] = config  # it lives on
    asked_by(run, monkeypatch)
    second = again.suggest("t1")
    assert isinstance(second, dict)
    assert second["cell"] != config["cell"]
    again.on_trial_complete("t0", row(config, 3, 2.0))
    assert again.best.score == 3.0  # (4 + 2) / 2
    run.configs.clear()  # a run that was killed: its trial is gone without a word
    dead = searcher()
    dead.restore(str(tmp_path / "state.json"))
    assert dead.suggest("t5") == config


@pytest.mark.parametrize("limit", [None, {}, {"batch": True}])
def test_a_searcher_restored_outside_of_tune_issues_no_running_cell_again(
    tmp_path: Path, limit: dict[str, bool] | None
) -> None:
    def limited(one: PlanSearcher) -> Searcher:
        return one if limit is None else ConcurrencyLimiter(one, max_concurrent=2, **limit)

    found, again = searcher(window=2), searcher(window=2)
    before, after = limited(found), limited(again)
    configs: list[Any] = [before.suggest("t0"), before.suggest("t1")]
    for step, loss in ((1, 9.0), (2, 4.0)):
        before.on_trial_result("t0", row(configs[0], step, loss))
    before.save(str(tmp_path / "state.json"))
    after.restore(str(tmp_path / "state.json"))
    if limit is not None:
        assert after.suggest("t2") is None  # both run
    after.on_trial_result("t0", row(configs[0], 3, 2.0))
    after.on_trial_complete("t0", row(configs[0], 3, 2.0))
    assert (again.best.trial, again.best.score) == ("t0", 3.0)  # (4 + 2) / 2
    after.on_trial_complete("t1", error=True)  # its process is dead: its cell is tried again
    assert after.suggest("t2") == configs[1]
    third: Any = after.suggest("t3")
    assert third["cell"] == PLAN.cells[2].index


def test_a_searcher_whose_run_was_cut_off_serves_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = searcher()
    asked_by(FakeRun("loss", "min"), monkeypatch)
    config = found.suggest("t0")  # Ctrl-C: Tune says no word about it
    asked_by(FakeRun("loss", "min"), monkeypatch)
    assert found.suggest("t1") == config


def test_a_trial_that_tune_restarted_is_scored_by_its_last_life() -> None:
    found = searcher(window=3)
    config = found.suggest("t0")
    assert isinstance(config, dict)
    for step, loss in ((1, 8.0), (2, 6.0), (1, 4.0), (2, 2.0)):  # its worker died after two
        found.on_trial_result("t0", row(config, step, loss))
    found.on_trial_complete("t0", row(config, 2, 2.0))
    assert found.best.score == 3.0  # (4 + 2) / 2


def test_no_cell_is_handed_out_where_all_scores_are_infinite() -> None:
    found = searcher()
    finish(found, {cell.index: [math.inf] for cell in PLAN.cells})
    for ask in (lambda: found.best, lambda: found.cell):
        with pytest.raises(gt.SearchError, match=r"none of the .* has a finite score"):
            ask()
    assert found.result.cell is None  # x0
    assert "no run reported a finite metric" in found.result.notes[0]


def test_a_nested_parameter_is_written_where_it_belongs() -> None:
    how: Any = {"budget_key": "train_loop_config/budget", "metric": "loss"}
    found = GraspSearcher.from_plan(GIVEN, "train_loop_config/lr", **how)
    config, cell = found.suggest("t0"), PLAN.cells[0]
    inner = {"lr": cell.value, "budget": cell.budget}
    assert config == {"cell": cell.index, "train_loop_config": inner}
    assert found.stopper("t0", {"config": config, "training_iteration": cell.budget})
    assert not found.stopper("t0", {"config": config, "training_iteration": cell.budget - 1})


def test_the_whole_budget_is_for_training_and_the_grid_stays() -> None:
    assert [cell.value for cell in PLAN.cells] == [cell.value for cell in GIVEN.cells]
    assert GIVEN.training_calls <= GIVEN.budget // 2
    assert PLAN.budget - len(PLAN.cells) < PLAN.training_calls == PLAN.total_calls <= PLAN.budget
    assert training_only(PLAN) == PLAN


def test_the_result_of_a_restored_plan_is_found_in_its_folder(tmp_path: Path) -> None:
    found = searcher()
    finish(found, {PLAN.cells[1].index: [0.5]})
    found.save(str(tmp_path / "searcher-state-2026-11-18_16-28-54.pkl"))
    # That of the run before it was restored; Tune may copy it last.
    searcher().save(str(tmp_path / "searcher-state-2026-11-18_16-28-32.pkl"))
    result = load_result(tmp_path)
    assert result.score == 0.5
    assert result.cell == found.result.cell


# -- a step without a plan ---------------------------------------------------------------------


def searched(found: PlanSearcher, first: int = 0) -> list[tuple[float, int]]:
    """Give every trial the loss of gradient descent on 50 x^2; returns their steps and budgets."""
    given: list[tuple[float, int]] = []
    while isinstance(config := found.suggest(f"t{first + len(given)}"), dict):
        rate = abs(1.0 - 100.0 * config["lr"])
        loss = math.inf if rate > 1.0 else rate ** config["budget"]
        found.on_trial_complete(f"t{first + len(given)}", row(config, config["budget"], loss))
        given.append((config["lr"], config["budget"]))
    assert config == Searcher.FINISHED
    return given


def test_a_budget_alone_finds_the_step(tmp_path: Path) -> None:
    found = GraspSearcher.for_step(2000, metric="loss")
    assert found.plan is None
    given = searched(found)
    assert sum(budget for _, budget in given) <= 2000
    assert given[-1][1] >= 800 and 0.005 < given[-1][0] < 0.02
    assert found.cell.value == 0.01 and found.best.score == 0.0
    assert not found.result.partial and found.result.score == found.best.score
    found.save(str(tmp_path / "searcher-state-2026.pkl"))
    assert load_result(tmp_path).score == found.result.score


def test_a_search_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    found, whole = (GraspSearcher.for_step(1000, metric="loss") for _ in range(2))
    for at in range(11):  # into the second round
        config = found.suggest(f"t{at}")
        assert isinstance(config, dict)
        loss = abs(1.0 - 100.0 * config["lr"]) ** config["budget"] if config["lr"] < 0.02 else 1e9
        found.on_trial_complete(f"t{at}", row(config, 1, loss))
    found.save(str(tmp_path / "state.json"))
    again = GraspSearcher.for_step(1000, metric="loss")
    again.restore(str(tmp_path / "state.json"))
    assert searched(again, 11) == searched(whole)[11:]
    other = GraspSearcher.for_step(1100, metric="loss")
    other.restore(str(tmp_path / "state.json"))
    with pytest.raises(gt.InputError, match="another plan"):
        other.suggest("t0")
    with pytest.raises(gt.InputError, match="another plan"):
        other.result  # noqa: B018  # where the saved run had ended, nothing is suggested
    with pytest.raises(gt.InputError, match="either a plan or a budget"):
        PlanSearcher(GIVEN, budget=100)


def test_while_a_round_runs_others_wait() -> None:
    found = GraspSearcher.for_step(2000, metric="loss")
    configs: list[Any] = [found.suggest(f"t{at}") for at in range(9)]
    assert found.suggest("t9") is None
    for at, config in enumerate(configs):
        found.on_trial_complete(f"t{at}", row(config, 1, abs(math.log10(config["lr"]) + 2.0)))
    assert isinstance(found.suggest("t9"), dict)


def test_with_checkpoints_trials_go_on_from_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    found, run = GraspSearcher.for_step(4000, resume=True), FakeRun("loss", "min")
    asked_by(run, monkeypatch)
    kept: dict[str, tuple[float, int]] = {}  # by trial: a checkpoint is (point, calls so far)

    def trial(run: FakeRun, trial_id: str) -> Any:
        return SimpleNamespace(checkpoint=kept.get(trial_id))

    monkeypatch.setattr(FakeRun, "trial", trial, raising=False)
    total, at = 0, 0
    while isinstance(config := found.suggest(f"t{at}"), dict):
        point, calls = config["checkpoint"] or (1.0, 0)
        for _ in range(config["budget"]):
            point = max(min(point * (1.0 - 100.0 * config["lr"]), 1e100), -1e100)
        kept[f"t{at}"] = (point, calls + config["budget"])
        total += config["budget"]
        found.on_trial_complete(f"t{at}", row(config, config["budget"], point * point))
        at += 1
    assert total == 4000
    assert kept[f"t{at - 1}"][1] > 3110  # what it would have had without them
    assert found.best.score < 1e-9
    lost = GraspSearcher.for_step(4000, resume=True)
    kept.clear()
    with pytest.raises(gt.InputError, match="left no checkpoint to go on from"):
        searched(lost)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("make", [searcher, lambda: GraspSearcher(budget=60)])
def test_a_trainable_that_workers_cannot_import_ends_the_run_at_once(
    make: Callable[[], Searcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ModuleType("gone_module")
    exec("def train(config):\n    pass", vars(gone))
    monkeypatch.setitem(sys.modules, "gone_module", gone)  # in this process alone
    with pytest.raises(SearchError, match="cannot be loaded in a worker process: ModuleNotFoundE"):
        tune.run(
            gone.train,
            search_alg=make(),
            metric="loss",
            mode="min",
            storage_path=str(tmp_path),
            verbose=0,
        )
