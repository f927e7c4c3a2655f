"""How long a sweep takes on many workers, from what one or two were measured to need.

The rounds are those of a dry run, and tasks are handed out by the rule of the real executors; only
the seconds are made up. So it says what another worker buys, and what it cannot.
"""

import heapq
import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from grasp_tune.core.tasks import Task, TrainTask
from grasp_tune.engine.lane_group import LaneGroup, LaneSum, Seat
from grasp_tune.report.dry_run import DryRun
from grasp_tune.runtime.lane_sharing import LaneSharing, UsageMeter, lanes_of

EXCHANGES = 20  # that are timed


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that things take."""

    call: float  # an oracle call
    exchange: float = 0.0  # of the gradients of one step between two workers
    start: float = 0.0  # from the beginning until workers take tasks
    task: float = 0.0  # between two tasks of a worker

    def seconds(self, task: Task, workers: int) -> float:
        """Return how long a task takes with so many workers on its lanes.

        Gradients go around a ring, so that their time grows with the number of workers.
        """
        lanes = lanes_of(task)
        seconds = self.task + self.call * task.calls * -(-lanes // workers) / lanes
        if workers > 1 and isinstance(task, TrainTask):
            steps = max(-(-segment.calls // segment.lanes) for segment in task.segments)
            seconds += steps * self.exchange * (workers - 1)
        return seconds


@dataclass(frozen=True, slots=True)
class Simulation:
    """A sweep on a number of workers."""

    workers: int
    start: float  # seconds before the first round
    rounds: tuple[float, ...]  # seconds of each
    busy: float  # worker-seconds

    @property
    def seconds(self) -> float:
        """Wall-clock in all."""
        return self.start + sum(self.rounds)

    @property
    def share(self) -> float:
        """Worker-seconds busy over held."""
        return self.busy / (self.workers * self.seconds) if self.seconds else 1.0


def simulate(run: DryRun, costs: Costs, workers: int) -> Simulation:
    """Return how the sweep would go on so many workers."""
    sharing, rounds, busy = LaneSharing(UsageMeter()), list[float](), 0.0
    for item in run.rounds:
        waiting, idle, now = list(item.tasks), workers, 0.0
        running: list[tuple[float, int]] = []  # (when it ends, its workers)
        while waiting or running:
            handed, waiting = waiting[:idle], waiting[idle:]
            for task, size in zip(handed, sharing.shares(handed, idle), strict=True):
                seconds = costs.seconds(task, size)
                heapq.heappush(running, (now + seconds, size))
                idle -= size
                busy += size * seconds
                if isinstance(task, TrainTask):
                    sharing.learn(size, task.calls, seconds)
            now, size = heapq.heappop(running)
            idle += size
        rounds.append(now)
    return Simulation(workers, costs.start, tuple(rounds), busy)


def timed_exchange(parameters: int) -> float:
    """Return the seconds in which two processes of this machine exchange so many gradients."""
    with tempfile.TemporaryDirectory() as folder:
        address = (Path(folder).resolve() / "meeting").as_uri()
        other = multiprocessing.get_context("fork").Process(
            target=_exchange, args=(Seat(1, 2, address), parameters), daemon=True
        )
        other.start()
        seconds = _exchange(Seat(0, 2, address), parameters)
        other.join()
    return seconds


def _exchange(seat: Seat, parameters: int) -> float:
    like, loss, clock = torch.zeros(parameters), torch.zeros(()), 0.0
    with LaneGroup(seat) as group:
        for at in range(EXCHANGES + 1):
            clock = time.perf_counter() if at == 1 else clock  # the first one sets things up
            tree = LaneSum(group.own(seat.size).start)
            tree.add([like])
            group.exchange(tree, [loss], [like])
        return (time.perf_counter() - clock) / EXCHANGES
