"""Loggers of experiments as callbacks: TensorBoard, MLflow and Weights & Biases.

`gt.minimize(problem, 10_000, callbacks=[MLflow("digits")])`. All write the same: the lowest loss by
oracle calls, the curve of every run by its own calls, what validation data said, how the sweep was
set up, its score, and the report as an artifact.
"""

import math
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grasp_tune.extras import need
from grasp_tune.report.figures import validation_looks
from grasp_tune.runtime.callbacks import Callback
from grasp_tune.runtime.result import Result


class _Logger(Callback):
    """What the loggers have in common; each says how numbers are written, and the end."""

    _best = math.nan  # told last

    def on_progress(self, calls: int, best: float) -> None:
        if math.isfinite(best) and best != self._best:
            self._best = best
            self._write("best_loss", [(calls, best)])

    def on_run(self, run: int, curve: Sequence[tuple[int, float]]) -> None:
        self._write(f"run_{run}/loss", curve)

    def on_end(self, result: Result) -> None:
        for look in validation_looks(result):
            for name, value in ("loss", look.loss), (result.measured or "metric", look.metric):
                if math.isfinite(value):
                    self._write(f"validation/{name}", [(look.call, value)])
        if math.isfinite(result.score):
            self._write("score", [(result.spent, result.score)])
        settings = {key: result.spec[key] for key in ("budget", "schedule", "seed")}
        settings |= {"optimizer": result.choice.chosen.base, "value": result.choice.chosen.value}
        with tempfile.TemporaryDirectory() as folder:
            self._close(settings, result.report(Path(folder) / "report.html"))

    def _write(self, name: str, points: Iterable[tuple[int, float]]) -> None:
        """Write numbers, each with its oracle call."""
        raise NotImplementedError

    def _close(self, settings: Mapping[str, Any], report: Path) -> None:
        raise NotImplementedError


class TensorBoard(_Logger):
    """Event files for TensorBoard, which has no place for artifacts: the report stays beside them.

    folder: where the event files go; `tensorboard --logdir FOLDER` shows them, those of an earlier
        sweep there, or of an earlier part of this one, no more.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        package = need("torch.utils.tensorboard", "tensorboard", "this logger", "tensorboard")
        # A sweep that goes on tells all that it knows.
        self._writer = package.SummaryWriter(str(folder), purge_step=0)

    def _write(self, name: str, points: Iterable[tuple[int, float]]) -> None:
        for call, value in points:
            self._writer.add_scalar(name, value, call)

    def _close(self, settings: Mapping[str, Any], report: Path) -> None:
        text = "\n".join(f"    {name}: {value}" for name, value in settings.items())
        self._writer.add_text("settings", text)
        (self._folder / report.name).write_bytes(report.read_bytes())
        self._writer.close()


class MLflow(_Logger):
    """A run of MLflow.

    experiment: its name; MLflow's own is Default.
    tracking_uri: where MLflow keeps its runs; its own setting without one.
    run_name: a name for this run.
    """

    def __init__(
        self,
        experiment: str = "Default",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
    ) -> None:
        package = need("mlflow", "mlflow", "this logger")
        self._metric = package.entities.Metric
        self._client = client = package.MlflowClient(tracking_uri)
        found = client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else client.create_experiment(experiment)
        self._run = client.create_run(number, run_name=run_name).info.run_id

    def _write(self, name: str, points: Iterable[tuple[int, float]]) -> None:
        now = int(1000 * time.time())
        rows = [self._metric(name, value, now, call) for call, value in points]
        for at in range(0, len(rows), 1000):  # more than that a server refuses
            self._client.log_batch(self._run, rows[at : at + 1000])

    def _close(self, settings: Mapping[str, Any], report: Path) -> None:
        for name, value in settings.items():
            self._client.log_param(self._run, name, value)
        self._client.log_artifact(self._run, str(report))
        self._client.set_terminated(self._run)


class WandB(_Logger):
    """A run of Weights & Biases; curves of runs are drawn against the run's own calls.

    options: what `wandb.init` takes, such as `project`, `name` and `mode="offline"`.
    """

    def __init__(self, **options: Any) -> None:
        self._run = need("wandb", "wandb", "this logger").init(**options)
        self._run.define_metric("calls")
        self._run.define_metric("*", step_metric="calls")

    def _write(self, name: str, points: Iterable[tuple[int, float]]) -> None:
        for call, value in points:
            self._run.log({name: value, "calls": call})

    def _close(self, settings: Mapping[str, Any], report: Path) -> None:
        self._run.config.update(dict(settings))
        kept = Path(self._run.dir) / report.name  # a file elsewhere would only be linked to
        kept.write_bytes(report.read_bytes())
        self._run.save(str(kept), base_path=self._run.dir, policy="now")
        self._run.finish()
