"""Runs a search in this process, or over a few worker processes, and survives its own death.

The folder holds `state.json` (the outcomes so far), `checkpoints/`, `calls` (the meter) and, at the
end, `result.json` with the model. Going on after a crash is: read the state, ask for the next task.
"""

import contextlib
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from grasp_tune.local.folder import CALLS, CHECKPOINTS, STATE, Folder
from grasp_tune.local.meter import Meter
from grasp_tune.local.processes import Pool
from grasp_tune.local.spill import SpillingStore
from grasp_tune.method.errors import CheckpointError, DamagedState, InputError, SearchError
from grasp_tune.method.lock import folder_lock
from grasp_tune.method.room import Room, check_room
from grasp_tune.method.search import Progress, Search, Step
from grasp_tune.method.setting import Setting
from grasp_tune.method.statefile import previous, remove_stale
from grasp_tune.method.tasks import ProbeOutcome, Task, TrainOutcome
from grasp_tune.training.bases import Factory
from grasp_tune.training.problem import TorchProblem
from grasp_tune.training.recovery import place_chosen
from grasp_tune.training.result import Result
from grasp_tune.training.snapshots import model_tensors
from grasp_tune.training.store import CheckpointStore, Store
from grasp_tune.training.worker import Worker

logger = logging.getLogger(__name__)

SAVE_EVERY = 1.0  # seconds between two writes of the state: what a crash may have to repeat
SAVE_SHARE = 0.01  # of the time at most; a long run's state is large


class Reporter(Protocol):
    """Whoever shows how far a run is."""

    def update(self, progress: Progress, calls: int) -> None:
        """Show where the search stands; `calls` counts those under way too."""

    def close(self) -> None:
        """Show no more."""


class Stopped(KeyboardInterrupt):
    """The process was asked to end (SIGTERM); the folder can be resumed."""


def run_local(
    problem: TorchProblem,
    setting: Setting,
    *,
    out: Path | None = None,
    workers: int = 1,
    bases: Mapping[str, Factory] | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Run the whole search and return its result; with `out`, go on from what is there."""
    with contextlib.ExitStack() as stack:
        if reporter is not None:
            stack.callback(reporter.close)
        path = out
        if path is None and workers > 1:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grasp-tune-")))
        folder = None if path is None else Folder.open(path)
        if folder is not None:
            stack.enter_context(folder_lock(folder.path))
            for place in (folder.path, folder.path / CHECKPOINTS):  # what a killed run was writing
                remove_stale(place, alone=True)
        stack.enter_context(_stop_on_sigterm())
        driver = _Driver(problem, setting, path, bases or {}, reporter)
        stack.callback(driver.close)
        try:
            result = driver.run(workers)
        except Exception as error:
            if folder is not None and not driver.worth_keeping(error):
                folder.clear()
            raise
        if out is not None:
            result.save(out)
        return result


class _Driver:
    """One run: the search, its store, and what is written when."""

    def __init__(
        self,
        problem: TorchProblem,
        setting: Setting,
        folder: Path | None,
        bases: Mapping[str, Factory],
        reporter: Reporter | None,
    ) -> None:
        self._problem, self._setting, self._bases = problem, setting, bases
        self._folder, self._reporter = folder, reporter
        self._path = None if folder is None else folder / STATE
        self._spill = SpillingStore() if folder is None else None
        self._store: Store = self._spill or CheckpointStore(Path(folder or "") / CHECKPOINTS)
        self._search = self._known() or Search(setting)
        self._meter = Meter(None if folder is None else folder / CALLS)
        self._lost = max(0, self._meter.total - _budgeted(self._search))  # what a crash undid
        self._worker: Worker | None = None
        self._saved, self._pause = time.monotonic(), SAVE_EVERY
        self._shown = 0.0
        self._checked = 0  # rounds whose need for disk was looked at
        if self._path is not None and not self._path.exists():
            self._search.save(self._path)

    def _known(self) -> Search | None:
        """Return the search as an earlier run left it, None where there is nothing to go on from.

        A state of which nothing can be used is put aside: its work is done again, to the same
        result, and shows among the repeated calls.
        """
        path = self._path
        if path is None:
            return None
        if not path.exists():
            previous(path).unlink(missing_ok=True)  # of another run, whose folder was cleared
            return None
        try:
            search = Search.load(path, self._setting)
        except DamagedState as damaged:
            aside = path.with_name("state.damaged.json")
            path.replace(aside)
            previous(path).unlink(missing_ok=True)
            logger.warning(
                "%s; it is kept as %s, and the run starts again from x0", damaged, aside.name
            )
            return None
        logger.info("going on from %s", self._folder)
        return search

    def close(self) -> None:
        """Remove what was only needed while it ran."""
        if self._spill is not None:
            self._spill.close()

    def worth_keeping(self, error: Exception) -> bool:
        """Return whether what was done before this error is of use to a later run."""
        if isinstance(error, InputError):  # the next call will have other input
            done = self._search.outcomes.values()
            return any(isinstance(item, TrainOutcome) for item in done)
        return bool(self._search.outcomes)

    # -- running --------------------------------------------------------------------------------

    def run(self, workers: int) -> Result:
        """Run the search to its end and return the result."""
        if workers > 1:
            self.run_pool(workers)
        else:
            self.run_here()
        return self.result()

    def run_here(self) -> None:
        """Run task after task in this process."""
        worker = self._own_worker()
        with self._saving():
            while (task := self._search.ask()) is not Step.DONE:
                if isinstance(task, Step):
                    raise SearchError("the search waits although nothing runs")
                self._check_room()
                self._run_task(worker, task)

    def _run_task(self, worker: Worker, task: Task) -> None:
        try:
            outcome = worker.run(task)
        except CheckpointError as error:
            if error.key is None:
                raise
            self._search.lost_checkpoint(task, error.key)
            return
        self._search.tell(task, outcome)
        self._after()

    def run_pool(self, workers: int) -> None:
        """Run tasks over worker processes; the order in which they end changes nothing."""
        folder = self._folder
        assert folder is not None
        checkpoints, seed = folder / CHECKPOINTS, self._setting.seed

        def make_worker(slot: int) -> Worker:
            counter = self._meter.counter(slot + 1)
            store = CheckpointStore(checkpoints)
            return Worker(self._problem, seed, store, self._bases, count=counter)

        with self._saving(), Pool(workers, make_worker) as pool:
            while (step := self._search.ask()) is not Step.DONE:
                self._check_room()
                if not isinstance(step, Step) and pool.free:
                    pool.submit(step)
                    continue
                if not isinstance(step, Step):
                    self._search.release(step)
                self._collect(pool)

    def _collect(self, pool: Pool) -> None:
        for task, ended in pool.wait(timeout=0.5):
            if isinstance(ended, CheckpointError) and ended.key is not None:
                self._search.lost_checkpoint(task, ended.key)
            elif isinstance(ended, BaseException):
                raise ended
            elif isinstance(ended, str):
                self._search.tell(task, None, ended)
            else:
                self._search.tell(task, ended)
            self._after()
        self._show()

    def _own_worker(self) -> Worker:
        if self._worker is None:
            counter = self._meter.counter(0)

            def count(calls: int) -> None:
                counter(calls)
                self._show()

            self._worker = Worker(
                self._problem, self._setting.seed, self._store, self._bases, count=count
            )
        return self._worker

    # -- after every task -----------------------------------------------------------------------

    def _after(self) -> None:
        now = time.monotonic()
        garbage = self._search.discardable()
        if garbage or now - self._saved > self._pause:
            self._save()
        for key in garbage:
            try:
                self._store.delete(key)
            except CheckpointError as error:  # it takes room and does no other harm
                logger.warning("%s", error)
        self._show()

    def _check_room(self) -> None:
        """Look, once a round, whether the disk can hold what the round will leave."""
        if self._folder is None or self._checked == self._search.rounds:
            return
        self._checked = self._search.rounds
        sizes = [
            o.parameters for o in self._search.outcomes.values() if isinstance(o, ProbeOutcome)
        ]
        if sizes:
            tasks, there = self._search.round_tasks, self._store.keys()
            check_room(self._folder, Room.of(tasks, sizes[0], there))

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Save the state at the end; a fault that ended the run matters more than one in saving."""
        try:
            yield
        except BaseException:
            try:
                self._save()
            except CheckpointError as error:
                logger.warning("%s; what ran since it was last saved will be repeated", error)
            raise
        self._save()

    def _save(self) -> None:
        if self._path is not None:
            begun = time.monotonic()
            self._search.save(self._path)
            self._saved = time.monotonic()
            self._pause = max(SAVE_EVERY, (self._saved - begun) / SAVE_SHARE)

    def _show(self) -> None:
        now = time.monotonic()
        if self._reporter is not None and now - self._shown > 0.1:
            self._shown = now
            self._reporter.update(self._search.progress, self._meter.total - self._lost)

    def result(self) -> Result:
        """Return the result at the search's choice, with the work done twice told apart."""
        search, worker = self._search, self._own_worker()
        place_chosen(worker, search)
        search.repeated = max(search.repeated, self._meter.total - _budgeted(search))
        seed = self._setting.seed
        if self._reporter is not None:
            self._reporter.update(search.progress, self._meter.total - self._lost)
        return Result.of(search, model_tensors(worker.model), lambda: self._problem.build(seed))


def _budgeted(search: Search) -> int:
    calls = search.calls
    return calls["probe"] + calls["train"] + calls["ensemble"]


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception that unwinds through the saving of the state."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Stopped("stopped by SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        # None: it was not set from Python, and cannot be put back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
