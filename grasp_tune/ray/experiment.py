"""What a finished experiment holds, and a Tune run without its own files."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from grasp_tune.core.errors import SearchError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.ray.trial_config import FOLDER, KEY
from grasp_tune.runtime.cell_search import CellSearch
from grasp_tune.runtime.files import STATE_LIMIT, read_json
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_sweep import SELECT

_NO_FILES = "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"  # of the environment


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
        found, states = path.glob(f"{FOLDER}/*/result.json"), path.glob("searcher-state-*")
        if (last := _newest(found)) is not None:
            result = Result.load(last.parent)
        elif (state := _newest(states)) and "plan" in (saved := read_json(state, STATE_LIMIT)):
            return CellSearch.from_state(saved).result()  # a plan for the user's own trainable
        else:
            raise SearchError(f"{path}: there is no result in it; was it stopped before its end?")
    if make_problem is None:
        return result
    make, seed = make_problem, int(result.spec["seed"])
    return replace(result, build=lambda: make().build(seed))


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(paths, key=lambda path: path.stat().st_mtime, default=None)


def _chosen_checkpoint(experiment: Any) -> tune.Checkpoint | None:
    """Return what the last trial left, where the experiment is one of Tune's objects."""
    if isinstance(experiment, tune.ResultGrid):
        items = [experiment[at] for at in range(len(experiment))]
    else:
        items = getattr(experiment, "trials", None) or []
    rows = [((item.config or {}).get(KEY), item.checkpoint) for item in items]
    return next((kept for own, kept in rows if kept and own and own.get("task") == SELECT), None)


@contextlib.contextmanager
def quiet_disk() -> Iterator[None]:
    """Run Tune without its CSV, JSON and TensorBoard files; the sweep itself needs none of them."""
    # It misses the files that nobody wanted.
    log, name = logging.getLogger("ray.tune.analysis.experiment_analysis"), _NO_FILES
    level, before = log.level, os.environ.get(name)
    log.setLevel(logging.ERROR)
    os.environ[name] = "1"
    try:
        yield
    finally:
        log.setLevel(level)
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
