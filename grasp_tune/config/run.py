"""One experiment from config to report: what `grasp-tune run` and `resume` do."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from grasp_tune.api import minimize
from grasp_tune.config.build import Built, build_parts, settled
from grasp_tune.config.errors import ConfigError
from grasp_tune.config.loader import CONFIG
from grasp_tune.config.models import ModelFactory, default_model
from grasp_tune.config.run_folder import REPORT, claim, saved_config
from grasp_tune.config.schema import UNLIMITED, Experiment
from grasp_tune.core.errors import GraspError
from grasp_tune.core.records import encode
from grasp_tune.limits import Calls, Limits
from grasp_tune.report import evaluation
from grasp_tune.report.page import LiveReport, write_folder_report
from grasp_tune.runtime.files import read_sealed
from grasp_tune.runtime.result import RESULT, Result
from grasp_tune.runtime.sweep_folder import CLOCK

_LEAST = 0.01  # minutes that are left for training, whatever else takes


@dataclass(frozen=True, eq=False)
class Finished:
    """A run that has ended, and where its files are."""

    result: Result
    metadata: evaluation.RunMetadata
    folder: Path
    report: Path  # the page for people

    def to_dict(self) -> dict[str, Any]:
        result, metadata = self.result, self.metadata
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "score": encode(result.score),
            "by": result.choice.by,
            "chosen": encode(result.choice.chosen),
            "calls": result.calls,
            "quality": encode(metadata.quality),
            "seconds": metadata.seconds,
            "certificate": result.certificate and result.certificate.text,
            "notes": result.notes,
        }


def run_experiment(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    progress: bool = True,
    fresh: bool = False,
    tell: Callable[[str], object] = lambda note: None,
    began: float | None = None,
    more: float | None = None,
) -> Finished:
    """Run an experiment into a folder and return what came out; the same folder again goes on.

    Errors of configs, data, models and entry points come before any file is written.

    out: the folder; None: the experiment's own. progress: whether to show it.
    fresh: remove an earlier run from the folder first.
    tell: is given what a person should know of the config and the data, sentence by sentence.
    began: from when on the experiment's minutes count, by `time.monotonic`; None: from now on.
    more: minutes for which the run in the folder goes on, whatever it has taken so far.
    """
    began = time.monotonic() if began is None else began
    if (place := out or experiment.out) is None:
        raise ConfigError("--out", "", "nothing", "a folder for the results, such as runs/first")
    folder = Path(place).expanduser().absolute()
    built = build_parts(experiment)
    unlimited = (experiment.budget, experiment.steps, experiment.epochs) == (UNLIMITED, None, None)
    if unlimited and not fresh and os.path.isfile(folder / CONFIG):  # its minutes are decided
        budget = Calls(saved_config(folder)["budget"], "minutes", experiment.minutes or 0.0)
        experiment = experiment.model_copy(update={"budget": budget})
    experiment = settled(experiment, built.problem, (time.monotonic() - began) / 60)
    experiment = experiment.model_copy(update={"out": str(folder)})
    if more is not None:
        experiment = _prolonged(experiment, built, folder, more)
    arguments = {**experiment.sweep_arguments(), **_backend(experiment)}
    model = built.problem.build(experiment.seed)  # moved to the chosen point at the end
    restore = claim(folder, experiment, fresh=fresh)
    for note in (*experiment.notes(), *built.notes):
        tell(note)
    started, clock = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S"), time.monotonic()
    if (minutes := experiment.minutes) is not None:  # what comes before and after is part of them
        around = time.monotonic() - began + evaluation.evaluation_seconds(model, built)
        minutes = max(_LEAST, minutes - around / 60)
    arguments |= {"minutes": minutes, "progress": progress, "callbacks": [LiveReport(folder)]}
    try:
        found = minimize(built.problem, out=folder, **arguments)
    except GraspError:
        restore()
        raise
    result, seconds = replace(found, build=lambda: model), time.monotonic() - clock
    metadata = evaluation.describe(built, result.model, started, seconds)
    earlier = evaluation.read_metadata(folder)
    if earlier and earlier.quality and replace(earlier.quality, adamw=None) == metadata.quality:
        metadata = earlier  # nothing was left to do: keep the times, and AdamW's scores
    evaluation.write_metadata(folder, metadata)
    write_folder_report(folder)
    return Finished(result, metadata, folder, folder / REPORT)


def _prolonged(experiment: Experiment, built: Built, folder: Path, more: float) -> Experiment:
    """The experiment with so many minutes more, and calls for them where its run has ended."""
    limits, clock, budget = Limits(minutes=more), folder / CLOCK, experiment.budget
    spent = read_sealed(clock)["seconds"] / 60 if clock.is_file() else 0.0
    if (folder / RESULT).is_file() and not (ended := Result.load(folder)).partial:
        exact = experiment.batch_size == "full"
        budget = ended.spec["budget"] + limits.calls_by_time(built.problem, experiment.seed, exact)
        budget = Calls(budget, "minutes", spent + more)
    return experiment.model_copy(update={"budget": budget, "minutes": spent + more})


def _backend(experiment: Experiment) -> dict[str, Any]:
    """What a config says to `minimize` about where the work runs."""
    values = dict(experiment.backend)
    kind = values.pop("kind")
    if kind == "ray":
        from grasp_tune.executors.ray import RayBackend

        return {"backend": RayBackend(**values)}
    if kind == "optuna":
        from grasp_tune.optuna import OptunaBackend

        return {"backend": OptunaBackend(**values)}
    if values["threads"] is not None:
        torch.set_num_threads(values["threads"])
    return {"workers": values["workers"]}


def load_run(folder: Path | str) -> Result:
    """The result of a finished run, with its model: `load_run("runs/first").model`.

    The data are not needed. Modules that the config names as `module:function` are imported.
    """
    metadata = evaluation.read_metadata(folder := Path(folder))
    if metadata is None:
        raise ConfigError(str(folder), "", "no run.json", "the folder of a finished run")
    experiment = Experiment.model_validate(saved_config(folder))
    options = experiment.problem.model or default_model(experiment.convex, metadata.spec)
    augment = experiment.problem.augment
    return Result.load(folder, ModelFactory(options, metadata.spec, metadata.outputs, augment))
