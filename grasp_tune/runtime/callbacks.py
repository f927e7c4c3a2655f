"""Who hears how a sweep goes: callbacks, a bar on a terminal, now and then a line in a log."""

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from grasp_tune.core.search import Progress
from grasp_tune.core.tasks import TrainOutcome

if TYPE_CHECKING:
    from grasp_tune.runtime.result import Result

logger = logging.getLogger(__name__)

LINE_EVERY = 30.0  # seconds between two lines in a log
WORDS = {"probe": "probe", "train": "train", "score": "choose", "done": "done"}


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

    def on_end(self, result: "Result") -> None:
        """The sweep has ended with this result."""


class Reporter:
    """Tells callbacks how far a sweep is; those below show it to people, too."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks, self._phase, self._calls = callbacks, "", -1
        self._heard = False  # of any run while it went on

    def update(self, progress: Progress, calls: int) -> None:
        """Tell where the search stands; `calls` counts those under way too."""
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
        """Show no more."""

    def finish(self, result: "Result") -> None:
        """Tell the end, and the runs that a backend with a loop of its own has not told."""
        if not self._heard:
            for run in result.runs:
                self._run(run.arm, [(call, loss) for call, loss, _ in run.curve])
        for callback in self._callbacks:
            callback.on_end(result)

    def _run(self, run: int, curve: list[tuple[int, float]]) -> None:
        self._heard = True
        for callback in self._callbacks:
            callback.on_run(run, [(call, loss) for call, loss in curve if math.isfinite(loss)])


def reporter_for(wanted: bool | Reporter, callbacks: Sequence[Callback] = ()) -> Reporter:
    """Return a bar on a terminal, log lines elsewhere, if wanted; or the reporter as given."""
    if isinstance(wanted, Reporter):
        return wanted
    if not wanted:
        return Reporter(callbacks)
    return BarReporter(callbacks) if sys.stderr.isatty() else LineReporter(callbacks)


class BarReporter(Reporter):
    """A bar on standard error: phase, calls, best loss so far, time left.

    It appears with the first update, so that an error before it leaves no empty bar, and it takes
    the calls of an earlier run as given, so that they do not count as speed.
    """

    def __init__(self, callbacks: Sequence[Callback] = (), console: Console | None = None) -> None:
        super().__init__(callbacks)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} calls"),
            TextColumn("best loss {task.fields[best]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._task: TaskID | None = None

    def update(self, progress: Progress, calls: int) -> None:
        super().update(progress, calls)
        (done, best), word = _shown(progress, calls), WORDS[progress.phase]
        if self._task is None:
            self._task = self._bar.add_task(word, total=progress.budget, completed=done, best=best)
            self._bar.start()
        self._bar.update(self._task, completed=done, description=word, best=best)

    def close(self) -> None:
        self._bar.stop()


class LineReporter(Reporter):
    """A line in the log each half minute, and one at every change of phase."""

    def __init__(
        self, callbacks: Sequence[Callback] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(callbacks)
        self._clock, self._at = clock, clock()
        self._begun: tuple[float, int] | None = None  # when, and with how many calls done
        self._rated: tuple[float, int] | None = None  # the same when workers had begun to train

    def update(self, progress: Progress, calls: int) -> None:
        now, same = self._clock(), progress.phase == self._phase
        super().update(progress, calls)
        (done, best), budget = _shown(progress, calls), progress.budget
        since, before = self._begun = self._begun or (now, done)
        if self._rated is None and done > before and progress.phase != "probe":
            self._rated = now, done  # what came before was mostly their start
        if same and now - self._at < LINE_EVERY:
            return
        self._at, left = now, ""
        if progress.phase == "done":
            left = f", {now - since:.0f} s"
        elif self._rated is not None and done > self._rated[1]:
            seconds = (budget - done) * (now - self._rated[0]) / (done - self._rated[1])
            left = f", about {seconds:.0f} s left"
        line = "%s: %d of %d calls, best loss %s%s"
        logger.info(line, WORDS[progress.phase], done, budget, best, left)


def _shown(progress: Progress, calls: int) -> tuple[int, str]:
    """Return the calls done, at the end those that the result has, and the best loss in words."""
    done = progress.calls if progress.phase == "done" else min(calls, progress.budget)
    return done, f"{progress.best:.4g}" if math.isfinite(progress.best) else "-"
