"""The whole method as trials of one study, run by any number of processes at any time.

They share only the study's storage and an artifact store. Each replays the outcomes on the study,
runs tasks that no other process holds, and returns the same result.
"""

import contextlib
import io
import logging
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import optuna
from optuna import Study
from optuna.artifacts import FileSystemArtifactStore, exceptions
from optuna.artifacts._protocol import ArtifactStore
from optuna.storages import JournalStorage, journal
from optuna.trial import TrialState

from grasp_tune.core.errors import SearchError, expect, whole
from grasp_tune.core.methods import Method
from grasp_tune.core.records import encode
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.tasks import TrainTask
from grasp_tune.engine.checkpoints import Store
from grasp_tune.engine.problem import TorchProblem, checked_problem
from grasp_tune.engine.tensor_file import Content
from grasp_tune.executors import study as on_study
from grasp_tune.executors.local import InProcess, ProcessPool
from grasp_tune.executors.study import CALLS, CHOICE, FRONT, SPAN, StudyLog, Timing, end_trial
from grasp_tune.runtime.driver import SELECT, MakeWorker, run_sweep
from grasp_tune.runtime.executor import Died, Ended, Executor
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import BlobStore, TemporaryStore, file_name, spooled
from grasp_tune.runtime.sweep_folder import CallCounter, SweepFolder

logger = logging.getLogger(__name__)

OPENINGS = 5  # tries to open a study
PAUSE = 0.1  # seconds between two readings of the study, if there is nothing to do


def run(
    study: Study,
    problem: TorchProblem,
    budget: int,
    method: Method | None = None,
    schedule: AnySchedule = "promote",
    seed: int = 0,
    *,
    artifact_store: ArtifactStore | None = None,
    fused: bool | Literal["auto"] = "auto",
    timing: Timing | None = None,
    **options: Any,
) -> Result:
    """Return the result of the sweep on this study, after running what is left of it.

    Afterwards the study's best trial is the chosen run, with its step size among the parameters.
    All other trials have the value infinity.

    study: a study that minimizes one objective. All processes that make this call on it take part.
    problem, budget, method, schedule, seed, fused: as in `grasp_tune.minimize`.
    artifact_store: where checkpoints are saved; only optional for a study in memory.
    timing: heartbeat settings; by default those of the storage, or 5 and 60 seconds.
    options: `ensemble`, `challengers` and `probe_parts`, as in `grasp_tune.minimize`.
    """
    spec, bases = SweepSpec.assemble(method, budget, schedule, seed, fused=fused, **options)
    problem = checked_problem(problem)
    return _run(study, problem, spec, artifact_store, timing=timing, bases=bases)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaBackend:
    """A backend for `minimize(backend=...)` that keeps the sweep on an Optuna study.

    storage: a database URL, or the path of a journal file; None: a journal in the output folder,
        or without one the memory of this process.
    study: the study's name. All processes that run the same sweep on it take part.
    workers: the number of processes on this machine.
    hard_cap: count calls repeated after a fault towards the budget too, as far as they are known;
        all of them are if the processes share the output folder.
    """

    storage: str | None = None
    study: str = "grasp_tune"
    workers: int = 1
    hard_cap: bool = False

    def __post_init__(self) -> None:
        whole("workers", self.workers)

    def run(
        self, problem: TorchProblem, spec: SweepSpec, *, out: Path | None = None, **how: Any
    ) -> Result:
        """Return the result of the sweep; on the same study an interrupted sweep continues."""
        words = "a folder for checkpoints that every process of a study in a storage can reach"
        expect(out is not None or self.storage is None, "out", None, words)
        store = None
        if out is not None:
            (out / "artifacts").mkdir(parents=True, exist_ok=True)
            store = FileSystemArtifactStore(out / "artifacts")
        how |= {"hard_cap": self.hard_cap, "workers": self.workers}
        return _run(self.open(out), problem, spec, store, out=out, **how)

    def open(self, out: Path | None = None) -> Study:
        """Return the study, an existing one or a new one; `out` is the output folder, if any."""
        place: Any = self.storage or (None if out is None else str(out / "study.journal"))
        file = place is not None and "://" not in place
        for left in reversed(range(OPENINGS)):
            try:
                storage = JournalStorage(journal.JournalFileBackend(place)) if file else place
                how: Any = {"study_name": self.study, "load_if_exists": True}
                return optuna.create_study(storage=storage, **how)
            except Exception as error:  # any error of the database driver
                fault = type(error).__name__
                # Processes that make the tables of a new database at once disturb each other.
                time.sleep(random.uniform(0.2, 0.6) if left else 0.0)
        # The message may contain the URL with its password, so only its type is shown.
        words = "check that the database runs, that the account may use it and that its driver"
        words = f"cannot be opened ({fault}): {words} is installed"
        extra = "pip install 'grasp_tune[storage]'"
        raise SearchError(f"the study {self.study!r} {words} ({extra})")


def _run(
    study: Study,
    problem: TorchProblem,
    spec: SweepSpec,
    artifact_store: ArtifactStore | None,
    *,
    timing: Timing | None = None,
    out: Path | None = None,
    workers: int = 1,
    **how: Any,
) -> Result:
    found = [direction.name.lower() for direction in study.directions]
    wanted = "one objective, to be minimised"
    expect(found == ["minimize"], f"study {study.study_name!r}: directions", found, wanted)
    log, store = sweep_on(study, spec, artifact_store, timing)
    # Several studies may share one folder. The calls of a killed process with another folder are
    # known up to its last heartbeat.
    calls = CallCounter(out and out / "calls" / log.sweep, others=lambda: log.calls)

    def executor(folder: SweepFolder, make_worker: MakeWorker) -> Executor:
        pool = workers > 1 and ProcessPool(workers, folder, make_worker)
        return StudyExecutor(log, pool or InProcess(folder, make_worker), calls)

    how["calls"] = calls if workers == 1 or out is not None else None
    result = run_sweep(problem, spec, executor, store=store, **how)
    write_choice(study, result)
    if math.isfinite(result.score):
        log.want(SELECT)  # the only trial with a finite value, so it is the study's best trial
        log.end_silent()
        log.news()
        chosen = result.choice.chosen
        shown = {"base": chosen.base, "value": chosen.value} if chosen.arm else {}
        if SELECT in log.unclaimed() and (trial_id := log.claim(SELECT, shown)) is not None:
            end_trial(study, trial_id, TrialState.COMPLETE, result.score)
    if out is not None:
        result.save(out)
    return result


class StudyExecutor:
    """An executor that runs with `inner` the tasks no other process holds, and reports all ends."""

    def __init__(self, log: StudyLog, inner: Executor, calls: CallCounter | None = None) -> None:
        self._log, self._inner = log, inner
        self._calls, self._before = calls or CallCounter(None), 0
        self._ours: dict[str, int] = {}  # task id -> trial id, for tasks running here
        self._beat = time.monotonic()
        self.submit = log.want

    @property
    def free(self) -> bool:
        """Whether it accepts more tasks; tasks held by other processes do not count."""
        return len(self._log.unclaimed()) < FRONT

    def poll(self, timeout: float) -> list[tuple[Any, Ended]]:
        """Run our tasks, and return those that have ended on the study since, in any process."""
        if ended := self._log.news():
            return ended
        self._claim()
        if self._ours:
            self._run(timeout)
        elif not self._log.end_silent():
            # A random pause, so that idle processes do not all read the study at once.
            time.sleep(min(timeout, PAUSE * random.uniform(0.5, 1.5)))
        return self._log.news()

    def cancel(self) -> None:
        self._inner.cancel()
        for key in list(self._ours):
            self._write(key, sys.exc_info()[1] or SearchError("its process was stopped"))

    def _claim(self) -> None:
        while self._inner.free and (waiting := self._log.unclaimed()):
            # A random one of the first tasks, so that two processes rarely want the same one.
            task = random.choice(waiting[: 1 if on_study.in_memory(self._log.study) else FRONT])
            runs = task.segments if isinstance(task, TrainTask) else ()
            value = runs[0].arm.value if len(runs) == 1 else math.nan
            shown = {"value": value} if SPAN.low <= value <= SPAN.high else {}
            if (trial_id := self._log.claim(task, shown)) is not None:
                self._before = self._calls.own
                self._ours[task.id] = trial_id
                self._inner.submit(task)

    def _made(self) -> int:
        return self._calls.own - self._before  # since the last task was started

    def _run(self, timeout: float) -> None:
        held = list(self._ours.values())
        with contextlib.ExitStack() as living:
            if isinstance(self._inner, InProcess):
                living.enter_context(self._log.beating(held, self._made))
            elif time.monotonic() - self._beat > self._log.timing.every:
                self._beat = time.monotonic()
                self._log.beat(held, self._made())  # no thread: a pool forks
            for task, how in self._inner.poll(timeout):
                self._write(task.id, how)
                if isinstance(how, Exception) and getattr(how, "key", None) is None:
                    raise how

    def _write(self, key: str, how: Ended | BaseException) -> None:
        """End one of our trials, unless another process has taken it over."""
        trial_id, log = self._ours.pop(key), self._log
        failed = isinstance(how, Died | BaseException)
        try:
            if failed:
                log.storage.set_trial_system_attr(trial_id, CALLS, self._made())
            log.write(trial_id, how)
            state = TrialState.FAIL if failed else TrialState.COMPLETE
            end_trial(log.study, trial_id, state, *([] if failed else [math.inf]))
        except RuntimeError:  # UpdateFinishedTrialError: we were considered dead
            logger.warning("%s was given to another worker meanwhile", key)


def sweep_on(
    study: Study, spec: SweepSpec, artifact_store: ArtifactStore | None, timing: Timing | None
) -> tuple[StudyLog, Store]:
    """Return the log of a sweep on a study, and the store for its checkpoints."""
    wanted = "one that outlives this process, such as optuna.artifacts.FileSystemArtifactStore(...)"
    fine = artifact_store is not None or on_study.in_memory(study)
    expect(fine, "artifact_store", artifact_store, wanted)
    log = StudyLog(study, spec, timing)
    kept = artifact_store and ArtifactCheckpoints(artifact_store, log.sweep)
    return log, kept or TemporaryStore()


def write_choice(study: Study, result: Result, **more: object) -> None:
    """Write the choice and its certificate on the study, unless it has them already."""
    chosen = {"candidate": encode(result.choice.chosen), "by": result.choice.by}
    certificate = result.certificate and result.certificate.to_dict()
    note = {**chosen, "calls": dict(result.calls), "certificate": certificate, **more}
    if study.user_attrs.get(CHOICE) != note:
        study.set_user_attr(CHOICE, note)


class ArtifactCheckpoints(BlobStore):
    """A store for the checkpoints of a sweep in an Optuna artifact store."""

    def __init__(self, artifact_store: ArtifactStore, sweep: str) -> None:
        super().__init__(sweep)
        self._store = artifact_store

    def name(self, key: str) -> str:
        return f"grasp-{self._sweep}-{file_name(key)}"

    def put_blob(self, name: str, content: Content) -> None:
        with spooled(content) as file:
            self._store.write(name, file)

    def open_blob(self, name: str) -> BinaryIO:
        try:
            with self._store.open_reader(name) as file:
                return io.BytesIO(file.read())
        except exceptions.ArtifactNotFound:
            raise FileNotFoundError(name) from None

    def remove_blob(self, name: str) -> None:
        # A file that cannot be removed only takes up space.
        with contextlib.suppress(exceptions.ArtifactNotFound, OSError):
            self._store.remove(name)
