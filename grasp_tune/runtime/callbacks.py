"""Progress of a sweep: the user's callbacks, a progress bar on a terminal, or lines in a log."""

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from grasp_tune.core.search import Progress
from grasp_tune.core.tasks import TrainOutcome

if TYPE_CHECKING:
    from grasp_tune.runtime.result import Result

logger = logging.getLogger(__name__)

LINE_EVERY = 30.0  # seconds between two lines in a log, unless the phase changes
WORDS = {"probe": "probe", "train": "train", "score": "choose", "done": "done"}


def progress_line(progress: Progress, calls: int) -> str:
    """Return the progress of a search as a line: phase, calls, lowest loss."""
    best = f"{progress.best:.4g}" if math.isfinite(progress.best) else "-"
    return f"{WORDS[progress.phase]}: {calls} of {progress.budget} calls, best loss {best}"


class Callback:
    """The base class of callbacks for `minimize(callbacks=[...])`; override the methods you need.

    All methods are called in the process that drives the sweep. If a sweep is resumed, `on_run` is
    first called with the curves of earlier processes. If a callback raises an exception, it is not
    called again; a warning is logged, and the sweep continues.
    """

    def on_phase(self, phase: str) -> None:
        """Called when a phase begins: `probe`, `train`, `score` or `done`."""

    def on_progress(self, calls: int, best: float) -> None:
        """Called with the oracle calls spent and the lowest mean loss so far, NaN at first."""

    def on_run(self, run: int, curve: Sequence[tuple[int, float]]) -> None:
        """Called after each part of a run with the run's number and its (call, mean loss) pairs."""

    def on_end(self, result: "Result") -> None:
        """Called with the result when the sweep has ended."""


class Reporter:
    """Passes the progress of a sweep to callbacks; `ProgressReporter` also displays it."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks, self._phase, self._calls = list(callbacks), "", -1

    def update(self, progress: Progress, calls: int) -> None:
        """Report the progress of the search; `calls` includes those of running tasks."""
        if progress.phase != self._phase:
            self._tell("on_phase", progress.phase)
        if calls != self._calls:
            self._tell("on_progress", calls, progress.best)
        self._phase, self._calls = progress.phase, calls

    def ended(self, outcome: object) -> None:
        """Report the curves of the runs that a task has trained."""
        if isinstance(outcome, TrainOutcome):
            for item in outcome.segments:
                curve = [(point.call, point.loss) for point in item.curve]
                finite = [point for point in curve if math.isfinite(point[1])]
                self._tell("on_run", item.arm, finite)

    def close(self) -> None:
        """Stop the display."""

    def finish(self, result: "Result") -> None:
        """Report the result."""
        self._tell("on_end", result)

    def _tell(self, event: str, *what: object) -> None:
        for callback in tuple(self._callbacks):
            try:
                getattr(callback, event)(*what)
            except Exception:  # an error in a callback must not end a sweep
                self._callbacks.remove(callback)
                words = "%s.%s failed; it hears no more of this sweep, which goes on"
                logger.warning(words, type(callback).__name__, event, exc_info=True)


def reporter_for(wanted: bool | Reporter, callbacks: Sequence[Callback] = ()) -> Reporter:
    """Return the given reporter, or a new one that displays the progress if `wanted` is true."""
    if isinstance(wanted, Reporter):
        return wanted
    return ProgressReporter(callbacks) if wanted else Reporter(callbacks)


class ProgressReporter(Reporter):
    """A reporter with a bar if standard error is a terminal, and otherwise with lines in the log.

    The bar appears with the first update, so that an earlier error leaves no empty bar.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(callbacks)
        self._live = console is not None or sys.stderr.isatty()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console or Console(stderr=True), get_time=clock)
        self._logged = clock()

    def update(self, progress: Progress, calls: int) -> None:
        same = progress.phase == self._phase
        super().update(progress, calls)
        # At the end the same number as in the result; a search may not need all calls.
        done = progress.calls if progress.phase == "done" else min(calls, progress.budget)
        line = progress_line(progress, done)
        if not self._bar.tasks:  # calls of earlier processes do not count towards the speed
            self._bar.add_task(line, total=progress.budget, completed=done)
            if self._live:
                self._bar.start()
        (task,) = self._bar.tasks
        self._bar.update(task.id, completed=done, description=line)
        now = task.get_time()
        if self._live or (same and now - self._logged < LINE_EVERY):
            return
        # The first calls include setup, so their speed is not used.
        self._logged, left = now, task.time_remaining if done > progress.budget / 20 else None
        more = "" if left is None else f", about {left:.0f} s left"
        more = f", {task.elapsed:.0f} s" if progress.phase == "done" else more
        logger.info("%s%s", progress_line(progress, done), more)

    def close(self) -> None:
        if self._live:
            self._bar.stop()
