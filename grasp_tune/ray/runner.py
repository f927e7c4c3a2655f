"""`run_ray`: a problem and a spec through Ray Tune, and the result back."""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from grasp_tune.core.errors import CheckpointError, InputError, SearchError
from grasp_tune.core.spec import SweepSpec
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.optimizers.registry import Factory
from grasp_tune.ray.depot import FOLDER
from grasp_tune.ray.progress import GraspProgress
from grasp_tune.ray.searcher import GraspSearcher
from grasp_tune.ray.trainable import grasp_trainable
from grasp_tune.ray.work import SELECT
from grasp_tune.runtime.files import write_fault
from grasp_tune.runtime.lock import folder_lock
from grasp_tune.runtime.result import Result

NAME = "ray"  # the experiment's folder below `out`


@dataclass(frozen=True, slots=True, kw_only=True)
class RayBackend:
    """How to use a cluster, for `minimize(..., backend=RayBackend(...))`.

    address: `auto`, host:port or ray://host:port; None: the session at hand, or one started here.
    workers: tasks at the same time; None: as many as the cluster holds.
    cpus_per_task, gpus_per_task: what a task reserves; fractions let tasks share.
    storage: a folder or URI that every machine can reach; None: the output folder.
    max_failures: how often Tune restarts a task whose worker died, before the search hears of it.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_task: float = 1.0
    gpus_per_task: float = 0.0
    storage: str | None = None
    max_failures: int = 2

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: got {self.workers!r}, expected a whole number >= 1")
        if self.max_failures < 0:
            raise InputError(f"max_failures: got {self.max_failures!r}, expected >= 0")

    def run(
        self,
        problem: TorchProblem,
        spec: SweepSpec,
        *,
        out: Path | None = None,
        bases: Mapping[str, Factory] | None = None,
        progress: bool = False,
    ) -> Result:
        """Return the result of the sweep; the same `out` again goes on where it was cut off."""
        with contextlib.ExitStack() as stack:
            if out is not None:
                _make(out)
                stack.enter_context(folder_lock(out))
            stack.enter_context(_session(self.address))
            folder = out
            if folder is None and self.storage is None:
                temporary = tempfile.TemporaryDirectory(prefix="grasp-tune-")
                folder = Path(stack.enter_context(temporary))
            storage = self.storage or str(Path(folder or ".").resolve())
            stack.enter_context(quiet_disk())
            stack.enter_context(_silent_tune())
            # The same folder and spec are the same sweep, whatever Tune has recorded of it.
            run = None if out is None else _digest(spec)
            searcher = GraspSearcher.from_setting(spec, bases, run)
            reference = ray.put(problem)  # once into the cluster, not once a trial
            tune.run(
                grasp_trainable(
                    lambda: ray.get(reference), cpus=self.cpus_per_task, gpus=self.gpus_per_task
                ),
                name=NAME if out is not None else f"{NAME}-{searcher.run}",
                search_alg=searcher,
                metric="score",
                mode="min",
                storage_path=storage,
                max_concurrent_trials=self.workers,
                max_failures=self.max_failures,
                raise_on_failed_trial=False,
                resume="AUTO" if out is not None else None,
                callbacks=[GraspProgress(searcher)] if progress else None,
                verbose=0,
            )
            # The trainable's source is an object in the cluster, which may be gone by then.
            result = replace(searcher.result, build=lambda: problem.build(spec.seed))
            if out is not None:
                result.save(out)
            return result


def run_ray(
    problem: TorchProblem,
    spec: SweepSpec,
    *,
    out: Path | None = None,
    workers: int | None = None,
    bases: Mapping[str, Factory] | None = None,
    progress: bool = False,
) -> Result:
    """Return the result of a sweep on the Ray session at hand, or on one started for it."""
    return RayBackend(workers=workers).run(problem, spec, out=out, bases=bases, progress=progress)


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise CheckpointError(write_fault(out, fault, 1)) from fault


def _digest(spec: SweepSpec) -> str:
    text = json.dumps(spec.to_dict(), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def load_result(experiment: Any, make_problem: Callable[[], TorchProblem] | None = None) -> Result:
    """Return the result of a finished experiment: a `ResultGrid`, an analysis, or a local folder.

    make_problem: as for `grasp_trainable`, for `result.model`; without it, use `result.restore`.
    """
    checkpoint = _chosen_checkpoint(experiment)
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            result = Result.load(folder)
    else:
        path = Path(str(getattr(experiment, "experiment_path", experiment)))
        found = list((path / FOLDER).glob("*/result.json"))
        if not found:
            raise SearchError(f"{path}: there is no result in it; was it stopped before its end?")
        result = Result.load(max(found, key=lambda item: item.stat().st_mtime).parent)
    if make_problem is None:
        return result
    make, seed = make_problem, int(result.spec["seed"])
    return replace(result, build=lambda: make().build(seed))


def _chosen_checkpoint(experiment: Any) -> tune.Checkpoint | None:
    """Return what the last trial left, where the experiment is one of Tune's objects."""
    if isinstance(experiment, tune.ResultGrid):
        items = [experiment[at] for at in range(len(experiment))]
        rows = [(item.metrics or {}, item.checkpoint) for item in items]
    else:
        trials = getattr(experiment, "trials", None) or []
        rows = [(trial.last_result or {}, trial.checkpoint) for trial in trials]
    return next((kept for row, kept in rows if row.get("task") == SELECT and kept), None)


@contextlib.contextmanager
def quiet_disk() -> Iterator[None]:
    """Run Tune without its CSV, JSON and TensorBoard files; the sweep itself needs none of them."""
    with (
        _environment("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1"),
        # It misses the files that nobody wanted.
        _level("ray.tune.analysis.experiment_analysis", logging.ERROR),
    ):
        yield


@contextlib.contextmanager
def _silent_tune() -> Iterator[None]:
    """Keep Tune's banner off standard output, and its notes out of the log unless they matter."""
    # The older output honours verbose=0.
    with _environment("RAY_AIR_NEW_OUTPUT", "0"), _level("ray.tune", logging.WARNING):
        yield


@contextlib.contextmanager
def _level(name: str, level: int) -> Iterator[None]:
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(level)
    try:
        yield
    finally:
        log.setLevel(before)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _session(address: str | None) -> Iterator[None]:
    """Use the Ray session at hand; start one where there is none, and end it afterwards."""
    if ray.is_initialized():
        yield
        return
    own = {"include_dashboard": False} if address is None else {"address": address}
    ray.init(log_to_driver=False, **own)
    try:
        yield
    finally:
        ray.shutdown()
