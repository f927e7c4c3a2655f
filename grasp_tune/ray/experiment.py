"""Around a run of Tune: its progress, what it left, and how to have it leave fewer files."""

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from ray import tune

from grasp_tune.core.errors import SearchError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.ray.searcher import GraspSearcher
from grasp_tune.ray.trial import KEY
from grasp_tune.ray.tune_internals import FOLDER
from grasp_tune.runtime.cell_search import CellSearch
from grasp_tune.runtime.files import STATE_LIMIT, read_json
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_sweep import SELECT


class GraspProgress(tune.Callback):
    """Writes a line to standard error now and then: phase, oracle calls, best loss so far.

    searcher: the `search_alg` of the same run.
    every: seconds between two lines; a change of phase is told at once.
    stream: where the lines go, if not to standard error.
    """

    def __init__(
        self, searcher: GraspSearcher, every: float = 10.0, stream: TextIO | None = None
    ) -> None:
        self._searcher, self._every, self._stream = searcher, every, stream
        self._phase, self._at = "", -math.inf

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._show(time.monotonic())

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self._show(math.inf)

    def _show(self, now: float) -> None:
        found = self._searcher.progress
        if found.phase == self._phase and now - self._at < self._every:
            return
        self._phase, self._at = found.phase, now
        best = f"{found.best:.4g}" if math.isfinite(found.best) else "-"
        line = f"{found.phase}, {found.calls:,} of {found.budget:,} oracle calls, best loss {best}"
        print(f"grasp: {line}", file=self._stream or sys.stderr, flush=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None}  # a stream belongs to its process


def load_result(experiment: Any, make_problem: Callable[[], TorchProblem] | None = None) -> Result:
    """Return the result of a finished experiment: a `ResultGrid`, an analysis, or a local folder.

    make_problem: as for `grasp_trainable`, for `result.model`; without it, use `result.restore`.
    """
    if isinstance(experiment, tune.ResultGrid):
        items: Any = [experiment[at] for at in range(len(experiment))]
    else:
        items = getattr(experiment, "trials", None) or []
    rows = [((item.config or {}).get(KEY), item.checkpoint) for item in items]
    chosen = [kept for own, kept in rows if kept and own and own.get("task") == SELECT]
    if chosen:
        with chosen[0].as_directory() as folder:
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


@contextlib.contextmanager
def quiet_disk() -> Iterator[None]:
    """Run Tune without its CSV, JSON and TensorBoard files; the sweep itself needs none of them."""
    # It misses the files that nobody wanted.
    log = logging.getLogger("ray.tune.analysis.experiment_analysis")
    name, level = "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", log.level
    before = os.environ.get(name)
    log.setLevel(logging.ERROR)
    os.environ[name] = "1"
    try:
        yield
    finally:
        log.setLevel(level)
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
