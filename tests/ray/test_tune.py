"""Whole sweeps through Ray Tune, each against the same sweep in this process."""

import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyarrow import fs as arrow
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import ConcurrencyLimiter

import grasp_tune as gt
from grasp_tune.ray import GraspProgress, GraspSearcher, grasp_trainable, load_result
from tests.ray.shop import linear_problem, same, spent

pytestmark = [
    pytest.mark.usefixtures("ray_session"),
    # Tune leaves the log files of trials open that it stops with the experiment.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# A few cells, one task each: every kind of trial, and not many of them.
FEW: dict[str, Any] = {
    "method": gt.NonConvex(L_eps=10.0, F_eps=10.0),
    "budget": 1200,
    "schedule": "paper",
    "fused": False,
    "probe_parts": 1,
}


def local(**how: Any) -> gt.Result:
    return gt.minimize(linear_problem()(), progress=False, **how)


def counting(folder: Path) -> Callable[[], gt.TorchProblem]:
    """A problem whose every oracle call leaves a byte in a file of its process."""
    path = str(folder)

    def on_call() -> None:
        import os

        with open(f"{path}/{os.getpid()}", "ab", buffering=0) as file:
            file.write(b".")

    return linear_problem(on_call)


def test_one_call_does_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    searcher = GraspSearcher(budget=400, fused=False)
    monkeypatch.delenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS")
    caplog.set_level(logging.INFO, logger="grasp_tune")
    analysis = tune.run(
        grasp_trainable(counting(calls)),
        search_alg=searcher,
        storage_path=str(tmp_path),
        metric="score",
        mode="min",
        verbose=0,
        callbacks=[GraspProgress(searcher)],
    )
    result, wanted = searcher.result, local(budget=400, fused=False)
    assert same(result, wanted)
    assert result.calls == wanted.calls
    # Every call that the oracle saw is in the books, and they are within the budget.
    assert sum(path.stat().st_size for path in calls.iterdir()) == spent(result) <= 400
    # Far fewer processes than trials: actors are reused, the problem is built once in each.
    assert len(list(calls.iterdir())) <= 4 < len(analysis.trials)

    checkpoint = analysis.best_checkpoint
    assert checkpoint is not None
    assert same(gt.Result.load(checkpoint.path), wanted)
    assert same(load_result(analysis), wanted)
    chosen = analysis.best_trial
    assert chosen.config["grasp"]["task"] == "select"
    assert chosen.last_result["loss"] == result.score
    others = [trial for trial in analysis.trials if trial is not chosen]
    assert all(math.isnan(trial.last_result["score"]) for trial in others)
    assert all(trial.checkpoint is None for trial in others)

    # A ramp may end early; the first run of the list does not.
    train = next(item for item in others if item.config["grasp"]["task"].startswith("list"))
    words = train.config["grasp"]
    name = f"{words['task']}_{words['base']}_{words['value']}_{words['budget']}calls"
    assert train.relative_logdir == f"{name}_{train.trial_id}"
    folder = Path(str(train.path))
    rows = (folder / "result.json").read_text().splitlines()
    assert json.loads(rows[-1])["oracle_calls"] == words["budget"]
    assert list(folder.glob("events.out.tfevents*"))  # TensorBoard
    assert "probe: 0 of 400 calls" in caplog.text
    assert f"done: {spent(result)} of 400 calls" in caplog.text


def test_a_tuner_with_constants_a_split_probe_a_stopper_and_fractions_of_cpus(
    tmp_path: Path,
) -> None:
    def make_problem(config: dict[str, Any]) -> gt.TorchProblem:
        return linear_problem(rows=config["rows"])()

    searcher = GraspSearcher(budget=400, probe_parts=3)
    grid = tune.Tuner(
        grasp_trainable(make_problem, cpus=0.5),
        param_space={"rows": tune.choice([96])},
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            num_samples=2,
            max_concurrent_trials=2,
            metric="loss",
            mode="min",
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            name="tuned",
            verbose=0,
            stop={"training_iteration": 1},  # which every task reaches with its last report
        ),
    ).fit()
    wanted = local(budget=400, probe_parts=3)
    assert wanted.spec == searcher.spec.to_dict()
    assert same(searcher.result, wanted)
    best = grid.get_best_result()
    assert best.checkpoint is not None
    assert same(gt.Result.load(best.checkpoint.path), wanted)
    assert not list(tmp_path.glob("**/events.out.tfevents*"))
    weight = searcher.result.tensors["param.weight"]
    assert searcher.result.model.weight.equal(weight)  # type: ignore[operator]


def test_a_limiter_with_batches_resources_by_phase_and_a_storage_that_is_no_folder(
    tmp_path: Path,
) -> None:
    def resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory(
            [{"CPU": 1 if config["grasp"]["phase"] == "train" else 0.5}]
        )

    trainable = grasp_trainable(lambda rows: linear_problem(rows=rows)())
    searcher = GraspSearcher(**FEW, ensemble="window")
    analysis = tune.run(
        tune.with_resources(tune.with_parameters(trainable, rows=96), resources),
        search_alg=ConcurrencyLimiter(searcher, max_concurrent=2, batch=True),
        num_samples=100,
        storage_path="bucket",
        storage_filesystem=arrow.SubTreeFileSystem(str(tmp_path), arrow.LocalFileSystem()),
        verbose=0,
    )
    wanted = local(**FEW, ensemble="window")
    assert len(wanted.runs) > 3
    assert same(searcher.result, wanted)
    assert same(load_result(analysis), wanted)
    asked: dict[str, float] = {}
    for trial in analysis.trials:
        bundles: Any = trial.placement_group_factory
        asked[trial.config["grasp"]["phase"]] = bundles.bundles[0]["CPU"]
    assert asked == {"probe": 0.5, "train": 1, "select": 0.5}


class StopWhen(tune.Stopper):
    """Stops the experiment as soon as something is so, the way `time_budget_s` does."""

    def __init__(self, so: Callable[[], bool]) -> None:
        self._so = so

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._so()


def test_a_stop_of_everything_leaves_the_best_so_far(tmp_path: Path) -> None:
    searcher = GraspSearcher(**FEW)
    tune.run(
        grasp_trainable(linear_problem()),
        search_alg=searcher,
        storage_path=str(tmp_path),
        stop=StopWhen(lambda: searcher.progress.phase == "score"),
        max_concurrent_trials=1,
        time_budget_s=600,
        verbose=0,
    )
    result = searcher.result
    assert result.partial
    assert "stopped before the end" in result.notes[0]
    assert result.cell is not None  # the leader by training loss
    assert result.calls["train"] > 0
    assert result.model is not None


def test_a_trial_that_fails_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    path = str(marks)

    def fail_once() -> None:
        import os

        if not os.listdir(path):
            with open(f"{path}/failed", "x"):
                raise RuntimeError("the network is down")

    searcher = GraspSearcher(**FEW, ensemble="window")
    grid = tune.Tuner(
        grasp_trainable(linear_problem(fail_once)),
        tune_config=tune.TuneConfig(search_alg=searcher, num_samples=-1, max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert same(searcher.result, local(**FEW, ensemble="window"))
    assert len(grid.errors) == 1
    told = [
        item.getMessage()
        for item in caplog.records
        if item.name == "grasp_tune.runtime.shared_sweep"
    ]
    assert len(told) == 1
    assert told[0].startswith("probe") and "failed in trial" in told[0]
    assert "RuntimeError: the network is down" in told[0]  # the driver says why


def refused(tmp_path: Path, words: str, trainable: Any = None, **how: Any) -> None:
    with pytest.raises(gt.InputError, match=words):
        tune.run(
            trainable or grasp_trainable(linear_problem()),
            search_alg=GraspSearcher(**FEW),
            storage_path=str(tmp_path),
            verbose=0,
            **how,
        )


def test_what_would_break_the_plan_is_refused_by_name(tmp_path: Path) -> None:
    def own(config: dict[str, Any]) -> None:
        tune.report({"loss": 1.0})

    scheduler = ASHAScheduler(metric="loss", mode="min")
    refused(tmp_path, "scheduler: got AsyncHyperBandScheduler", scheduler=scheduler)
    refused(tmp_path, r"config\['lr'\].*fixed value", config={"lr": tune.grid_search([0.1, 1.0])})
    refused(tmp_path, "the function ended in the middle of probe.*for_step", trainable=own)
    refused(tmp_path, "expected 'score' or 'loss' and 'min'", metric="accuracy", mode="max")


class Elsewhere:
    """Something of a module that only the driver has."""

    def __reduce__(self) -> Any:
        return __import__, ("module_of_the_driver",)


def test_a_trainable_that_cannot_be_imported_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "module_of_the_driver"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    make, own = linear_problem(), Elsewhere()

    def make_problem() -> gt.TorchProblem:
        assert own is not None
        return make()

    searcher = GraspSearcher(**FEW)
    with pytest.raises(gt.SearchError, match="module_of_the_driver"):
        tune.run(
            grasp_trainable(make_problem),
            search_alg=searcher,
            storage_path=str(tmp_path),
            verbose=0,
        )
