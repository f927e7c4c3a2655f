"""Loggers of experiments: real TensorBoard, MLflow and Weights & Biases, where installed."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import grasp_tune as gt
from grasp_tune.core.errors import MissingExtra
from grasp_tune.report.loggers import MLflow, TensorBoard, WandB
from grasp_tune.runtime.callbacks import Callback
from tests.engine import workbench

pytestmark = pytest.mark.filterwarnings("ignore")  # of the loggers' own packages


def sweep(logger: Callback, **how: Any) -> gt.Result:
    method = gt.NonConvex(L_eps=0.5, F_eps=0.5)
    problem = workbench.problem(**how)
    return gt.minimize(problem, 300, method, progress=False, callbacks=[logger])


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


def test_tensorboard_shows_a_sweep_that_went_on_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second one hears again what the first one has trained
        method, logger = gt.NonConvex(L_eps=0.5, F_eps=0.5), TensorBoard(tmp_path / "board")
        how: dict[str, Any] = {"out": tmp_path / "sweep", "progress": False}
        result = gt.minimize(workbench.problem(), 200, method, callbacks=[logger], **how)
    found = EventAccumulator(str(tmp_path / "board"), size_guidance={"scalars": 0}).Reload()
    for run in result.runs:
        steps = [item.step for item in found.Scalars(f"run_{run.arm}/loss")]
        assert steps == [call for call, loss, _ in run.curve if math.isfinite(loss)]


def test_mlflow_gets_curves_score_settings_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # a database's artifacts go to the current folder
    place = f"sqlite:///{tmp_path / 'runs.db'}"
    try:
        logger = MLflow("digits", tracking_uri=place, run_name="first")
    except ImportError:  # the slim package has no database
        place = (tmp_path / "runs").as_uri()
        logger = MLflow("digits", tracking_uri=place, run_name="first")
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
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    stored = file.read_bytes()
    assert b"best_loss" in stored and b"report.html" in stored
    assert "<!doctype html>" in (file.parent / "files" / "report.html").read_text("utf-8")


class StandIn:
    """MLflow's client, or a run of Weights & Biases, that remembers; these packages are large."""

    def __init__(self, folder: Path) -> None:
        self.dir = str(folder)
        self.numbers: dict[str, dict[int, float]] = {}
        self.settings: dict[str, Any] = {}
        self.info = SimpleNamespace(run_id="7")
        self.config = self.settings
        self.report, self.ended = "", 0

    def get_experiment_by_name(self, name: str) -> None: ...
    def create_experiment(self, name: str) -> str:
        return "3"

    def create_run(self, experiment: str, run_name: str | None) -> "StandIn":
        assert experiment == "3"
        return self

    def log_batch(self, run: str, metrics: Sequence[tuple[str, float, int, int]]) -> None:
        assert len(metrics) <= 1000  # as a server has it
        for name, value, _, step in metrics:
            assert step not in self.numbers.setdefault(name, {})  # nothing is told twice
            self.numbers[name][step] = value

    def log_param(self, run: str, name: str, value: object) -> None:
        self.settings[name] = value

    def log_artifact(self, run: str, path: str) -> None:
        self.report = Path(path).read_text("utf-8")

    def set_terminated(self, run: str) -> None:
        self.ended += 1

    def define_metric(self, name: str, step_metric: str | None = None) -> None: ...
    def log(self, values: dict[str, Any]) -> None:
        (name,) = set(values) - {"calls"}
        self.log_batch("", [(name, values[name], 0, values["calls"])])

    def save(self, path: str, base_path: str, policy: str) -> None:
        self.log_artifact("", path)

    def finish(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_all_loggers_are_told_the_same(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = StandIn(tmp_path)
    module = SimpleNamespace(MlflowClient=lambda place: seen, init=lambda **options: seen)
    module.entities = SimpleNamespace(Metric=lambda *row: row)
    monkeypatch.setitem(sys.modules, package, module)
    logger = MLflow("digits") if package == "mlflow" else WandB(project="digits")
    result = sweep(logger, validation=workbench.problem().data, metric="accuracy")
    for run in result.runs:
        known = {call: loss for call, loss, _ in run.curve if math.isfinite(loss)}
        assert seen.numbers.get(f"run_{run.arm}/loss", {}) == known
    spent = sum(result.calls.values()) - result.calls["repeated"]
    assert seen.numbers["score"] == {spent: result.score}
    assert min(seen.numbers["best_loss"].values()) >= 0.0
    looks = seen.numbers["validation/loss"]
    assert looks[0] == result.candidates[0].score and len(looks) > 1
    assert seen.numbers["validation/accuracy"].keys() == looks.keys()
    assert seen.settings["budget"] == 300 and seen.settings["seed"] == 0
    assert "<!doctype html>" in seen.report and seen.ended == 1


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"needs wandb, .*pip install 'grasp_tune\[wandb\]'"):
        WandB(project="x")


def test_ray_tells_loggers_too_and_its_result_has_a_report(
    ray_session: None, tmp_path: Path
) -> None:
    class Heard(Callback):
        calls, runs = 0, set[int]()

        def on_progress(self, calls: int, best: float) -> None:
            self.calls = calls

        def on_run(self, run: int, curve: Sequence[tuple[int, float]]) -> None:
            self.runs.add(run)

    heard, method = Heard(), gt.NonConvex(L_eps=0.5, F_eps=0.5)
    how: dict[str, Any] = {"backend": "ray", "workers": 1, "progress": False}
    result = gt.minimize(workbench.problem(), 200, method, callbacks=[heard], **how)
    assert heard.runs == {run.arm for run in result.runs} and 150 < heard.calls <= 200
    text = result.report(tmp_path).read_text("utf-8")
    assert "must follow each other" in text and "data-figure" in text
