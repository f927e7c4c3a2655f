"""The whole method as trials of one study: probe, search and ensemble.

Any number of processes may run the same sweep on a study, at the same time or later. They share
the study's storage and an artifact store, nothing else. Each replays the outcomes on the study,
runs tasks that no other process holds, and returns the same result.
"""

import contextlib
import io
import logging
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import optuna
from optuna import Study
from optuna.artifacts import FileSystemArtifactStore, exceptions
from optuna.artifacts._protocol import ArtifactStore
from optuna.storages import JournalStorage, journal
from optuna.study import StudyDirection
from optuna.trial import TrialState

from grasp_tune.core.errors import InputError, SearchError, whole
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

PAUSES = (0.02, 0.5)  # seconds between two looks at the study: the first, and the longest


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
    """Return the result of the sweep on this study, after running whatever is left of it.

    study: one objective to minimise. Every process that runs the same call on it takes part.
    artifact_store: where checkpoints go; needed unless the study lives in this process's memory.
    timing: how often a worker sends a heartbeat, and after how long a silence another one takes
        over its task; by default the storage's heartbeat settings, or 5 and 60 seconds.
    options: `ensemble`, `challengers` and `probe_parts`.

    The other arguments are those of `grasp_tune.minimize`. After it the study's best trial is the
    chosen run, with its step size among the parameters; all others have the value infinity.
    """
    spec, bases = SweepSpec.assemble(method, budget, schedule, seed, fused=fused, **options)
    problem = checked_problem(problem)
    return _run(study, problem, spec, artifact_store, timing=timing, bases=bases)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaBackend:
    """How to keep a sweep on an Optuna study, for `minimize(backend=...)`.

    storage: a database URL, or the path of a journal file; None: a journal in the output folder,
        or the memory of this process where there is none.
    study: its name in the storage. Every process that runs the same sweep on it takes part.
    workers: processes on this machine.
    hard_cap: the budget also holds for work that a fault has undone, as far as the calls of all
        processes are known: exactly where they share the output folder.
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
        """Return the result of the sweep; the same study again goes on where it was cut off."""
        store = None
        if out is not None:
            (out / "artifacts").mkdir(parents=True, exist_ok=True)
            store = FileSystemArtifactStore(out / "artifacts")
        elif self.storage is not None:
            raise InputError(
                "out: got None, but a study in a storage needs a folder for its checkpoints, "
                "one that every process of the study can reach"
            )
        how |= {"hard_cap": self.hard_cap, "workers": self.workers}
        return _run(self.open(out), problem, spec, store, out=out, **how)

    def open(self, out: Path | None = None) -> Study:
        """Return the study, new or as it was left; `out` is the output folder, if there is one."""
        place: Any = self.storage or (None if out is None else str(out / "study.journal"))
        try:
            if place is not None and "://" not in place:
                place = JournalStorage(journal.JournalFileBackend(place))
            return optuna.create_study(study_name=self.study, storage=place, load_if_exists=True)
        except Exception as error:  # whatever the database's driver raises
            # The message may quote the URL with its password, so only its kind is told.
            raise SearchError(
                f"the storage of the Optuna study {self.study!r} cannot be opened "
                f"({type(error).__name__}): check that the database runs, that the account may "
                "use it and that its driver is installed (pip install 'grasp_tune[storage]')"
            ) from None


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
    if study.directions != [StudyDirection.MINIMIZE]:
        raise InputError(
            f"study {study.study_name!r} must have one objective, to be minimised; got "
            f"{[direction.name.lower() for direction in study.directions]}"
        )
    log, store = sweep_on(study, spec, artifact_store, timing)
    # Several studies may keep their files in one folder. What a killed process of another folder
    # had asked is known up to its last heartbeat.
    folder = None if out is None else out / "calls" / log.sweep
    calls = CallCounter(folder, others=lambda: log.calls)

    def executor(folder: SweepFolder, make_worker: MakeWorker) -> Executor:
        pool = workers > 1 and ProcessPool(workers, folder, make_worker)
        return StudyExecutor(log, pool or InProcess(folder, make_worker), calls)

    how["calls"] = calls if workers == 1 or out is not None else None
    result = run_sweep(problem, spec, executor, store=store, origin=log.origin, **how)
    write_choice(study, result)
    if math.isfinite(result.score):
        log.want(SELECT)  # the one trial with a finite value: the study's best is the chosen run
        log.end_silent()
        log.news()
        chosen = result.choice.chosen
        shown = {"base": chosen.base, "value": chosen.value} if chosen.arm else {}
        # Else another process has said it, or is about to.
        if SELECT in log.unclaimed() and (trial_id := log.claim(SELECT, shown)) is not None:
            end_trial(study, trial_id, TrialState.COMPLETE, result.score)
    if out is not None:
        result.save(out)
    return result


class StudyExecutor:
    """Runs the tasks that no other process on the study holds, by `inner`; reports all of them."""

    def __init__(self, log: StudyLog, inner: Executor, calls: CallCounter | None = None) -> None:
        self._log, self._inner = log, inner
        self._calls, self._before = calls or CallCounter(None), 0
        self._ours: dict[str, int] = {}  # task id -> its trial: what runs
        self._pause, self._beat = PAUSES[0], time.monotonic()
        self.submit = log.want

    @property
    def free(self) -> bool:
        """Whether it takes more tasks; those that other processes hold do not count."""
        return len(self._log.unclaimed()) < FRONT

    def poll(self, timeout: float) -> Iterator[tuple[Any, Ended]]:
        """Run what is ours, and yield what has ended on the study since, in any process."""
        if not (ended := self._log.news()):
            self._claim()
            if self._ours:
                self._run(timeout)
            elif not self._log.end_silent():
                # At random, so that idle processes do not all read the study at the same moment.
                time.sleep(min(timeout, self._pause * random.uniform(0.5, 1.5)))
                self._pause = min(2 * self._pause, PAUSES[1])
            ended = self._log.news()
        yield from ended

    def cancel(self) -> None:
        self._inner.cancel()
        for key in list(self._ours):
            self._write(key, sys.exc_info()[1] or SearchError("its process was stopped"))

    def _claim(self) -> None:
        while self._inner.free and (waiting := self._log.unclaimed()):
            # Not always the first: two processes that look at once should not both want it.
            alone = on_study.in_memory(self._log.study)
            task = waiting[0 if alone else random.randrange(min(len(waiting), FRONT))]
            one = isinstance(task, TrainTask) and len(task.segments) == 1
            value = task.segments[0].arm.value if one else math.nan
            shown = {"value": value} if SPAN.low <= value <= SPAN.high else {}
            if (trial_id := self._log.claim(task, shown)) is not None:
                self._before = self._calls.own
                self._ours[task.id] = trial_id
                self._inner.submit(task)

    def _made(self) -> int:
        return self._calls.own - self._before  # since a task was last begun

    def _run(self, timeout: float) -> None:
        self._pause, held = PAUSES[0], list(self._ours.values())
        living: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if isinstance(self._inner, InProcess):
            living = self._log.beating(held, self._made)
        elif time.monotonic() - self._beat > self._log.timing.every:
            self._beat = time.monotonic()
            self._log.beat(held, self._made())  # a pool forks, and threads do not go with it
        with living:
            for task, how in self._inner.poll(timeout):
                self._write(task.id, how)
                if isinstance(how, Exception) and getattr(how, "key", None) is None:
                    raise how

    def _write(self, key: str, how: Ended | BaseException) -> None:
        """End a trial of ours, unless it was taken from us meanwhile."""
        trial_id, log = self._ours.pop(key), self._log
        failed = isinstance(how, Died | BaseException)
        try:
            if failed:
                log.storage.set_trial_system_attr(trial_id, CALLS, self._made())
            log.write(trial_id, how)
            state = TrialState.FAIL if failed else TrialState.COMPLETE
            end_trial(log.study, trial_id, state, *([] if failed else [math.inf]))
        except RuntimeError:  # UpdateFinishedTrialError: it was taken for dead
            logger.warning("%s was given to another worker meanwhile", key)


def sweep_on(
    study: Study, spec: SweepSpec, artifact_store: ArtifactStore | None, timing: Timing | None
) -> tuple[StudyLog, Store]:
    """Return the trials of a sweep that all processes agree on, and where its checkpoints go."""
    if artifact_store is None and not on_study.in_memory(study):
        raise InputError(
            "artifact_store: got None, but checkpoints must outlive this process; give the "
            "workers one, such as optuna.artifacts.FileSystemArtifactStore(folder)"
        )
    log = StudyLog(study, spec, timing)
    kept = artifact_store and ArtifactCheckpoints(artifact_store, log.sweep)
    return log, kept or TemporaryStore()


def write_choice(study: Study, result: Result, **more: object) -> None:
    """Write the choice and its certificate on the study, unless they are there."""
    certificate = None if result.certificate is None else result.certificate.to_dict()
    chosen = {"candidate": encode(result.choice.chosen), "by": result.choice.by}
    note = {**chosen, "calls": dict(result.calls), "certificate": certificate, **more}
    if on_study.study_json(study, CHOICE) != note:
        on_study.set_study_json(study, CHOICE, note)


class ArtifactCheckpoints(BlobStore):
    """The checkpoints of a sweep in an artifact store; a damaged one is made again."""

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
        # What stays costs room, nothing else.
        with contextlib.suppress(exceptions.ArtifactNotFound, OSError):
            self._store.remove(name)
