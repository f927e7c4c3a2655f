"""How many workers share the lanes of a step: a rule from measured speeds.

A step of a tiny model takes less time than telling others its gradients. So a number of workers is
tried once, its speed is measured, and the fastest number is kept. The result does not depend on it:
the bits are the same for any number.
"""

import logging
import math

from grasp_tune.core.tasks import Outcome, Task, TrainOutcome, TrainTask

logger = logging.getLogger(__name__)


def lanes_of(task: Task) -> int:
    """Return how many workers could share the task: its lanes, 1 where it has none to share."""
    if not isinstance(task, TrainTask) or len(task.segments) > 1:
        return 1
    return task.segments[0].lanes


class LaneSharing:
    """What is known of the speed of a sweep with so many workers on a step."""

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}  # workers -> calls a second, as last measured

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

    def learn(self, task: Task, workers: int, outcome: Outcome, seconds: float) -> None:
        """Note how fast a task of training was with so many workers."""
        if isinstance(outcome, TrainOutcome) and outcome.calls and seconds > 0.0:
            if workers not in self._speeds:
                speed = outcome.calls / seconds
                logger.info("%s: %d workers a step, %.1f calls a second", task.id, workers, speed)
            self._speeds[workers] = outcome.calls / seconds
