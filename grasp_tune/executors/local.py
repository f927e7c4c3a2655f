"""Executors for this process and for forked processes, and the base class of all worker pools."""

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from grasp_tune.core.errors import CheckpointError, SearchError
from grasp_tune.core.search import ATTEMPTS
from grasp_tune.core.tasks import Task, TrainOutcome
from grasp_tune.engine.lane_group import GroupLost, Seat
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.driver import MakeWorker
from grasp_tune.runtime.executor import Died, Ended, portable
from grasp_tune.runtime.lane_sharing import LaneSharing
from grasp_tune.runtime.sweep_folder import SweepFolder

logger = logging.getLogger(__name__)

MEETING = "meeting-"  # prefix of the file through which the workers of a job find each other
BEGIN = 120.0  # seconds until a forked worker must be ready; after that it is considered stuck
WATCH = 0.2  # seconds between two checks that the driver is alive


class InProcess:
    """An executor that runs its task in this process, inside `poll`."""

    def __init__(self, folder: SweepFolder, make_worker: MakeWorker) -> None:
        self._worker = make_worker()
        self._task: Task | None = None

    @property
    def free(self) -> bool:
        return self._task is None

    def submit(self, task: Task) -> None:
        self._task = task

    def poll(self, timeout: float) -> list[tuple[Task, Ended]]:
        """Run the submitted task; errors other than a `CheckpointError` are raised here."""
        if (task := self._task) is None:
            return []
        self._task = None
        try:
            return [(task, self._worker.run(task))]
        except CheckpointError as error:
            return [(task, error)]

    def cancel(self) -> None:
        self._task = None


@dataclass(eq=False)
class Job:
    """A task and the answers of the workers that share it; often it is only one worker."""

    task: Task
    size: int  # number of workers
    address: str  # where they connect
    since: float = field(default_factory=time.monotonic)
    answers: dict[int, Ended] = field(default_factory=dict)  # by rank

    def seat(self, rank: int) -> Seat | None:
        return Seat(rank, self.size, self.address) if self.size > 1 else None  # None: one worker

    def ended(self) -> Ended:
        """Return a worker's exception if there is one, else a worker's death, else the outcome."""
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

    process: Any  # a process or an actor
    inbox: Any  # a pipe or a reference for its next answer; None: it is idle
    address: str = ""  # where a group that it leads can connect; empty until it is ready
    job: Job | None = None
    rank: int = 0
    since: float = field(default_factory=time.monotonic)


class WorkerPool(ABC):
    """A pool that starts workers, replaces dead ones and gives them tasks; idle ones share lanes.

    sharing: decides how many workers share a task.
    size: the number of workers, all started at once; None: as many as there is work for.
    """

    def __init__(self, sharing: LaneSharing, size: int | None) -> None:
        self.members: list[Member] = []
        self.waiting: deque[Task] = deque()  # started by `poll`; lanes then use the spare workers
        self.sharing, self.size = sharing, size
        self._stillborn = 0  # consecutive workers that died before they were ready

    @abstractmethod
    def start(self) -> Member:
        """Return a new worker, which becomes ready later."""

    @abstractmethod
    def send(self, member: Member, job: Job) -> None:
        """Start a worker on its part of a job."""

    @abstractmethod
    def receive(self, timeout: float) -> Iterator[tuple[Member, str | Ended]]:
        """Yield the messages of workers: first an address, then how their part of a job ended."""

    @property
    def capacity(self) -> int:
        """The number of workers that are possible now."""
        return self.size or 1

    @property
    def free(self) -> bool:
        busy = sum(member.job is not None for member in self.members)
        return len(self.waiting) + busy < self.capacity

    def submit(self, task: Task) -> None:
        """Keep the task for the next `poll`, which knows how many workers it can have."""
        self.waiting.append(task)

    def poll(self, timeout: float) -> Iterator[tuple[Task, Ended]]:
        """Start waiting tasks, then yield the tasks whose workers have all answered."""
        self.grow()
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
                member.address, self._stillborn = said, 0
                continue
            if isinstance(said, Died):
                self._remove(member, said.reason)
            if (answered := member.job) is not None:
                member.job = None
                answered.answers[member.rank] = said
                if len(answered.answers) == answered.size:
                    ended, seconds = answered.ended(), time.monotonic() - answered.since
                    if isinstance(ended, TrainOutcome):
                        self.sharing.learn(answered.size, ended.calls, seconds)
                    yield answered.task, ended
        self._note()

    def grow(self) -> None:
        """Start the workers that are missing."""
        tasks = {member.job.task for member in self.members if member.job}.union(self.waiting)
        room = self.capacity
        wanted = self.size or sum(self.sharing.workers(task, room) for task in tasks)
        for _ in range(min(wanted, room) - len(self.members)):
            self.members.append(self.start())

    def _remove(self, member: Member, reason: str) -> None:
        self.members.remove(member)
        logger.warning("%s; it is replaced", reason)
        self._stillborn += not member.address
        if self._stillborn >= ATTEMPTS * (self.size or 1):
            raise SearchError(f"no worker process could be started: {reason}")

    def _note(self) -> None:
        busy = sum(member.job is not None for member in self.members)
        self.sharing.note(sum(bool(member.address) for member in self.members), busy)


class ProcessPool(WorkerPool):
    """An executor with a fixed number of forked workers; one that dies is replaced."""

    def __init__(self, size: int, folder: SweepFolder, make_worker: MakeWorker) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise SearchError("workers need fork, which this system lacks; use workers=1 or Ray")
        if multiprocessing.current_process().daemon:
            raise SearchError("this is a daemon process, which may start no workers; use workers=1")
        if torch.cuda.is_initialized():
            raise SearchError("CUDA was used in this process before the workers; use Ray for GPUs")
        super().__init__(folder.sharing, size)
        # Most problems contain functions that cannot be pickled.
        self._context = multiprocessing.get_context("fork")
        self._make_worker, self._place = make_worker, folder.path.resolve()
        self.grow()

    def cancel(self) -> None:
        for member in self.members:
            member.process.kill()  # outcomes are already recorded; running tasks are repeated
            member.process.join()
            member.inbox.close()
        for place in self._place.glob(f"{MEETING}*"):
            place.unlink(missing_ok=True)

    def start(self) -> Member:
        ours, theirs = self._context.Pipe()
        work = theirs, self._make_worker, os.getpid(), self._place.as_uri()
        process = self._context.Process(target=_serve, args=work)
        process.start()
        theirs.close()
        return Member(process, ours)

    def send(self, member: Member, job: Job) -> None:
        with suppress(BrokenPipeError):  # the worker has died; `poll` will notice
            member.inbox.send((job.task, job.seat(member.rank)))

    def receive(self, timeout: float) -> Iterator[tuple[Member, str | Ended]]:
        for member in self.members:
            # A worker that was forked while another thread held a lock waits for it for ever.
            if not member.address and time.monotonic() - member.since > BEGIN:
                logger.warning("a worker process did not begin in %g s: it is replaced", BEGIN)
                member.process.kill()
        ready = wait([member.inbox for member in self.members], timeout)
        for member in tuple(self.members):
            if member.inbox in ready:
                try:
                    said: str | Ended = member.inbox.recv()
                except (EOFError, OSError):  # also if it died in the middle of a message
                    member.process.join()
                    said = Died(f"its worker process died (exit code {member.process.exitcode})")
                    member.inbox.close()
                yield member, said


def _end_with(parent: int) -> None:
    """End this process soon after the driver; otherwise a long task would go on for hours."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def _serve(pipe: Connection, make_worker: MakeWorker, parent: int, address: str) -> None:
    """Run tasks until the pipe closes; this is the main function of a worker process."""
    # Garbage of the driver stays: freeing a Ray actor here would use the driver's connections.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # workers run in parallel; more threads than cores cost time
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    worker: Worker | None = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(address)  # ready
        while True:
            task, seat = pipe.recv()
            try:
                worker = worker or make_worker()
                answer: Ended = worker.run(task, seat)
            except Exception as error:
                answer = portable(error, task)
            pipe.send(answer)
