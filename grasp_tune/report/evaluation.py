"""A finished run beside its result: how good its model is over all rows, times, versions, data.

For people only: the search sees none of it. Kept as `run.json` in the run's folder, so that a
report can be written again later and the model be built again without the data.
"""

import math
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import grasp_tune
from grasp_tune.config.build import Built
from grasp_tune.config.schema import LOSSES
from grasp_tune.core.errors import InputError
from grasp_tune.core.records import decode, encode
from grasp_tune.data.data import DataSpec
from grasp_tune.engine.metrics import accuracy, classes_of, compared, measured
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic

FILE = "run.json"
_CHUNK = 1024  # rows at a time


@dataclass(frozen=True, slots=True)
class Scores:
    """A model over some rows; None where it has no classes, or no metric was asked for."""

    rows: int
    loss: float
    accuracy: float | None = None
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """A model over whole data sets; None where there are no such rows."""

    train: Scores
    test: Scores | None = None
    validation: Scores | None = None
    baseline: Scores | None = None  # the best constant prediction, over the rows of `held_out`
    metric: str | None = None  # the name of the metric that the user asked for
    adamw: Scores | None = None  # AdamW at its defaults, over the same rows, where asked for

    @property
    def held_out(self) -> tuple[str, Scores]:
        """What counts most: test rows, else validation rows, else those it was trained on."""
        for name, part in (("test", self.test), ("validation", self.validation)):
            if part is not None:
                return f"{part.rows:,} {name} rows", part
        return "all training rows", self.train


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """One run, in numbers and words for its report."""

    started: str  # UTC, to the second
    seconds: float  # of this process; an earlier one that was resumed is not in it
    versions: tuple[tuple[str, str], ...]  # (package, version)
    spec: DataSpec
    rows: int  # training rows, without those kept aside for the choice
    test_rows: int
    model: str  # the name of its kind
    parameters: int  # trainable numbers
    loss: str
    outputs: int
    batch: int
    quality: Quality | None


def _parts(built: Built) -> dict[str, Any]:
    data, problem = built.data, built.problem
    test = None if data.x_test is None else (data.x_test, data.y_test)
    parts = {"train": problem.data, "validation": problem.validation, "test": test}
    return {name: rows for name, rows in parts.items() if isinstance(rows, tuple)}


def evaluation_seconds(model: nn.Module, built: Built) -> float:
    """About how long `evaluate` takes, by timing a part of it."""
    parts, found, begun = _parts(built), 0, 0.0
    for _ in range(2):  # the first time sets things up
        begun = time.perf_counter()
        found = _scores(model.eval(), built, *(item[:_CHUNK] for item in parts["train"])).rows
    rows = sum(len(part[0]) for part in parts.values())
    return (time.perf_counter() - begun) * rows / found


def evaluate(model: nn.Module, built: Built) -> Quality:
    """The quality of the model in evaluation mode, in which it is left."""
    parts = _parts(built)
    scores = {name: _scores(model.eval(), built, *rows) for name, rows in parts.items()}
    baseline, (x, y) = None, list(parts.values())[-1]
    if built.loss in LOSSES:
        baseline = _scores(_constant(built), built, x, y)
    elif scores["train"].accuracy is not None:  # what a loss of one's own says is not known
        baseline = Scores(len(x), math.nan, accuracy(_constant(built)(x).cpu(), y.cpu()))
    return Quality(**scores, baseline=baseline, metric=built.problem.metric_name)


def _constant(built: Built) -> Callable[[Tensor], Tensor]:
    """The best prediction that looks at no input: class frequencies, or the mean."""
    y, labels = built.data.y, built.data.labels
    if labels is None:
        value = y.mean(dim=0).reshape(-1)
    else:
        share = torch.bincount(y, minlength=len(labels)).double() / len(y)
        value = share.clamp_min(1e-12).log().float()
        if built.loss == "hinge":  # a margin of 1 for the most common class
            value = (value == value.max()).float()
        value = value[1:] - value[:1] if built.outputs == 1 else value
    return lambda x: value.to(x.device).expand(len(x), -1)


def _scores(model: Any, built: Built, x: Tensor, y: Tensor) -> Scores:
    """Mean loss and metrics; accuracy is None where outputs do not name a class."""
    device, metric = built.problem.chosen_device, built.problem.metric
    loss, outputs = 0.0, []
    for rows, labels in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
        batch = rows.to(device), labels.to(device)
        loss += float(built.problem.loss(model, batch).detach()) * len(rows)
        with torch.no_grad():
            outputs.append(model(batch[0]))
    mean = loss / len(x) if math.isfinite(loss) else math.nan
    if not all(isinstance(item, Tensor) for item in outputs):
        return Scores(len(x), mean)
    whole, right = torch.cat(outputs).cpu(), y.cpu()
    classes = built.data.labels is not None and classes_of(whole) is not None
    asked = None if metric is None else measured(metric, whole, compared(metric, (x, right)))
    return Scores(len(x), mean, accuracy(whole, right) if classes else None, asked)


def describe(built: Built, model: nn.Module, started: str, seconds: float) -> RunMetadata:
    """The metadata of a run that has ended with this model, which is judged here."""
    versions = [("grasp_tune", grasp_tune.__version__), ("python", platform.python_version())]
    for name in ("torch", "numpy", "ray", "optuna"):
        with suppress(metadata.PackageNotFoundError):
            versions.append((name, metadata.version(name)))
    versions.append(("platform", platform.platform(terse=True)))
    data, problem = built.data, built.problem
    tests = 0 if data.x_test is None else len(data.x_test)
    parameters = sum(item.numel() for item in model.parameters() if item.requires_grad)
    what = data.spec, problem.rows or 0, tests, built.model.name, parameters
    how = built.loss, built.outputs, problem.batch_size, evaluate(model, built)
    return RunMetadata(started, seconds, tuple(versions), *what, *how)


def write_metadata(folder: Path, metadata: RunMetadata) -> None:
    write_json_atomic(folder / FILE, encode(metadata))


def read_metadata(folder: Path) -> RunMetadata | None:
    """The metadata in a folder, None where there is none."""
    if not (path := folder / FILE).exists():
        return None
    try:
        return decode(RunMetadata, read_json(path, STATE_LIMIT))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
