"""Callbacks: whoever wants to hear how a sweep goes, such as a logger of experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grasp_tune.core.search import Progress
from grasp_tune.core.tasks import TrainOutcome
from grasp_tune.runtime.progress import Reporter

if TYPE_CHECKING:
    from grasp_tune.runtime.result import Result


class Callback:
    """What `minimize(callbacks=[...])` calls; override what is of interest.

    Calls come from the process that drives the sweep, in this order for any number of workers:
    phases and progress as they happen, a curve whenever a part of a run has ended, the end once.
    """

    def on_phase(self, phase: str) -> None:
        """A phase began: `probe`, `train`, `score` or `done`."""

    def on_progress(self, calls: int, best: float) -> None:
        """So many oracle calls are spent; `best` is the lowest mean loss so far, NaN before any."""

    def on_run(self, run: int, curve: Sequence[tuple[int, float]]) -> None:
        """A part of a run has ended: its number, and its (oracle call of the run, mean loss)s."""

    def on_end(self, result: Result) -> None:
        """The sweep has ended with this result."""


class CallbackReporter:
    """Callbacks as a reporter, beside the one that shows progress to people, if any."""

    def __init__(self, callbacks: Sequence[Callback], shown: Reporter | None) -> None:
        self._callbacks, self._shown = callbacks, shown
        self._phase, self._calls = "", -1
        self._heard = False  # of any run while it went on

    def update(self, progress: Progress, calls: int) -> None:
        if self._shown is not None:
            self._shown.update(progress, calls)
        for callback in self._callbacks:
            if progress.phase != self._phase:
                callback.on_phase(progress.phase)
            if calls != self._calls:
                callback.on_progress(calls, progress.best)
        self._phase, self._calls = progress.phase, calls

    def ended(self, outcome: object) -> None:
        """Tell the curves of the runs that a task has trained."""
        if isinstance(outcome, TrainOutcome):
            for item in outcome.segments:
                self._run(item.arm, [(point.call, point.loss) for point in item.curve])

    def close(self) -> None:
        if self._shown is not None:
            self._shown.close()

    def finish(self, result: Result) -> None:
        """Tell the end, and the runs that a backend with a loop of its own has not told."""
        if not self._heard:
            for run in result.runs:
                self._run(run.arm, [(call, loss) for call, loss, _ in run.curve])
        for callback in self._callbacks:
            callback.on_end(result)

    def _run(self, run: int, curve: list[tuple[int, float]]) -> None:
        self._heard = True
        known = [(call, loss) for call, loss in curve if math.isfinite(loss)]
        for callback in self._callbacks:
            callback.on_run(run, known)
