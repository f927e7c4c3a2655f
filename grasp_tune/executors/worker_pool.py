"""What executors with several workers have in common: who runs which task, and what came of it."""

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from grasp_tune.core.tasks import Task, TrainOutcome
from grasp_tune.engine.lane_group import GroupLost, Seat
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.runtime.lane_sharing import LaneSharing, UsageMeter

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A task, and what the workers that share it have answered; often it is one worker."""

    task: Task
    size: int  # workers
    address: str  # where they meet
    since: float = field(default_factory=time.monotonic)
    answers: dict[int, Ended] = field(default_factory=dict)  # by rank

    def seat(self, rank: int) -> Seat | None:
        """Return a worker's place among the others, None where it is alone."""
        return Seat(rank, self.size, self.address) if self.size > 1 else None

    def ended(self) -> Ended:
        """Return how it ended: what a worker raised, else a loss of workers, else the outcome."""
        answers = [self.answers[rank] for rank in sorted(self.answers)]
        for item in answers:
            if isinstance(item, Exception) and not isinstance(item, GroupLost):
                return item
        died = [item for item in answers if isinstance(item, Died)]
        lost = [Died(str(item)) for item in answers if isinstance(item, GroupLost)]
        return (died + lost or answers)[0]


@dataclass(eq=False)
class Member:
    """A worker of a pool."""

    job: Job | None = None
    rank: int = 0


M = TypeVar("M", bound=Member)


class WorkerPool(ABC, Generic[M]):
    """Hands tasks to workers, and the lanes of a task to those that are left over.

    usage: is told how many workers are held, and how many of them are busy.
    """

    def __init__(self, usage: UsageMeter) -> None:
        self.members: list[M] = []
        self.waiting: deque[Task] = deque()  # handed out when polled: lanes take who is left over
        self.sharing, self._usage = LaneSharing(usage), usage

    @property
    def capacity(self) -> int:
        """How many workers there are, or could be."""
        return len(self.members)

    @property
    def held(self) -> int:
        """How many workers are there."""
        return len(self.members)

    @property
    def free(self) -> bool:
        """Whether there is room for another task."""
        return len(self.waiting) + self.busy < self.capacity

    @property
    def busy(self) -> int:
        """How many workers have a task."""
        return sum(member.job is not None for member in self.members)

    def submit(self, task: Task) -> None:
        """Keep the task for the next poll, when it is known how many workers it can have."""
        self.waiting.append(task)

    @abstractmethod
    def send(self, member: M, job: Job) -> None:
        """Have a worker begin with its rank of a job."""

    @abstractmethod
    def meeting(self, leader: M) -> str:
        """Return an address where the workers of a job can meet."""

    def hand_out(self, idle: list[M]) -> None:
        """Give waiting tasks to workers that have none."""
        tasks = [self.waiting.popleft() for _ in range(min(len(idle), len(self.waiting)))]
        for task, size in zip(tasks, self.sharing.shares(tasks, len(idle)), strict=True):
            job = Job(task, size, self.meeting(idle[0]) if size > 1 else "")
            for rank in range(size):
                member = idle.pop(0)
                member.job, member.rank = job, rank
                self.send(member, job)
        self.note()

    def answered(self, member: M, ended: Ended) -> Iterator[Job]:
        """Take a worker's answer; yields its job where all of its workers have answered."""
        job, member.job = member.job, None
        if job is not None:
            job.answers[member.rank] = ended
            if len(job.answers) == job.size:
                found, seconds = job.ended(), time.monotonic() - job.since
                if isinstance(found, TrainOutcome):
                    self.sharing.learn(job.size, found.calls, seconds)
                    logger.debug("%s: %d workers, %.1f s", job.task.id, job.size, seconds)
                yield job

    def note(self) -> None:
        """Tell how many workers are there and busy now."""
        self._usage.note(self.held, self.busy)
