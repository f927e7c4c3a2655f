"""Progress in oracle calls: a bar on a terminal, now and then a line in a log."""

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from grasp_tune.core.search import Progress

logger = logging.getLogger(__name__)

LINE_EVERY = 30.0  # seconds between two lines in a log
WORDS = {"probe": "probe", "train": "train", "score": "choose", "done": "done"}


class Reporter(Protocol):
    """Whoever shows how far a run is."""

    def update(self, progress: Progress, calls: int) -> None:
        """Show where the search stands; `calls` counts those under way too."""

    def close(self) -> None:
        """Show no more."""


def reporter_for(wanted: bool | Reporter) -> Reporter | None:
    """Return a bar where standard error is a terminal, log lines elsewhere, None if not wanted.

    A reporter that is given is returned as it is.
    """
    if not isinstance(wanted, bool):
        return wanted
    if not wanted:
        return None
    return BarReporter() if sys.stderr.isatty() else LineReporter()


class BarReporter:
    """A bar on standard error: phase, calls, best loss so far, time left.

    It appears with the first update, so that an error before it leaves no empty bar, and it takes
    the calls of an earlier run as given, so that they do not count as speed.
    """

    def __init__(self, console: Console | None = None) -> None:
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
        done = _shown(progress, calls)
        word, best = WORDS[progress.phase], _number(progress.best)
        if self._task is None:
            total = progress.budget
            self._task = self._bar.add_task(word, total=total, completed=done, best=best)
            self._bar.start()
        self._bar.update(self._task, completed=done, description=word, best=best)

    def close(self) -> None:
        self._bar.stop()


class LineReporter:
    """A line in the log each half minute, and one at every change of phase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase, self._at = "", clock()
        self._begun: tuple[float, int] | None = None  # when, and with how many calls done

    def update(self, progress: Progress, calls: int) -> None:
        now, done = self._clock(), _shown(progress, calls)
        self._begun = self._begun or (now, done)
        if progress.phase == self._phase and now - self._at < LINE_EVERY:
            return
        self._phase, self._at = progress.phase, now
        logger.info(
            "%s: %d of %d calls, best loss %s, %s",
            WORDS[progress.phase],
            done,
            progress.budget,
            _number(progress.best),
            self._left(progress, now, done),
        )

    def _left(self, progress: Progress, now: float, done: int) -> str:
        assert self._begun is not None
        since, before = self._begun
        if progress.phase == "done":
            return f"{now - since:.0f} s"
        if done <= before:
            return "time left unknown"
        return f"about {(progress.budget - done) * (now - since) / (done - before):.0f} s left"

    def close(self) -> None:
        """Nothing to close."""


def _shown(progress: Progress, calls: int) -> int:
    """Return the calls done, those under way among them; a search may end with some to spare."""
    return progress.budget if progress.phase == "done" else min(calls, progress.budget)


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "-"
