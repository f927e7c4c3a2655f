"""How well a sweep uses its workers: worker-seconds busy, of those held."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What the workers of a sweep did, since it was started or last resumed."""

    workers: int  # held at the same time, at most
    held: float  # worker-seconds
    busy: float  # worker-seconds with a task under way
    speeds: tuple[tuple[int, float], ...] = ()  # (workers on a step, calls a second), as last seen

    @property
    def share(self) -> float:
        """Busy over held."""
        return self.busy / self.held if self.held else 0.0


class UsageMeter:
    """Adds up worker-seconds; executors with several workers tell it of every change."""

    def __init__(self) -> None:
        self.speeds: dict[int, float] = {}  # workers on a step -> calls a second, as last measured
        self._workers, self._held, self._busy = 0, 0.0, 0.0
        self._now, self._since = (0, 0), time.monotonic()

    def note(self, held: int, busy: int) -> None:
        """From now on so many workers are held, and so many of them busy."""
        now = time.monotonic()
        self._held += self._now[0] * (now - self._since)
        self._busy += self._now[1] * (now - self._since)
        self._now, self._since = (held, busy), now
        self._workers = max(self._workers, held)

    def reading(self) -> Usage | None:
        """Return the sums, None where nobody told anything: one process did it all."""
        self.note(*self._now)
        speeds = tuple(sorted(self.speeds.items()))
        return Usage(self._workers, self._held, self._busy, speeds) if self._workers else None
