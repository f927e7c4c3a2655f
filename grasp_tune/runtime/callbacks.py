"""Progress of a sweep: the user's callbacks, a bar on a terminal, or lines in a log."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
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
    """Where a search stands: phase, calls, lowest loss."""
    best = f"{progress.best:.4g}" if math.isfinite(progress.best) else "-"
    return f"{WORDS[progress.phase]}: {calls} of {progress.budget} calls, best loss {best}"


class Callback:
    """What `minimize(callbacks=[...])` calls; override what is of interest.

    Calls come from the process that drives the sweep, in this order for any number of workers: the
    curves that an earlier process left, where the sweep is resumed; phases and progress as they
    happen; a curve whenever a part of a run has ended; the end, once. A callback that raises an
    exception is not called again; a warning says so, and the sweep goes on.
    """

    def on_phase(self, phase: str) -> None:
        """A phase began: `probe`, `train`, `score` or `done`."""

    def on_progress(self, calls: int, best: float) -> None:
        """So many oracle calls are spent; `best` is the lowest mean loss so far, NaN before any."""

    def on_run(self, run: int, curve: Sequence[tuple[int, float]]) -> None:
        """A part of a run has ended: its number, and its (oracle call of the run, mean loss)s."""

    def on_end(self, result: "Result") -> None:
        """The sweep has ended with this result."""


class Reporter:
    """Tells callbacks how far a sweep is; those below show it to people, too."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks, self._phase, self._calls = list(callbacks), "", -1
        self._heard = False  # of any run while it went on

    def update(self, progress: Progress, calls: int) -> None:
        """Tell where the search stands; `calls` counts those under way too."""
        if progress.phase != self._phase:
            self._tell("on_phase", progress.phase)
        if calls != self._calls:
            self._tell("on_progress", calls, progress.best)
        self._phase, self._calls = progress.phase, calls

    def ended(self, outcome: object) -> None:
        """Tell the curves of the runs that a task has trained."""
        if isinstance(outcome, TrainOutcome):
            for item in outcome.segments:
                self._run(item.arm, ((point.call, point.loss) for point in item.curve))

    def close(self) -> None:
        """Show no more."""

    def finish(self, result: "Result") -> None:
        """Tell the end, and the runs that a backend with a loop of its own has not told."""
        if not self._heard:
            for run in result.runs:
                self._run(run.arm, [(call, loss) for call, loss, _ in run.curve])
        self._tell("on_end", result)

    def _run(self, run: int, curve: Iterable[tuple[int, float]]) -> None:
        self._heard, finite = True, [point for point in curve if math.isfinite(point[1])]
        self._tell("on_run", run, finite)

    def _tell(self, event: str, *what: object) -> None:
        for callback in tuple(self._callbacks):
            try:
                getattr(callback, event)(*what)
            except Exception:  # whoever only listens must not cost a run
                self._callbacks.remove(callback)
                words = "%s.%s failed; it hears no more of this sweep, which goes on"
                logger.warning(words, type(callback).__name__, event, exc_info=True)


def reporter_for(wanted: bool | Reporter, callbacks: Sequence[Callback] = ()) -> Reporter:
    """Return one that shows the progress, if wanted; or the reporter as given."""
    if isinstance(wanted, Reporter):
        return wanted
    return ProgressReporter(callbacks) if wanted else Reporter(callbacks)


class ProgressReporter(Reporter):
    """A bar where standard error is a terminal; elsewhere now and then a line in the log.

    The bar appears with the first update, so that an error before it leaves no empty one, and takes
    the calls of an earlier run as given, so that they do not count as speed.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(callbacks)
        self._live = console is not None or sys.stderr.isatty()
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} calls"),
            TextColumn("best loss {task.fields[best]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            get_time=clock,
        )
        self._logged = clock()

    def update(self, progress: Progress, calls: int) -> None:
        same, word = progress.phase == self._phase, WORDS[progress.phase]
        super().update(progress, calls)
        # At the end the number that the result has: a search may have some calls to spare.
        done = progress.calls if progress.phase == "done" else min(calls, progress.budget)
        best = f"{progress.best:.4g}" if math.isfinite(progress.best) else "-"
        if not self._bar.tasks:
            self._bar.add_task(word, total=progress.budget, completed=done, best=best)
            if self._live:
                self._bar.start()
        (task,) = self._bar.tasks
        self._bar.update(task.id, completed=done, description=word, best=best)
        now = task.get_time()
        if self._live or (same and now - self._logged < LINE_EVERY):
            return
        # The first calls set things up: their speed says nothing.
        self._logged, left = now, task.time_remaining if done > progress.budget / 20 else None
        more = "" if left is None else f", about {left:.0f} s left"
        more = f", {task.elapsed:.0f} s" if progress.phase == "done" else more
        logger.info("%s%s", progress_line(progress, done), more)

    def close(self) -> None:
        if self._live:
            self._bar.stop()
