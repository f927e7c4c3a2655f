"""Progress in oracle calls and phases, as a Tune callback."""

import math
import sys
import time
from typing import Any, TextIO

from ray.tune import Callback

from grasp_tune.ray.searcher import GraspSearcher


class GraspProgress(Callback):
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
