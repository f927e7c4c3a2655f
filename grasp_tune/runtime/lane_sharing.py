"""How many workers share the lanes of a step, and what their answers come to.

A step of a tiny model takes less time than telling others its gradients. So a number of workers is
tried once, its speed is measured, and the fastest number is kept. The result does not depend on it:
the bits are the same for any number.
"""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from grasp_tune.core.tasks import Task, TrainOutcome, TrainTask
from grasp_tune.engine.lane_group import GroupLost, Seat
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.runtime.usage import UsageMeter

logger = logging.getLogger(__name__)


def lanes_of(task: Task) -> int:
    """Return how many workers could share the task: its lanes, 1 where it has none to share."""
    if not isinstance(task, TrainTask) or len(task.segments) > 1:
        return 1
    return task.segments[0].lanes


@dataclass(eq=False)
class SharedTask:
    """A task, and what the workers that share it have answered; often it is one worker."""

    task: Task
    size: int  # workers
    address: str  # where they meet
    since: float = field(default_factory=time.monotonic)
    answers: dict[int, Ended] = field(default_factory=dict)  # by rank

    def seat(self, rank: int) -> Seat | None:
        """Return a worker's place among the others, None where it is alone."""
        return Seat(rank, self.size, self.address) if self.size > 1 else None

    @property
    def done(self) -> bool:
        """Whether all have answered."""
        return len(self.answers) == self.size

    def ended(self) -> Ended:
        """Return how it ended: what a worker raised, else a loss of workers, else the outcome."""
        answers = [self.answers[rank] for rank in sorted(self.answers)]
        for item in answers:
            if isinstance(item, Exception) and not isinstance(item, GroupLost):
                return item
        died = [item for item in answers if isinstance(item, Died)]
        lost = [Died(str(item)) for item in answers if isinstance(item, GroupLost)]
        return (died + lost or answers)[0]


class LaneSharing:
    """Which workers take which task, by the speed of a sweep with so many workers on a step.

    usage: what was measured is noted there.
    """

    def __init__(self, usage: UsageMeter) -> None:
        self._speeds = usage.speeds

    def shares(self, tasks: Sequence[Task], idle: int) -> Iterator[tuple[Task, int]]:
        """Yield each task with its number of workers: one, and those left over for its lanes.

        tasks: at most as many as there are idle workers.
        """
        for at, task in enumerate(sorted(tasks, key=lanes_of), 1):
            size = self.workers(task, idle - (len(tasks) - at))
            idle -= size
            yield task, size

    def workers(self, task: Task, idle: int) -> int:
        """Return how many of the idle workers take the task: a power of two, at most its lanes.

        As many as there are, unless so many were slower than one alone.
        """
        lanes, count = lanes_of(task), 1
        while 2 * count <= min(lanes, idle) and lanes % (2 * count) == 0:
            count *= 2
        alone = self._speeds.get(1, 0.0)
        while count > 1 and self._speeds.get(count, math.inf) < alone:
            count //= 2
        return count

    def learn(self, shared: SharedTask, ended: Ended) -> None:
        """Note how fast a task of training was."""
        seconds = time.monotonic() - shared.since
        if isinstance(ended, TrainOutcome) and ended.calls and seconds > 0.0:
            speed = ended.calls / seconds
            if shared.size not in self._speeds:
                logger.info(
                    "%s: %d workers a step, %.1f calls a second", shared.task.id, shared.size, speed
                )
            self._speeds[shared.size] = speed
