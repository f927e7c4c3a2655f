"""A fault at every point of a small sweep of Ray Tune: what its trials do, without the processes.

A trial that dies, a driver that dies, and a disk that fails are all the same to the shared storage,
which is what has to survive them; that Tune starts trials again is seen in test_restore.py.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from pyarrow import fs as arrow

import grasp_tune as gt
from grasp_tune.core.search import Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.shared_sweep import SharedStorage, SharedSweep, SharedTrial, Work
from tests.engine import workbench
from tests.executors.contract import CountedCalls
from tests.executors.sweeps import fingerprint, forked
from tests.faults import test_every_point as local

pytestmark = pytest.mark.xdist_group("faults")

SPEC = SweepSpec(local.METHOD, local.SMALL, seed=3)
DISK = arrow.LocalFileSystem()
Before = Callable[[], None]


def trial(work: Work, folder: Path, before: Before) -> dict[str, object]:
    """What `GraspTrainable` does with a piece of work, and what it reports."""

    def loss(model: object, batch: object) -> object:
        before()
        return workbench.cross_entropy(model, batch)  # type: ignore[arg-type]

    given = workbench.problem(workbench.linear, loss)  # type: ignore[arg-type]
    rows: list[dict[str, object]] = []
    with suppress(SystemExit):
        mine = SharedTrial(
            work,
            lambda: SharedStorage(DISK, str(folder / work.run)),
            lambda row, result: rows.append(row),
        )
        with mine.faults():
            worker = Worker(given, mine.seed, mine.store, work.bases, mine.count)
            if mine.task is None:
                mine.select(worker.tensors_at)
                return rows[-1]
            outcome = worker.run(mine.task)
        mine.end(outcome)
    return rows[-1]


def sweep(folder: Path, before: Before = lambda: None) -> gt.Result:
    """The driver: asks, starts a trial, and hears how it ended; goes on from what is there."""
    shared = SharedSweep(SPEC, {})
    shared.adopt(DISK, str(folder))
    shared.storage = SharedStorage(DISK, str(folder / shared.run))
    number = 0
    while not isinstance(work := shared.next(owner := f"trial{number}"), Step):
        number += 1
        try:
            row = trial(work, folder, before)
        except Exception as error:
            shared.gone(owner, str(error))
        else:
            shared.hear(owner, {"run": work.run, "task": work.task.id, **row})
    return shared.result(None)


def check(folder: Path, calls: CountedCalls, expected: str) -> None:
    """A driver finds the undisturbed result, and every call of the loss is in its books."""
    result = sweep(folder, calls)
    assert fingerprint(result) == expected
    assert calls.total == sum(result.calls.values())


@pytest.fixture(scope="module")
def expected() -> str:
    found = workbench.problem(workbench.linear)
    return fingerprint(gt.minimize(found, local.SMALL, local.METHOD, seed=3, progress=False))


@pytest.mark.parametrize("operation", local.OPERATIONS)
def test_a_full_disk_at_every_operation(tmp_path: Path, operation: str, expected: str) -> None:
    with local.Points().of(operation) as points:
        assert fingerprint(sweep(tmp_path / "undisturbed")) == expected
    for at in range(1, points.count + 1):
        calls = CountedCalls(tmp_path / f"calls{at}")
        with local.Points(at, local.full).of(operation), suppress(gt.CheckpointError):
            assert fingerprint(sweep(tmp_path / f"run{at}", calls)) == expected
        check(tmp_path / f"run{at}", calls, expected)


@pytest.mark.parametrize("fault", [local.mistaken, local.killed])
def test_a_mistake_or_a_death_in_every_call_of_the_loss(
    tmp_path: Path, fault: Before, expected: str
) -> None:
    points = local.Points()
    sweep(tmp_path / "undisturbed", points)
    for at, out, calls in local.point_by_point(tmp_path, points.count):
        process = forked(partial(sweep, out, local.failing(calls, local.Points(at, fault))))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert code == (-signal.SIGKILL if fault is local.killed else 0)  # a trial is tried again
        check(out, calls, expected)


def test_a_crash_in_every_renaming(tmp_path: Path, expected: str) -> None:
    with local.Points().of("replace") as points:
        sweep(tmp_path / "undisturbed")
    for at, out, calls in local.point_by_point(tmp_path, points.count):
        kinds = ("lost", "zeros", "torn", "empty")
        for kind in kinds if at > points.count - 4 else (kinds[at % 4],):  # at last, the result

            def work(at: int = at, kind: str = kind) -> None:
                local.crash(at, kind)
                sweep(tmp_path / kind / out.name, calls)  # noqa: B023

            os.waitpid(forked(work), 0)
            assert fingerprint(sweep(tmp_path / kind / out.name)) == expected
