"""Worker processes: each runs one task at a time, and its death costs nothing but that task."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from grasp_tune.core.errors import SearchError
from grasp_tune.engine.worker import Worker
from grasp_tune.executors.worker_pool import MEETING, Job, Member, WorkerPool
from grasp_tune.runtime.driver import MakeWorker
from grasp_tune.runtime.executor import Died, Ended, portable
from grasp_tune.runtime.sweep_folder import SweepFolder

logger = logging.getLogger(__name__)

BEGIN = 120.0  # seconds for a forked worker to say that it serves: one that cannot is stuck
WATCH = 0.2  # seconds between two looks whether the driver still lives


@dataclass(eq=False, kw_only=True)
class _Process(Member):
    process: BaseProcess
    pipe: Connection
    since: float = field(default_factory=time.monotonic)


class ProcessPool(WorkerPool[_Process]):
    """An executor with a fixed number of forked workers; one that dies is replaced.

    Forked, because a problem is made of functions that cannot be pickled as a rule.
    """

    def __init__(self, size: int, folder: SweepFolder, make_worker: MakeWorker) -> None:
        try:
            self._context = multiprocessing.get_context("fork")
        except ValueError:
            raise SearchError(
                "worker processes need fork, which this system lacks; use workers=1 or Ray"
            ) from None
        if multiprocessing.current_process().daemon:
            raise SearchError("this is a daemon process, which may start no workers; use workers=1")
        if torch.cuda.is_initialized():
            raise SearchError("CUDA was used in this process before the workers; use Ray for GPUs")
        super().__init__(folder.usage)
        self._make_worker, self._place = make_worker, folder.path.resolve()
        self.members = [self._start() for _ in range(size)]

    def cancel(self) -> None:
        for member in self.members:
            member.process.kill()  # nothing to lose: outcomes are recorded, the rest is repeated
            member.process.join()
            member.pipe.close()
        for place in self._place.glob(f"{MEETING}*"):
            place.unlink(missing_ok=True)

    def _start(self) -> _Process:
        ours, theirs = self._context.Pipe()
        work = theirs, self._make_worker, os.getpid(), self._place.as_uri()
        process = self._context.Process(target=_serve, args=work)
        process.start()
        theirs.close()
        return _Process(process=process, pipe=ours)

    def send(self, member: _Process, job: Job) -> None:
        with suppress(BrokenPipeError):  # it died meanwhile: `poll` notices
            member.pipe.send((job.task, job.seat(member.rank)))

    def receive(self, timeout: float) -> Iterator[tuple[_Process, str | Ended]]:
        for member in self.members:
            # Forked while another thread held a lock, it waits for that lock for ever.
            if not member.address and time.monotonic() - member.since > BEGIN:
                logger.warning("a worker process did not begin in %g s: it is replaced", BEGIN)
                member.process.kill()
        ready = wait([member.pipe for member in self.members], timeout)
        for at, member in enumerate(self.members):
            if member.pipe in ready:
                try:
                    said: str | Ended = member.pipe.recv()
                except (EOFError, OSError):  # also where it died in the middle of a message
                    member.process.join()
                    said = Died(f"its worker process died (exit code {member.process.exitcode})")
                    member.pipe.close()
                    self.members[at] = self._start()
                yield member, said


def _end_with(parent: int) -> None:
    """End this process soon after the driver: in mid-task it would hold the folder for hours."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def _serve(pipe: Connection, make_worker: MakeWorker, parent: int, address: str) -> None:
    """Run tasks until the pipe closes; in the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # one of several side by side: more threads than cores cost time
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    worker: Worker | None = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(address)  # it serves
        while True:
            task, seat = pipe.recv()
            try:
                worker = worker or make_worker()
                answer: Ended = worker.run(task, seat)
            except Exception as error:
                answer = portable(error, task)
            pipe.send(answer)
