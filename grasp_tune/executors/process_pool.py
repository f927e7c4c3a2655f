"""Worker processes: each runs one task at a time, and its death costs nothing but that task."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from grasp_tune.core.errors import SearchError
from grasp_tune.core.tasks import (
    Task,
    outcome_from_dict,
    outcome_to_dict,
    task_from_dict,
    task_to_dict,
)
from grasp_tune.engine.threads import share_cores
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.driver import MakeWorker
from grasp_tune.runtime.executor import Died, Ended, portable
from grasp_tune.runtime.sweep_folder import SweepFolder

WATCH = 0.2  # seconds between two looks whether the driver still lives


@dataclass(eq=False)
class _Member:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None


class ProcessPool:
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
        if torch.cuda.is_initialized():
            raise SearchError("CUDA was used in this process before the workers; use Ray for GPUs")
        self._make_worker = make_worker
        self._members = [self._start() for _ in range(size)]

    def cancel(self) -> None:
        """End all workers."""
        for member in self._members:
            member.process.kill()  # nothing to lose: outcomes are recorded, the rest is repeated
            member.process.join()
            member.pipe.close()

    def _start(self) -> _Member:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self._make_worker, os.getpid()), daemon=True
        )
        process.start()
        theirs.close()
        return _Member(process, ours)

    @property
    def free(self) -> bool:
        """Whether a worker is waiting for a task."""
        return any(member.task is None for member in self._members)

    def submit(self, task: Task) -> None:
        """Hand a task to a free worker."""
        member = next(member for member in self._members if member.task is None)
        member.task = task
        with suppress(BrokenPipeError):  # it died meanwhile: `poll` notices
            member.pipe.send(task_to_dict(task))

    def poll(self, timeout: float) -> Iterator[tuple[Task, Ended]]:
        """Yield the tasks that ended, waiting a little for the first."""
        ready = wait([member.pipe for member in self._members], timeout)
        for at, member in enumerate(self._members):
            if member.pipe not in ready:
                continue
            task = member.task
            try:
                kind, content = member.pipe.recv()
            except (EOFError, OSError):  # also where it died in the middle of a message
                member.process.join()
                code = member.process.exitcode
                member.pipe.close()
                self._members[at] = self._start()
                if task is not None:
                    yield task, Died(f"its worker process died (exit code {code})")
                continue
            member.task = None
            assert task is not None
            yield task, outcome_from_dict(content) if kind == "outcome" else content


def _end_with(parent: int) -> None:
    """End this process soon after the driver: in mid-task it would hold the folder for hours."""
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(1)


def _serve(pipe: Connection, make_worker: MakeWorker, parent: int) -> None:
    """Run tasks until the pipe closes; in the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    share_cores()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    worker: Worker | None = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while os.getppid() == parent:
            if not pipe.poll(1.0):
                continue  # look again whether the driver still lives
            task = task_from_dict(pipe.recv())
            try:
                worker = worker or make_worker()
                pipe.send(("outcome", outcome_to_dict(worker.run(task))))
            except Exception as error:
                pipe.send(("error", portable(error, task)))
