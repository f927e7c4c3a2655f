"""Loggers of experiments: real TensorBoard, MLflow and Weights & Biases, where installed."""

import math
import sys
from pathlib import Path

import pytest

import grasp_tune as gt
from grasp_tune.core.errors import MissingExtra
from grasp_tune.report.loggers import MLflow, TensorBoard, WandB
from grasp_tune.runtime.callbacks import Callback
from tests.engine import workbench

pytestmark = pytest.mark.filterwarnings("ignore")  # of the loggers' own packages


def sweep(logger: Callback) -> gt.Result:
    method = gt.NonConvex(L_eps=0.5, F_eps=0.5)
    return gt.minimize(workbench.problem(), 300, method, progress=False, callbacks=[logger])


def test_tensorboard_gets_curves_score_and_report(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = sweep(TensorBoard(tmp_path))
    found = EventAccumulator(str(tmp_path)).Reload()
    arm = result.choice.chosen.arm
    (run,) = [run for run in result.runs if run.arm == arm]
    points = {item.step: item.value for item in found.Scalars(f"run_{arm}/loss")}
    assert points == {call: pytest.approx(loss, rel=1e-6) for call, loss, _ in run.curve}
    assert found.Scalars("score")[0].value == pytest.approx(result.score, rel=1e-6)
    assert "best_loss" in found.Tags()["scalars"]
    assert "<!doctype html>" in (tmp_path / "report.html").read_text("utf-8")


def test_mlflow_gets_curves_score_settings_and_report(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    place = f"sqlite:///{tmp_path / 'runs.db'}"
    try:
        logger = MLflow("digits", tracking_uri=place, run_name="first")
    except Exception as error:  # the slim package has no store of its own
        pytest.skip(f"mlflow without a store: {error}")
    result = sweep(logger)
    client = mlflow.MlflowClient(place)
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["score"] == result.score
    assert run.data.params["budget"] == "300" and run.info.status == "FINISHED"
    arm = result.choice.chosen.arm
    history = client.get_metric_history(run.info.run_id, f"run_{arm}/loss")
    (trained,) = [item for item in result.runs if item.arm == arm]
    assert {item.step for item in history} == {call for call, _, _ in trained.curve}
    assert [item.path for item in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_wandb_logs_without_a_connection(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    result = sweep(WandB(project="digits", mode="offline", dir=str(tmp_path)))
    assert math.isfinite(result.score)
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"needs wandb, .*pip install 'grasp_tune\[wandb\]'"):
        WandB(project="x")
