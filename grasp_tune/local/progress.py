"""Progress in oracle calls: a bar on a terminal, now and then a line in a log."""

import logging
import math
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from grasp_tune.local.runner import Reporter
from grasp_tune.method.search import Progress

logger = logging.getLogger(__name__)

LINE_EVERY = 30.0  # seconds between two lines in a log


def reporter_for(wanted: bool, budget: int) -> Reporter | None:
    """Return a bar where standard error is a terminal, log lines elsewhere, None if not wanted."""
    if not wanted:
        return None
    return BarReporter(budget) if sys.stderr.isatty() else LineReporter(budget)


class BarReporter:
    """A bar on standard error: phase, calls, best loss so far, time left."""

    def __init__(self, budget: int) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} calls"),
            TextColumn("best loss {task.fields[best]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("probe", total=budget, best="-")
        self._bar.start()

    def update(self, progress: Progress, calls: int) -> None:
        """Show where the search stands."""
        done = progress.budget if progress.phase == "done" else min(calls, progress.budget)
        words = {"probe": "probe", "train": "train", "score": "choose", "done": "done"}
        self._bar.update(
            self._task,
            completed=done,
            description=words[progress.phase],
            best=_number(progress.best),
        )

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


class LineReporter:
    """A line in the log each half minute, and one at every change of phase."""

    def __init__(self, budget: int) -> None:
        self._phase, self._at = "", time.monotonic()

    def update(self, progress: Progress, calls: int) -> None:
        """Write a line if it is time."""
        now = time.monotonic()
        if progress.phase == self._phase and now - self._at < LINE_EVERY:
            return
        self._phase, self._at = progress.phase, now
        best = _number(progress.best)
        logger.info(
            "%s: %d of %d calls, best loss %s", progress.phase, calls, progress.budget, best
        )

    def close(self) -> None:
        """Nothing to close."""


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "-"
