"""How many workers share the lanes of a step, and how well a sweep uses its workers.

For a tiny model, a step takes less time than sending its gradients to other workers. So different
numbers of workers are tried and measured, and the fastest is kept. The result has the same bits for
any number.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grasp_tune.core.tasks import Task, TrainTask

TRIES = 2  # of each number of workers; the first may be slow because a worker loads its modules


@dataclass(frozen=True, slots=True)
class Usage:
    """How the workers of a sweep were used since it was started or last resumed."""

    workers: int  # most workers held at the same time
    held: float  # worker-seconds
    busy: float  # worker-seconds with a running task
    speeds: tuple[tuple[int, float], ...] = ()  # last (workers on a step, calls per second)

    @property
    def share(self) -> float:
        return self.busy / self.held if self.held else 0.0


def lanes_of(task: Task) -> int:
    """Return how many workers could share the task: its lanes, or 1 if it cannot be shared."""
    segments = task.segments if isinstance(task, TrainTask) else ()
    return segments[0].lanes if len(segments) == 1 else 1


class LaneSharing:
    """Decides from measured speeds how many workers share a task, and sums up worker-seconds."""

    def __init__(self) -> None:
        self.speeds: dict[int, float] = {}  # workers on a step -> last measured calls per second
        self._slow: Counter[int] = Counter()  # how often a number was slower than a smaller one
        self._workers, self._held, self._busy = 0, 0.0, 0.0
        self._now, self._since = (0, 0), time.monotonic()

    def note(self, held: int, busy: int) -> None:
        """Record how many workers are held from now on, and how many of them are busy."""
        now = time.monotonic()
        self._held += self._now[0] * (now - self._since)
        self._busy += self._now[1] * (now - self._since)
        self._now, self._since = (held, busy), now
        self._workers = max(self._workers, held)

    def reading(self) -> Usage | None:
        """Return the sums; None if nothing was recorded, because one process did all the work."""
        self.note(*self._now)
        speeds = tuple(sorted(self.speeds.items()))
        return Usage(self._workers, self._held, self._busy, speeds) if self._workers else None

    def shares(self, tasks: Sequence[Task], idle: int) -> list[int]:
        """Return how many workers each of at most `idle` tasks gets, so that all end early."""
        sizes, left = [1] * len(tasks), idle - len(tasks)

        def seconds(at: int) -> float:  # measured in consecutive calls
            lanes = lanes_of(tasks[at])
            return tasks[at].calls * -(-lanes // sizes[at]) / lanes

        growing = set(range(len(tasks)))
        while growing:
            at = max(growing, key=seconds)
            lanes = lanes_of(tasks[at])
            # The number with which the most loaded worker has one lane less.
            more = self.workers(tasks[at], -(-lanes // max(1, -(-lanes // sizes[at]) - 1)))
            if sizes[at] < more <= sizes[at] + left:
                left -= more - sizes[at]
                sizes[at] = more
            else:
                growing.remove(at)
        return sizes

    def workers(self, task: Task, idle: int) -> int:
        """Return how many of the idle workers a task gets if it is the only task."""
        lanes = lanes_of(task)
        for count in range(min(idle, lanes), 1, -1):
            shorter = -(-lanes // (count - 1)) > -(-lanes // count)
            if shorter and self._slow[count] < TRIES:
                return count
        return 1

    def learn(self, size: int, calls: int, seconds: float) -> None:
        """Record the speed of a training task whose steps were shared by `size` workers."""
        if not calls or seconds <= 0.0:
            return
        self.speeds[size] = speed = calls / seconds
        fewer = [each for other, each in self.speeds.items() if other < size]
        self._slow[size] += bool(fewer) and speed < max(fewer)
