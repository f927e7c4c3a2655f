"""What is worth knowing about a finished run beside its result: versions, times, data, quality.

Kept as `run.json` in the run's folder, so that a report can be written again later and the model
be built again without the data.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import grasp_tune
from grasp_tune.config.build import Built
from grasp_tune.core.errors import InputError
from grasp_tune.core.records import decode, encode
from grasp_tune.data.data import DataSpec
from grasp_tune.report.evaluation import Quality
from grasp_tune.runtime.files import read_json, write_json_atomic

FILE = "run.json"
_LIMIT = 2**20  # bytes


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """One run, in numbers and words for its report."""

    started: str  # UTC, to the second
    seconds: float  # of this process; an earlier one that was resumed is not in it
    versions: tuple[tuple[str, str], ...]  # (package, version)
    spec: DataSpec
    rows: int  # training rows, those kept aside for the choice among them
    test_rows: int
    model: str  # the name of its kind
    parameters: int  # trainable numbers
    loss: str
    outputs: int
    batch: int
    quality: Quality | None


def describe(
    built: Built, parameters: int, quality: Quality | None, started: str, seconds: float
) -> RunMetadata:
    """The metadata of a run that has just ended; `parameters` are the trainable numbers."""
    packages = []
    for name in ("torch", "numpy", "ray", "optuna"):
        with suppress(metadata.PackageNotFoundError):
            packages.append((name, metadata.version(name)))
    return RunMetadata(
        started=started,
        seconds=seconds,
        versions=(
            ("grasp_tune", grasp_tune.__version__),
            ("python", platform.python_version()),
            *packages,
            ("platform", platform.platform(terse=True)),
        ),
        spec=built.data.spec,
        rows=len(built.data.x),
        test_rows=0 if built.data.x_test is None else len(built.data.x_test),
        model=built.model.name,
        parameters=parameters,
        loss=built.loss,
        outputs=built.outputs,
        batch=built.problem.batch_size,
        quality=quality,
    )


def write_metadata(folder: Path, metadata: RunMetadata) -> None:
    """Replace `run.json`."""
    write_json_atomic(folder / FILE, encode(metadata))


def read_metadata(folder: Path) -> RunMetadata | None:
    """The metadata in a folder, None where there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return decode(RunMetadata, read_json(path, _LIMIT))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
