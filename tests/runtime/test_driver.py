"""What the driver says of faults that it could not mend."""

import gc
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from torch import Tensor

import grasp_tune as gt
from grasp_tune.core.errors import CheckpointError
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Task, TrainTask
from grasp_tune.executors.local import InProcess
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.driver import SELECT, Ledger, run_sweep
from grasp_tune.runtime.executor import Died, Ended
from tests.core.simulation import answer
from tests.engine import workbench
from tests.executors.sweeps import BUDGET, problem

METHOD = gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3, base="adam")


class Deadly(InProcess):
    """An executor whose worker dies whenever it runs the first training task."""

    def poll(self, timeout: float) -> Iterable[tuple[Task, Ended]]:  # type: ignore[override]
        task = self._task
        if isinstance(task, TrainTask) and task.segments[0].arm.index == 1:
            self._task = None
            return [(task, Died("its machine vanished"))]
        return super().poll(timeout)


class DeadlyBackend:
    def run(
        self,
        problem: gt.TorchProblem,
        spec: SweepSpec,
        *,
        out: Path | None,
        bases: Mapping[str, Factory],
        progress: bool,
    ) -> gt.Result:
        return run_sweep(problem, spec, Deadly, out=out, bases=bases)


def test_a_task_that_was_lost_is_a_note_or_with_strict_an_error(tmp_path: Path) -> None:
    def run(strict: bool) -> gt.Result:
        return gt.minimize(
            problem(),
            BUDGET,
            METHOD,
            seed=3,
            backend=DeadlyBackend(),
            fused=False,
            out=tmp_path,
            strict=strict,
        )

    result = run(strict=False)
    assert result.lost
    assert any("after several attempts: its machine vanished" in note for note in result.lost)
    assert set(result.lost) <= set(gt.Result.load(tmp_path).notes)
    with pytest.raises(gt.SearchError, match=r"strict: .*its machine vanished"):
        run(strict=True)


def test_a_task_whose_worker_died_is_started_again_before_the_search_hears_of_it() -> None:
    ledger = Ledger(Search(SweepSpec(gt.NonConvex(), 300)), again=2)
    for death in range(1, 7):
        task = ledger.next("worker")
        assert not isinstance(task, Step)
        ledger.gone("worker", "it vanished")
        # Of three deaths the third is told, and then it counts anew.
        assert len(ledger.search.failures.get(task.id, ())) == death // 3


def test_a_last_task_follows_the_search_until_it_has_ended_well() -> None:
    ledger = Ledger(Search(SweepSpec(gt.Convex(), 4000, "paper")), select=True)
    while (task := ledger.next("worker")) is not SELECT:
        assert not isinstance(task, Step) and ledger.growing
        ledger.ended(task.id, answer(task))
    assert ledger.next("other") is Step.WAIT and not ledger.growing
    ledger.gone("worker", "it vanished")
    assert ledger.select_failures == 1 and ledger.growing
    assert ledger.next() is SELECT
    one = next(row for row in ledger.search.partial().candidates if row.arm)
    lost = CheckpointError("it is lost", one.key)
    ledger.ended(SELECT.id, lost)  # it is made again, and the last task follows
    task = ledger.next()
    assert not isinstance(task, Step) and lost.key in task.writes
    ledger.ended(task.id, answer(task))
    assert ledger.next() is SELECT
    ledger.ended(SELECT.id, SELECT)
    assert ledger.next() is Step.DONE and not ledger.growing


def test_batches_of_an_iterable_are_let_go_of_when_the_sweep_ends() -> None:
    open_now = 0

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal open_now
        open_now += 1
        try:
            yield from itertools.cycle([workbench.rows()])
        finally:
            open_now -= 1  # here a loader's worker processes are told to end

    gc.disable()  # they do not hear it from the collector in time, which then waits ten seconds
    try:
        gt.minimize(workbench.problem(data=batches), 60, progress=False)
        assert open_now == 0
    finally:
        gc.enable()
