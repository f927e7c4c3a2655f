"""The contest: every method on every workload with the same number of oracle calls."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import grasp_tune as gt
from benchmarks.ablation import DEFAULT, VARIANTS
from benchmarks.hindsight import SWEEP
from benchmarks.measures import judge
from benchmarks.records import Record, Table, fingerprint, write_record
from benchmarks.workload import Bundle
from benchmarks.workloads import WORKLOADS
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.peers import PEERS, PeerResult

GRASP: Mapping[str, str] = {"grasp-promote": "promote", "grasp-paper": "paper"}
METHODS = (*GRASP, *PEERS)  # the competitors
RUNNABLE = (*METHODS, *(name for name in SWEEP if name not in METHODS))
OURS = (*GRASP, *VARIANTS)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the contest."""

    workload: str
    method: str
    seed: int
    data: Path | None
    table: Table  # where its record goes

    def __str__(self) -> str:
        return f"{self.workload} {self.method} seed {self.seed}"


def plan_jobs(
    workloads: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    data: Path | None,
    table: Table,
    *,
    again: bool,
) -> Iterator[Job]:
    """Yield the jobs still to run, seed by seed, so that a stop leaves complete seeds."""
    done = set() if again else set(table.rows())
    for seed in seeds:
        for workload in workloads:
            for method in methods:
                if (workload, method, seed) not in done:
                    yield Job(workload, method, seed, data, table)


def run_job(job: Job) -> str:
    """Run one job, save its record and return a line about it."""
    workload, bundle = WORKLOADS[job.workload], _bundle(job.workload, job.data)
    start = _start_loss(job.workload, job.data, job.seed)
    if job.method in OURS:
        result = _sweep(job, bundle)
    else:
        peer = PEERS.get(job.method) or SWEEP[job.method]
        result = peer.run(bundle.problem, workload.budget, job.seed)
    end = judge(bundle, result.tensors, job.seed)
    record = Record(
        workload=job.workload,
        method=job.method,
        seed=job.seed,
        budget=workload.budget,
        calls=result.calls,
        seconds=round(result.seconds, 2),
        diverged=result.diverged,
        loss=end.loss,
        gradient=end.gradient,
        accuracy=end.accuracy,
        start_loss=start,
        note=result.note,
        source=fingerprint() if job.method in OURS else "",
        test_loss=end.test_loss,
    )
    write_record(job.table, record)
    return f"{job}: loss {end.loss:.5g}, gradient {end.gradient:.3g}, {record.seconds:.1f} s"


def _sweep(job: Job, bundle: Bundle) -> PeerResult:
    workload = WORKLOADS[job.workload]
    variant = VARIANTS.get(job.method, DEFAULT)
    method = workload.method
    if variant.base is not None:
        method = replace(method, base=variant.base)
    begun = time.perf_counter()
    try:
        result = gt.minimize(
            bundle.problem,
            budget=workload.budget,
            method=method,
            schedule=GRASP.get(job.method, variant.schedule),
            seed=job.seed,
            progress=False,
        )
    except gt.BudgetTooSmall as error:
        # The method refuses to run: the table shows the start point, which is all the user has.
        tensors = model_tensors(bundle.problem.build(job.seed))
        seconds = time.perf_counter() - begun
        return PeerResult(tensors, 0, seconds, True, f"T too small, needs {error.smallest}")
    calls = sum(count for kind, count in result.calls.items() if kind != "repeated")
    chosen = result.choice.chosen
    note = "x0" if result.cell is None else f"{chosen.base} {chosen.value:.3g}"
    return PeerResult(result.tensors, calls, time.perf_counter() - begun, False, note)


@lru_cache(maxsize=1)  # consecutive jobs share a workload
def _bundle(name: str, data: Path | None) -> Bundle:
    return WORKLOADS[name].bundle(data)


@lru_cache(maxsize=8)
def _start_loss(name: str, data: Path | None, seed: int) -> float:
    return judge(_bundle(name, data), None, seed).loss
