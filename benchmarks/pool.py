"""Runs jobs on a few processes with one thread each, and prints a line per job."""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Job = TypeVar("Job")


def run_jobs(jobs: Sequence[Job], work: Callable[[Job], str], processes: int) -> int:
    """Run every job in order, print a line about each, and return how many failed.

    `work` saves its own result and returns the line, so that finished jobs survive an interruption.
    A job that fails is reported, and the others go on.
    """
    begun, failed = time.perf_counter(), 0
    for done, (line, ok) in enumerate(_outcomes(jobs, work, processes), start=1):
        failed += not ok
        spent = time.perf_counter() - begun
        left = spent / done * (len(jobs) - done)
        print(f"[{done}/{len(jobs)}, {_duration(left)} left] {line}", file=sys.stderr, flush=True)
    return failed


def _outcomes(
    jobs: Sequence[Job], work: Callable[[Job], str], processes: int
) -> Iterable[tuple[str, bool]]:
    if processes == 1:
        _start_worker()
        for job in jobs:
            yield _guarded((work, job))
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _start_worker) as pool:
        yield from pool.imap_unordered(_guarded, [(work, job) for job in jobs])


def _start_worker() -> None:
    import torch

    torch.set_num_threads(1)


def _guarded(item: tuple[Callable[[Job], str], Job]) -> tuple[str, bool]:
    work, job = item
    try:
        return work(job), True
    except Exception as error:  # the line reports it; a missing record is made again next time
        return f"{job}: FAILED: {type(error).__name__}: {error}", False


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
