"""How many workers share the lanes of a step, and how well a sweep uses its workers.

A step of a tiny model takes less time than telling others its gradients. So a number of workers is
tried, its speed is measured, and the fastest number is kept. The result does not depend on it: the
bits are the same for any number.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grasp_tune.core.tasks import Task, TrainTask

TRIES = 2  # of a number of workers: the first may wait for one of them to load its modules


@dataclass(frozen=True, slots=True)
class Usage:
    """What the workers of a sweep did, since it was started or last resumed."""

    workers: int  # held at the same time, at most
    held: float  # worker-seconds
    busy: float  # worker-seconds with a task under way
    speeds: tuple[tuple[int, float], ...] = ()  # (workers on a step, calls a second), as last seen

    @property
    def share(self) -> float:
        return self.busy / self.held if self.held else 0.0


def lanes_of(task: Task) -> int:
    """Return how many workers could share the task: its lanes, 1 where it has none to share."""
    segments = task.segments if isinstance(task, TrainTask) else ()
    return segments[0].lanes if len(segments) == 1 else 1


class LaneSharing:
    """Decides how many workers share a task, by measured speeds; adds up worker-seconds."""

    def __init__(self) -> None:
        self.speeds: dict[int, float] = {}  # workers on a step -> calls a second, as last measured
        self._slow: Counter[int] = Counter()  # how often so many were slower than fewer
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

    def shares(self, tasks: Sequence[Task], idle: int) -> list[int]:
        """Return how many workers each of at most `idle` tasks gets, so that all end early."""
        sizes, left = [1] * len(tasks), idle - len(tasks)

        def seconds(at: int) -> float:  # in calls that follow each other
            lanes = lanes_of(tasks[at])
            return tasks[at].calls * -(-lanes // sizes[at]) / lanes

        growing = set(range(len(tasks)))
        while growing:
            at = max(growing, key=seconds)
            lanes = lanes_of(tasks[at])
            # So many that the worker with the most lanes has one less.
            more = self.workers(tasks[at], -(-lanes // max(1, -(-lanes // sizes[at]) - 1)))
            if sizes[at] < more <= sizes[at] + left:
                left -= more - sizes[at]
                sizes[at] = more
            else:
                growing.remove(at)
        return sizes

    def workers(self, task: Task, idle: int) -> int:
        """Return how many of the idle workers a task gets if it is the only one."""
        lanes = lanes_of(task)
        for count in range(min(idle, lanes), 1, -1):
            shorter = -(-lanes // (count - 1)) > -(-lanes // count)
            if shorter and self._slow[count] < TRIES:
                return count
        return 1

    def learn(self, size: int, calls: int, seconds: float) -> None:
        """Note how fast a training task was with so many workers on its steps."""
        if not calls or seconds <= 0.0:
            return
        self.speeds[size] = speed = calls / seconds
        fewer = [each for other, each in self.speeds.items() if other < size]
        self._slow[size] += bool(fewer) and speed < max(fewer)
