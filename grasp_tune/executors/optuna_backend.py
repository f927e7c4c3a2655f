"""The whole method as trials of one study: probe, search and ensemble.

Any number of processes may run the same sweep on a study, now or later. They share the storage and
an artifact store and nothing else; each replays the outcomes on the study, runs what is open, and
returns the same result.
"""

import io
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import optuna
from optuna import Study
from optuna.artifacts import FileSystemArtifactStore
from optuna.artifacts._protocol import ArtifactStore
from optuna.artifacts.exceptions import ArtifactNotFound
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.records import encode
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.validation import whole
from grasp_tune.engine.checkpoints import Store
from grasp_tune.engine.fused import fusion_width
from grasp_tune.engine.problem import TorchProblem, checked_problem
from grasp_tune.engine.tensor_file import Content
from grasp_tune.engine.worker import Worker
from grasp_tune.executors import study as storage
from grasp_tune.executors.local import InProcess
from grasp_tune.executors.optuna import StudyCalls, StudyExecutor, StudyLog
from grasp_tune.executors.process_pool import ProcessPool
from grasp_tune.executors.study import CHOICE, SETTING, Timing
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.callbacks import reporter_for
from grasp_tune.runtime.driver import MakeWorker, run_sweep
from grasp_tune.runtime.executor import Executor
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import BlobStore, TemporaryStore, file_name, spooled
from grasp_tune.runtime.sweep_folder import SweepFolder


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
    timing: how often a worker says that it lives, and after how long a silence another takes its
        task over; by default the storage's heartbeat settings, or 5 and 60 seconds.
    options: `ensemble`, `challengers` and `probe_parts`.

    The other arguments are those of `grasp_tune.minimize`. After it the study's best trial is the
    chosen run, with its step size among the parameters; all others have the value infinity.
    """
    width = fusion_width(checked_problem(problem), method, fused, seed)
    spec, bases = SweepSpec.assemble(method, budget, schedule, seed, width=width, **options)
    return _run(study, problem, spec, artifact_store, bases, timing)


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
        self,
        problem: TorchProblem,
        spec: SweepSpec,
        *,
        out: Path | None = None,
        bases: Mapping[str, Factory] | None = None,
        progress: bool = False,
    ) -> Result:
        """Return the result of the sweep; the same study again goes on where it was cut off."""
        if out is None and self.storage is not None:
            raise InputError(
                "out: got None, but a study in a storage needs a folder for its checkpoints, "
                "one that every process of the study can reach"
            )
        store = None
        if out is not None:
            (out / "artifacts").mkdir(parents=True, exist_ok=True)
            store = FileSystemArtifactStore(out / "artifacts")
        study = self.open(out)
        how = {"hard_cap": self.hard_cap, "reporter": reporter_for(progress)}
        result = _run(study, problem, spec, store, bases, None, out, self.workers, **how)
        if out is not None:
            result.save(out)
        return result

    def open(self, out: Path | None = None) -> Study:
        """Return the study, new or as it was left; SearchError where the storage cannot be used.

        out: the output folder, which holds `study.journal` where no storage is given.
        """
        place: Any = self.storage or (None if out is None else str(out / "study.journal"))
        try:
            if place is not None and "://" not in place:
                place = JournalStorage(JournalFileBackend(place))
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
    bases: Mapping[str, Factory] | None,
    timing: Timing | None,
    out: Path | None = None,
    workers: int = 1,
    **how: Any,
) -> Result:
    """Take part in the sweep on the study until it is done, and return its result."""
    if len(study.directions) > 1 or study.direction != optuna.study.StudyDirection.MINIMIZE:
        raise InputError(
            f"study {study.study_name!r} must have one objective, to be minimised; got "
            f"{[direction.name.lower() for direction in study.directions]}"
        )
    log, store = sweep_on(study, spec, artifact_store, timing)
    # Several studies may keep their files in one folder.
    calls = StudyCalls(None if out is None else out / "calls" / log.sweep, log)

    def executor(folder: SweepFolder, make_worker: MakeWorker) -> Executor:
        def checked_worker() -> Worker:
            worker = make_worker()
            if log.origin is not None and worker.origin != log.origin:
                raise SearchError(
                    f"this process starts from another point (digest {worker.origin}) than the "
                    f"others ({log.origin}): `model` must build the same model in every process; "
                    "seed whatever it draws, or load its weights from a file"
                )
            return worker

        pool = workers > 1 and ProcessPool(workers, folder, checked_worker)
        return StudyExecutor(log, pool or InProcess(folder, checked_worker), calls)

    result = run_sweep(
        problem,
        spec,
        executor,
        store=None if artifact_store is None else store,
        calls=calls if workers == 1 or out is not None else None,
        bases=bases,
        **how,
    )
    write_choice(study, result)
    if math.isfinite(result.score):
        log.publish(result.score, result.choice.chosen)
    return result


class _Artifacts:
    """The artifacts of a store by their ids.

    An artifact store cannot replace a file in one step, so a reader may meet a file half written:
    its checksum says so, and the search has it made again.
    """

    def __init__(self, artifact_store: ArtifactStore) -> None:
        self._store = artifact_store

    def write(self, name: str, content: Content) -> None:
        with spooled(content) as file:
            self._store.write(name, file)

    def open(self, name: str) -> BinaryIO:
        try:
            with self._store.open_reader(name) as file:
                return io.BytesIO(file.read())
        except ArtifactNotFound:
            raise FileNotFoundError(name) from None

    def exists(self, name: str) -> bool:
        with suppress(ArtifactNotFound, OSError):
            self._store.open_reader(name).close()
            return True
        return False

    def remove(self, name: str) -> None:
        with suppress(ArtifactNotFound, OSError):  # what stays costs room, nothing else
            self._store.remove(name)

    def names(self) -> tuple[str, ...]:
        return ()  # an artifact store cannot list what it holds


def artifact_name(sweep: str, key: str) -> str:
    """Return the id of the artifact that holds a checkpoint of a sweep."""
    return f"grasp-{sweep}-{file_name(key)}"


def artifact_checkpoints(artifact_store: ArtifactStore, sweep: str) -> BlobStore:
    """Return the checkpoints of a sweep."""
    return BlobStore(_Artifacts(artifact_store), lambda key: artifact_name(sweep, key), sweep)


def sweep_on(
    study: Study,
    spec: SweepSpec,
    artifact_store: ArtifactStore | None,
    timing: Timing | None,
) -> tuple[StudyLog, Store]:
    """Return the trials of a sweep that all processes agree on, and where its checkpoints go."""
    if artifact_store is None and not storage.in_memory(study):
        raise InputError(
            "artifact_store: got None, but checkpoints must outlive this process; give the "
            "workers one, such as optuna.artifacts.FileSystemArtifactStore(folder)"
        )
    if difference := spec.difference(storage.study_json(study, SETTING, spec.to_dict())):
        raise InputError(
            f"the sweep on study {study.study_name!r} differs from this one: {difference}"
        )
    sweep = storage.fingerprint(spec.to_dict(), study.study_name)
    store = (
        TemporaryStore() if artifact_store is None else artifact_checkpoints(artifact_store, sweep)
    )
    return StudyLog(study, sweep, timing), store


def write_choice(study: Study, result: Result, **more: object) -> None:
    """Write the choice and its certificate on the study, unless they are there."""
    certificate = None if result.certificate is None else result.certificate.to_dict()
    chosen = {"candidate": encode(result.choice.chosen), "by": result.choice.by}
    note = {**chosen, "calls": dict(result.calls), "certificate": certificate, **more}
    if storage.study_json(study, CHOICE) != note:
        storage.set_study_json(study, CHOICE, note)
