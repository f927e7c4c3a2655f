"""One experiment from config to report: what `grasp-tune run` and `resume` do."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grasp_tune.api import minimize
from grasp_tune.config.arguments import backend_of, sweep_arguments
from grasp_tune.config.build import Built, build_parts, settled
from grasp_tune.config.errors import ConfigError
from grasp_tune.config.models import ModelFactory, default_model
from grasp_tune.config.options import Local
from grasp_tune.config.run_folder import REPORT, claim, release, saved_config
from grasp_tune.config.schema import Experiment
from grasp_tune.core.errors import GraspError
from grasp_tune.core.records import encode
from grasp_tune.engine.fused import pays
from grasp_tune.report.evaluation import (
    RunMetadata,
    describe,
    evaluate,
    read_metadata,
    write_metadata,
)
from grasp_tune.report.page import LiveReport, write_folder_report
from grasp_tune.runtime.result import Result


@dataclass(frozen=True, eq=False)
class Finished:
    """A run that has ended, and where its files are."""

    result: Result
    metadata: RunMetadata
    folder: Path

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.folder / REPORT

    def to_dict(self) -> dict[str, Any]:
        """The run in numbers, as JSON values."""
        result, certificate = self.result, self.result.certificate
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "score": encode(result.score),
            "by": result.choice.by,
            "chosen": encode(result.choice.chosen),
            "calls": dict(result.calls),
            "quality": encode(self.metadata.quality),
            "seconds": self.metadata.seconds,
            "certificate": None if certificate is None else certificate.text,
            "notes": list(result.notes),
        }


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment with all that it names read, imported and built once: ready to run."""

    experiment: Experiment
    built: Built
    folder: Path
    model: nn.Module  # at the start point; moved to the chosen one at the end
    arguments: dict[str, Any]  # of `minimize`

    def run(self, *, progress: bool = True) -> Finished:
        """Run the sweep, or what is left of it, and write everything."""
        started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        clock = time.monotonic()
        if (threads := getattr(self.experiment.backend, "threads", None)) is not None:
            torch.set_num_threads(threads)
        try:
            found = minimize(
                self.built.problem,
                progress=progress,
                out=self.folder,
                callbacks=[LiveReport(self.folder)],
                **self.arguments,
            )
        except GraspError:
            release(self.folder)
            raise
        result = replace(found, build=lambda: self.model)
        seconds = time.monotonic() - clock
        quality = evaluate(result.model, self.built)
        trained = sum(item.numel() for item in self.model.parameters() if item.requires_grad)
        metadata = describe(self.built, trained, quality, started, seconds)
        if (earlier := read_metadata(self.folder)) is not None:
            kept = replace(earlier, started=started, seconds=seconds, quality=quality)
            # Nothing was left to do: keep the times of the run that did it, and AdamW's scores.
            metadata = earlier if kept == metadata else metadata
        write_metadata(self.folder, metadata)
        write_folder_report(self.folder)
        return Finished(result, metadata, self.folder)


def prepare(
    experiment: Experiment, out: Path | str | None = None, *, fresh: bool = False
) -> Prepared:
    """Check all that can be checked before anything is trained, and claim the folder.

    Raises the errors of configs, data, models and entry points; nothing is written in that case.
    """
    place = experiment.out if out is None else str(out)
    if place is None:
        raise ConfigError("--out", "", "nothing", "a folder for the results, such as runs/first")
    folder = Path(place).expanduser().absolute()
    built = build_parts(experiment)
    experiment = settled(experiment, built.problem, None if fresh else folder)
    experiment = experiment.model_copy(update={"out": str(folder)})
    arguments = {**sweep_arguments(experiment), "backend": backend_of(experiment)}
    arguments["minutes"] = experiment.minutes
    if isinstance(experiment.backend, Local):
        arguments["workers"] = experiment.backend.workers
    model = built.problem.build(experiment.seed)
    if arguments["fused"] == "auto":  # decided here by the model at hand, not by another one
        own = callable(arguments["method"].base)
        arguments["fused"] = built.problem.plain_steps and not own and pays(model)
    claim(folder, experiment, fresh=fresh)
    return Prepared(experiment, built, folder, model, arguments)


def run_experiment(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    progress: bool = True,
    fresh: bool = False,
) -> Finished:
    """Run an experiment into a folder and return what came out; the same folder again goes on."""
    return prepare(experiment, out, fresh=fresh).run(progress=progress)


def load_run(folder: Path | str) -> Result:
    """The result of a finished run, with its model: `load_run("runs/first").model`.

    The data are not needed. Modules that the config names as `module:function` are imported.
    """
    metadata = read_metadata(folder := Path(folder))
    if metadata is None:
        raise ConfigError(str(folder), "", "no run.json", "the folder of a finished run")
    experiment = Experiment.model_validate(saved_config(folder))
    options = experiment.problem.model or default_model(experiment.convex, metadata.spec)
    augment = experiment.problem.augment
    return Result.load(folder, ModelFactory(options, metadata.spec, metadata.outputs, augment))


def load_model(folder: Path | str) -> nn.Module:
    """The model of a finished run, at the chosen point and in evaluation mode."""
    return load_run(folder).model
