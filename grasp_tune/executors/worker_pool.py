"""What executors with several workers have in common: who runs which task, and what came of it."""

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from grasp_tune.core.tasks import Task, TrainOutcome
from grasp_tune.engine.lane_group import GroupLost, Seat
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.runtime.lane_sharing import LaneSharing, UsageMeter

logger = logging.getLogger(__name__)

MEETING = "meeting-"  # how the place where the workers of a job meet is called


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

    address: str = ""  # below which a group that it leads can meet; known when it is ready
    job: Job | None = None
    rank: int = 0


M = TypeVar("M", bound=Member)


class WorkerPool(ABC, Generic[M]):
    """Hands tasks to workers, and the lanes of a task to those that are left over.

    usage: is told how many workers are ready, and how many of them are busy.
    again: how often a task whose worker died is started again before the search hears of it.
    """

    def __init__(self, usage: UsageMeter, again: int = 0) -> None:
        self.members: list[M] = []
        self.waiting: deque[Task] = deque()  # handed out when polled: lanes take who is left over
        self.sharing, self._usage = LaneSharing(usage), usage
        self._deaths, self._again = Counter[str](), again

    @abstractmethod
    def send(self, member: M, job: Job) -> None:
        """Have a worker begin with its rank of a job."""

    @abstractmethod
    def receive(self, timeout: float) -> Iterator[tuple[M, str | Ended]]:
        """Yield what workers say: once their address, then how their rank of a job ended."""

    @property
    def capacity(self) -> int:
        """How many workers there are, or could be."""
        return len(self.members)

    @property
    def _busy(self) -> int:
        return sum(member.job is not None for member in self.members)

    @property
    def free(self) -> bool:
        """Whether there is room for another task."""
        return len(self.waiting) + self._busy < self.capacity

    def submit(self, task: Task) -> None:
        """Keep the task for the next poll, when it is known how many workers it can have."""
        self.waiting.append(task)

    def poll(self, timeout: float) -> Iterator[tuple[Task, Ended]]:
        """Hand out what waits, then yield the tasks all of whose workers have answered."""
        idle = [member for member in self.members if member.address and member.job is None]
        tasks = [self.waiting.popleft() for _ in range(min(len(idle), len(self.waiting)))]
        for task, size in zip(tasks, self.sharing.shares(tasks, len(idle)), strict=True):
            job = Job(task, size, f"{idle[0].address}/{MEETING}{uuid.uuid4().hex}")
            for rank in range(size):
                member = idle.pop(0)
                member.job, member.rank = job, rank
                self.send(member, job)
        self._note()
        for member, said in self.receive(timeout):
            if isinstance(said, str):
                member.address = said
            elif member.job is not None:
                job, member.job = member.job, None
                job.answers[member.rank] = said
                if len(job.answers) == job.size:
                    yield from self._ended(job)
        self._note()

    def _ended(self, job: Job) -> Iterator[tuple[Task, Ended]]:
        ended, seconds, key = job.ended(), time.monotonic() - job.since, job.task.id
        if isinstance(ended, TrainOutcome):
            self.sharing.learn(job.size, ended.calls, seconds)
            logger.debug("%s: %d workers, %.1f s", key, job.size, seconds)
        self._deaths[key] += isinstance(ended, Died)
        if isinstance(ended, Died) and self._deaths[key] <= self._again:
            self.waiting.appendleft(job.task)
        else:
            del self._deaths[key]
            yield job.task, ended

    def _note(self) -> None:
        self._usage.note(sum(bool(member.address) for member in self.members), self._busy)
