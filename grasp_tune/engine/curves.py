"""What a run remembers of its losses: a few means, never the whole list."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from grasp_tune.core.tasks import Point, Segment, SegmentOutcome

WINDOW = 100  # minibatches, as in the paper's experiments
MARKS = 24  # points of the curve that one segment leaves for reports


class Curve:
    """Running means over one segment of one run."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._late_from = segment.stop - max(1, segment.calls // 4)
        self._ceiling = math.inf if segment.ceiling is None else segment.ceiling
        self._every = -(-segment.calls // MARKS)
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._late, self._late_count = 0.0, 0
        self._loss, self._norm, self._count = 0.0, 0.0, 0
        self._points: list[Point] = []
        self.call, self.finite = segment.start, True

    def add(self, loss: float, norm: float = math.nan) -> bool:
        """Take in one oracle call; returns whether the run is still finite."""
        self._window.append((loss, norm))
        if self.call >= self._late_from:
            self._late += loss
            self._late_count += 1
        self.call += 1
        self._loss += loss
        self._norm += norm
        self._count += 1
        if self._count == self._every or self.call == self._segment.stop:
            self._mark()
        self.finite = self.finite and math.isfinite(loss) and loss <= self._ceiling
        return self.finite

    def _mark(self) -> None:
        self._points.append(Point(self.call, self._loss / self._count, self._norm / self._count))
        self._loss, self._norm, self._count = 0.0, 0.0, 0

    def state(self) -> dict[str, Any]:
        """Return all that `load` needs to go on, as numbers and lists."""
        return {
            "window": [list(item) for item in self._window],
            "late": [self._late, self._late_count],
            "sums": [self._loss, self._norm, self._count],
            "points": [[point.call, point.loss, point.norm] for point in self._points],
            "call": self.call,
            "finite": self.finite,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._window.extend((loss, norm) for loss, norm in state["window"])
        self._late, self._late_count = state["late"]
        self._loss, self._norm, self._count = state["sums"]
        self._points = [Point(*point) for point in state["points"]]
        self.call, self.finite = state["call"], state["finite"]

    def outcome(self) -> SegmentOutcome:
        """Return how the segment went."""
        if self._count:
            self._mark()
        size = len(self._window) or math.nan
        loss, norm = (sum(item[at] for item in self._window) / size for at in (0, 1))
        late = self._late / self._late_count if self._late_count else loss
        return SegmentOutcome(
            arm=self._segment.arm.index,
            calls=self.call - self._segment.start,
            finite=self.finite,
            loss=late if self.finite else math.nan,
            window_loss=loss,
            window_norm=norm,
            curve=tuple(self._points),
        )
