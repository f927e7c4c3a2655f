"""The driver of all sweeps: ask, submit, tell, persist, for every executor in the same way.

Frameworks with their own loop, such as Ray Tune, use its `Ledger`.
"""

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import CheckpointError, InputError, SearchError
from grasp_tune.core.search import Search, Step, check_origin
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Task, TrainOutcome
from grasp_tune.engine.checkpoints import Store, Tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.callbacks import Reporter, reporter_for
from grasp_tune.runtime.executor import Died, Ended, Executor
from grasp_tune.runtime.result import RESUMED, Result
from grasp_tune.runtime.store import discard
from grasp_tune.runtime.sweep_folder import CallCounter, SweepFolder, open_folder

logger = logging.getLogger(__name__)

SAVE_EVERY = 1.0  # seconds between two writes of the state; a crash repeats at most this much
SAVE_SHARE = 0.01  # largest share of the time for saving; a long run's state is large
POLL = 0.5  # seconds to wait for a task to end before other checks
ORPHANS = 0.5  # seconds after which the workers of a dead driver are gone
SHOW = 0.1  # seconds between two updates of the progress
SPARE = 0.08  # share of a time limit that may stay unused
PROLONGED = 0.8  # share of the time left that is planned when a sweep gets more calls

MakeWorker = Callable[[], Worker]


@dataclass(eq=False)
class WorkerFactory:
    """Creates workers for one sweep, in this process or, after pickling, in another one."""

    problem: TorchProblem
    seed: int
    store: Store
    bases: Mapping[str, Factory] | None
    calls: CallCounter  # where the oracle calls are counted
    watch: Callable[[], None] | None  # called after each call in this process
    made: Worker | None = None  # the first worker of this process

    def __call__(self) -> Worker:
        add, watch = self.calls.counter(), self.watch

        # It does not refer to the factory, which refers to the worker: before such a cycle is
        # collected, every loader with worker processes takes ten seconds to end.
        def count(calls: int) -> None:
            add(calls)
            if watch is not None:
                watch()

        worker = Worker(self.problem, self.seed, self.store, self.bases, count)
        self.made = self.made or worker
        return worker

    def own(self) -> Worker:
        return self.made or self()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "watch": None, "made": None}  # only valid in this process


class Stopped(KeyboardInterrupt):
    """Raised when the process receives SIGTERM; the folder can be resumed."""


class TimeUp(BaseException):
    """Raised at the deadline or the hard cap; no Exception, so that no handler catches it."""


# The last task of a sweep whose workers a framework starts: save the chosen model for the user.
SELECT: Any = SimpleNamespace(id="select", phase="select", calls=0)


class Ledger:
    """A search and the owners of its running tasks; all ways to run a sweep share it.

    select: whether the sweep has a last task, `SELECT`, after the search is done.
    again: how often a task whose worker died is restarted before it counts as failed.
    """

    def __init__(self, search: Search, *, select: bool = False, again: int = 0) -> None:
        self.search = search
        self.running: dict[str, str] = {}  # task id -> its owner
        self.selected = not select  # true if there is no last task, or if it is done
        self.select_failures = 0
        self._again, self._deaths = again, Counter[str]()

    def next(self, owner: str = "") -> Task | Step:
        """Return a task for the owner; or `WAIT` if other tasks must end first; or `DONE`."""
        while not isinstance(step := self.search.ask(), Step):
            if step.id not in self.running:
                self.running[step.id] = owner
                return step
        if step is Step.WAIT and not self.running:
            raise SearchError("the search waits although nothing runs")
        if step is Step.WAIT or self.selected:
            return step
        if self.running:
            return Step.WAIT
        self.running[SELECT.id] = owner
        return cast(Task, SELECT)

    @property
    def growing(self) -> bool:
        """Whether more tasks follow when the running ones have ended."""
        return self.search.growing or not (self.selected or SELECT.id in self.running)

    def give_back(self, key: str) -> None:
        """Take back a task that was not run, so that it is issued again."""
        self.running.pop(key, None)
        self.search.release(key)

    def ended(self, key: str, how: Ended) -> None:
        """Record how a task ended; an error that would occur on every worker is raised."""
        self.running.pop(key, None)
        if isinstance(how, CheckpointError) and how.key is not None:
            if key == SELECT.id:
                self.search.make_again(how.key)
            else:
                self.search.lost_checkpoint(key, how.key)
        elif isinstance(how, Exception):
            raise how
        elif key == SELECT.id:
            self.selected = not isinstance(how, Died)
            self.select_failures += not self.selected
        elif not isinstance(how, Died):
            self.search.tell(key, how)
        elif self._deaths[key] < self._again:
            self._deaths[key] += 1
            self.search.release(key)
        else:
            self._deaths.pop(key, None)
            self.search.tell(key, None, how.reason)

    def gone(self, owner: str, reason: str) -> None:
        """Record that an owner has died, and its tasks with it."""
        while (key := self.task_of(owner)) is not None:
            self.ended(key, Died(reason))

    def task_of(self, owner: str) -> str | None:
        return next((key for key, who in self.running.items() if who == owner), None)

    def best_tensors(self, store: Store) -> Tensors:
        """Return the tensors of the chosen point, or of the best point so far."""
        if (key := self.search.partial().key) == START and not store.exists(START):
            raise SearchError("there is no result yet: nothing has been run to its end")
        return store.read(key).tensors

    def settle(self, calls: int) -> None:
        """Set the number of repeated calls, given all calls that were made."""
        self.search.repeated = max(self.search.repeated, calls - self.search.progress.calls)


class Driver(Ledger):
    """The loop of one sweep in this process; it runs the search and saves its state."""

    deadline = math.inf  # in terms of `time.monotonic`
    spare = math.inf  # seconds before the deadline at which a sweep may end; if earlier, it goes on

    def __init__(
        self, spec: SweepSpec, folder: SweepFolder, reporter: Reporter, hard_cap: bool, again: int
    ) -> None:
        super().__init__(folder.search(spec), again=again)
        self.folder, self.reporter, self._hard_cap = folder, reporter, hard_cap
        self._lost = max(0, folder.calls.total - self.search.progress.calls)  # undone by a crash
        self._saved, self._pause, self._shown = time.monotonic(), SAVE_EVERY, 0.0
        self._own = os.getpid(), threading.get_ident()
        self._begun = time.monotonic(), self.search.progress.calls
        for outcome in self.search.outcomes.values():  # from an earlier process
            reporter.ended(outcome)

    def run(self, executor: Executor) -> None:
        """Run the search to its end; the order in which tasks end does not matter."""
        phase = ""
        try:
            while (step := self.next()) is not Step.DONE:
                self.check_time()
                self.folder.check_room(self.search)
                if not isinstance(step, Step):
                    fits = self._fits()
                    if executor.free and fits:
                        executor.submit(step)
                        if step.phase != phase:  # however short, it is told
                            phase = step.phase
                            self.show(every=0.0)
                        continue
                    self.give_back(step.id)
                    if not fits and not self.running:
                        raise TimeUp
                for task, how in executor.poll(POLL):
                    self.ended(task.id, how)
                    self.reporter.ended(how)
                    garbage = self.search.discardable()
                    if garbage or time.monotonic() - self._saved > self._pause:
                        self._save()
                    discard(self.folder.store, garbage)
                self._prolong()
                self.show()
        except BaseException:
            try:  # the error that ended the run matters more than one from saving
                self._save()
            except CheckpointError as error:
                logger.warning("%s; what ran since it was last saved will be repeated", error)
            raise
        self._save()

    def result(self, worker: Worker, problem: TorchProblem) -> Result:
        """Return the result at the chosen point, with repeated calls counted separately."""
        check_origin(worker.origin, self.search.origin)
        self.deadline = math.inf  # the work for the choice ignores the time limit
        tensors = self._place(worker)
        self.settle(self.folder.calls.total)
        self.show(every=0.0)
        found = Result.of(self.search, tensors, partial(problem.build, self.search.spec.seed))
        usage, measured = self.folder.sharing.reading(), problem.metric_name
        if self.search.choice is not None:  # otherwise scores are training losses
            rows, metric = problem.validation_rows, problem.choice_metric
            found = replace(found, validation=rows, metric=metric)
        return replace(found, usage=usage, measured=measured)

    def _prolong(self) -> None:
        """Give a search that has spent its budget the calls that fit into the time left."""
        left, (begun, before) = self.deadline - (now := time.monotonic()), self._begun
        if self.search.choice is not None and left > self.spare:
            made, seconds = self.search.progress.calls - before, now - begun
            more = int(PROLONGED * left * made / seconds)
            if (longer := self.search.prolonged(more)) is not None:
                logger.info("%d calls took %.0f s: %d more fit", made, seconds, more)
                self.search = longer

    def _place(self, worker: Worker) -> Tensors:
        """Return the tensors of the chosen point; if they are unreadable, make them again here."""
        while True:
            try:
                return worker.tensors_at(self.search.partial().key)
            except CheckpointError as error:
                if error.key is None:
                    raise
                self.search.make_again(error.key)
            while not isinstance(task := self.next(), Step):
                if not self._fits():
                    raise CheckpointError("the chosen point is lost; the hard cap allows no more")
                try:
                    self.ended(task.id, worker.run(task))
                except CheckpointError as error:
                    self.ended(task.id, error)

    def watch(self) -> None:
        """Show progress and check the time after an oracle call of this thread."""
        if (os.getpid(), threading.get_ident()) == self._own:
            self.show()
            self.check_time()

    def show(self, every: float = SHOW) -> None:
        """Show the progress of the sweep, unless it was shown less than `every` seconds ago."""
        if (now := time.monotonic()) - self._shown >= every:
            self._shown = now
            self.reporter.update(self.search.progress, self.folder.calls.total - self._lost)

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise TimeUp

    def _fits(self, more: int = 0) -> bool:
        """Return whether the hard cap allows all calls of running tasks, and `more` calls."""
        held = more + sum(self.search.tasks[key].calls for key in self.running)
        total = self.folder.calls.total if self._hard_cap else -math.inf
        return total + held <= self.search.spec.budget

    def check_loss(self, make_worker: WorkerFactory) -> None:
        """Add a note to a resumed sweep if its loss differs when it is computed again."""
        search = self.search
        known = not search.begun or search.choice is not None or RESUMED in search.notes
        # On a GPU, workers that are forked later would find CUDA in use.
        cpu = make_worker.made or make_worker.problem.chosen_device.type == "cpu"
        if known or not cpu or not self._fits(2):
            return
        self._lost += 2  # the two calls of this check count as repeated
        if not make_worker.own().loss_repeats():
            logger.warning(RESUMED)
            search.notes.append(RESUMED)

    def _save(self) -> None:
        begun = time.monotonic()
        self.folder.save(self.search)
        self._saved = time.monotonic()
        self._pause = max(SAVE_EVERY, (self._saved - begun) / SAVE_SHARE)


def run_sweep(
    problem: TorchProblem,
    spec: SweepSpec,
    executor: Callable[[SweepFolder, MakeWorker], Executor],
    *,
    out: Path | None = None,
    store: Store | None = None,
    calls: CallCounter | None = None,
    bases: Mapping[str, Factory] | None = None,
    progress: bool | Reporter = False,
    minutes: float | None = None,
    prolong: bool = False,
    hard_cap: bool = False,
    again: int = 0,
) -> Result:
    """Return the result of a sweep after running it with an executor.

    executor: creates the executor from the sweep's folder and a function that creates workers.
    out: the sweep's folder; if it has a state, the sweep continues from it.
    store, calls: where checkpoints are saved and oracle calls are counted, if not in `out`.
    bases: the user's own optimizers by name.
    minutes: a time limit, after which the sweep ends with its best point so far.
    prolong: whether a sweep that ends before its time limit gets more calls.
    hard_cap: count repeated calls towards the budget too, and end with the best point so far.
    again: how often a task whose worker died is restarted before it counts as failed.
    """
    reporter = reporter_for(progress)
    with (
        contextlib.closing(reporter),
        open_folder(out, store, calls) as folder,
        _sigterm(),
        folder.deadline(minutes) as deadline,
    ):
        if hard_cap and folder.lock.crashed:
            time.sleep(ORPHANS)
        driver = Driver(spec, folder, reporter, hard_cap, again)
        driver.deadline = deadline
        if prolong and minutes is not None:
            driver.spare = SPARE * 60 * minutes
        how = problem, spec.seed, folder.store, bases, folder.calls, driver.watch
        make_worker = WorkerFactory(*how)
        try:
            runner = executor(folder, make_worker)
            try:
                driver.check_time()  # if the time is over already, no call is made
                driver.check_loss(make_worker)
                driver.run(runner)
            except TimeUp:
                pass
            finally:
                runner.cancel()
            result = driver.result(make_worker.own(), problem)
        except Exception as error:
            done = [isinstance(item, TrainOutcome) for item in driver.search.outcomes.values()]
            # After an error in the input, the next call will have different input.
            if not (any(done) if isinstance(error, InputError) else done):
                folder.clear()
            raise
        if out is not None:
            folder.lock.check()
            result.save(out)
        return result


@contextlib.contextmanager
def _sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the state is saved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Stopped("stopped by SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:  # None: the handler was not set from Python and cannot be restored
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
