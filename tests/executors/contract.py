"""What every executor must hold, written once; test_contract.py runs it over all of them.

A new executor joins with one line in `CASES`.
"""

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.core.methods import Method
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.tasks import Task
from grasp_tune.engine.checkpoints import Checkpoint
from grasp_tune.executors.local import InProcess, ProcessPool
from grasp_tune.executors.optuna import StudyExecutor
from grasp_tune.executors.ray import RayBackend, RayExecutor
from grasp_tune.executors.study import StudyLog
from grasp_tune.runtime.driver import MakeWorker, run_sweep
from grasp_tune.runtime.executor import Ended, Executor
from grasp_tune.runtime.store import CheckpointStore
from grasp_tune.runtime.sweep_folder import SweepFolder
from tests.engine import workbench
from tests.executors.thread_executor import ThreadExecutor

MakeExecutor = Callable[[SweepFolder, MakeWorker], Executor]


@dataclass(frozen=True)
class Case:
    """One executor under the contract."""

    name: str
    make: MakeExecutor
    processes: bool = False  # its workers are other processes: they share a folder, and may die

    def run(
        self,
        problem: gt.TorchProblem,
        spec: SweepSpec,
        out: Path | None = None,
        **rest: object,
    ) -> gt.Result:
        """The result of the sweep with this executor."""
        return run_sweep(problem, spec, self.make, out=out, **rest)  # type: ignore[arg-type]

    def out_of_order(self, seed: int) -> "Case":
        """The same executor, whose tasks end late and in another order."""

        def make(folder: SweepFolder, make_worker: MakeWorker) -> Executor:
            return Shuffled(self.make(folder, make_worker), seed)

        return Case(self.name, make, self.processes)


ANY = SweepSpec(gt.NonConvex(), 100)  # a study's log asks for its name alone


def on_study(folder: SweepFolder, make_worker: MakeWorker) -> Executor:
    """The trials of a study in memory, in this process."""
    return StudyExecutor(StudyLog(optuna.create_study(), ANY), InProcess(folder, make_worker))


def on_journal(folder: SweepFolder, make_worker: MakeWorker) -> Executor:
    """The trials of a study in a journal file, run by two worker processes."""
    assert folder.path is not None
    storage = JournalStorage(JournalFileBackend(str(folder.path / "study.journal")))
    study = optuna.create_study(study_name="s", storage=storage, load_if_exists=True)
    return StudyExecutor(StudyLog(study, ANY), ProcessPool(2, folder, make_worker))


CASES = (
    Case("in process", InProcess),
    Case("thread", ThreadExecutor),
    Case("process pool", partial(ProcessPool, 2), processes=True),
    Case("study", on_study),
    Case("study in a journal", on_journal, processes=True),
    # One worker, because each takes seconds to start; several are in test_ray.py.
    Case("ray", partial(RayExecutor, RayBackend(workers=1, max_failures=0)), processes=True),
)
LOCAL = CASES[0]

# With no base, `promote` would give so small a budget to one run.
SWEEPS: dict[str, tuple[Callable[[], nn.Module], Method]] = {
    "nonconvex": (workbench.dropout, gt.NonConvex(L_eps=1.0, F_eps=1.0, delta=0.3, base="adam")),
    "convex": (workbench.linear, gt.Convex(d_eps=0.1, L_eps=0.1, base="adagrad")),
}
BUDGET = 500


def problem(name: str = "nonconvex", before: Callable[[], None] = lambda: None) -> gt.TorchProblem:
    """The problem of a sweep, with a loss that calls `before` first."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        before()
        return workbench.cross_entropy(model, batch)

    return workbench.problem(SWEEPS[name][0], loss)


def spec(name: str = "nonconvex", schedule: AnySchedule = "promote") -> SweepSpec:
    """A sweep of several rounds, with several tasks in most of them."""
    return SweepSpec(SWEEPS[name][1], BUDGET, schedule, seed=3, probe_parts=2)


class Shuffled:
    """An executor around another: tasks end in random order, and some polls see nothing."""

    def __init__(self, inner: Executor, seed: int) -> None:
        self._inner, self._draw = inner, random.Random(seed)
        self._held: list[tuple[Task, Ended]] = []

    @property
    def free(self) -> bool:
        return self._inner.free

    def submit(self, task: Task) -> None:
        self._inner.submit(task)

    def poll(self, timeout: float) -> Iterable[tuple[Task, Ended]]:
        self._held.extend(self._inner.poll(timeout if not self._held else 0.0))
        self._draw.shuffle(self._held)
        if len(self._held) == 1 and self._draw.random() < 0.5:
            return []
        ended, self._held = self._held[:1], self._held[1:]
        return ended

    def cancel(self) -> None:
        self._inner.cancel()


class Forgetful(CheckpointStore):
    """A store that loses every checkpoint once, when it is first read, whoever reads it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "checkpoints")
        self.marks = folder / "lost"
        self.marks.mkdir()

    def read(self, key: str) -> Checkpoint:
        mark = self.marks / key
        if not mark.exists():
            mark.touch()
            self.delete(key)
        return super().read(key)


class CountedCalls:
    """Counts the calls of the loss over all processes: a byte each in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def __call__(self) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        os.write(file, b".")
        os.close(file)

    @property
    def total(self) -> int:
        return self._path.stat().st_size
