"""The whole method as trials of one study: probe, search and ensemble.

Any number of processes may call `run` on the same study, now or later. They share the storage and
an artifact store and nothing else; each replays the outcomes on the study, runs what is open, and
returns the same result.
"""

import logging
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import optuna
from optuna.artifacts import FileSystemArtifactStore
from optuna.artifacts._protocol import ArtifactStore
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from grasp_tune.core.errors import CheckpointError, InputError, SearchError
from grasp_tune.core.methods import Method, NonConvex
from grasp_tune.core.records import encode
from grasp_tune.core.search import Search
from grasp_tune.core.spec import EnsembleName, ScheduleName, SweepSpec
from grasp_tune.core.tasks import Task
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.fused import fusion_width
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.store import Store
from grasp_tune.engine.worker import Worker
from grasp_tune.optimizers.registry import Factory
from grasp_tune.optuna.artifacts import ArtifactCheckpoints
from grasp_tune.optuna.attributes import (
    CHOICE,
    SETTING,
    fingerprint,
    set_study_json,
    study_json,
)
from grasp_tune.optuna.calls import CallFiles
from grasp_tune.optuna.ledger import Claim, Ledger
from grasp_tune.optuna.pulse import Pulse, Timing, Watch
from grasp_tune.runtime.driver import Ledger as Running
from grasp_tune.runtime.driver import place_chosen
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import MemoryStore

logger = logging.getLogger(__name__)

NAME = "grasp_tune"  # of the study that `run_optuna` makes
FRONT = 8  # tasks from the front of the line among which a process picks one
PAUSES = (0.02, 0.5)  # seconds between two looks at the study: the first, and the longest


def run(
    study: optuna.Study,
    problem: TorchProblem,
    budget: int,
    method: Method | None = None,
    schedule: ScheduleName = "promote",
    seed: int = 0,
    *,
    artifact_store: ArtifactStore | None = None,
    fused: bool | Literal["auto"] = "auto",
    ensemble: EnsembleName = "resample",
    challengers: Mapping[str, Callable[..., object]] | tuple[str, ...] = (),
    probe_parts: int = 1,
    timing: Timing | None = None,
) -> Result:
    """Return the result of the sweep on this study, after running whatever is left of it.

    study: one objective to minimise. Every process that runs the same call on it takes part.
    artifact_store: where checkpoints go; needed unless the study lives in this process's memory.
    timing: how often a worker says that it lives, and after how long a silence another takes its
        task over; by default the storage's heartbeat settings, or 5 and 60 seconds.

    The other arguments are those of `grasp_tune.minimize`.
    """
    if not isinstance(problem, TorchProblem):
        kind = type(problem).__name__
        raise InputError(f"problem: got {kind}, expected a grasp_tune.TorchProblem")
    method = NonConvex() if method is None else method
    spec = SweepSpec(
        method=method,
        budget=budget,
        schedule=schedule,
        seed=seed,
        ensemble=ensemble,
        width=fusion_width(problem, method, schedule, fused, seed),
        probe_parts=probe_parts,
        challengers=tuple(challengers),
    )
    bases = _custom_bases(method, challengers)
    return Member(study, problem, spec, artifact_store, bases, timing).run()


def run_optuna(
    problem: TorchProblem,
    spec: SweepSpec,
    *,
    out: Path | None = None,
    workers: int = 1,
    bases: Mapping[str, Factory] | None = None,
) -> Result:
    """Return the result of a sweep on a study of its own; with `out`, go on from what is there.

    The folder then holds `study.journal` (`optuna-dashboard` opens it), `artifacts/` and, at the
    end, `result.json` with the model.
    """
    if out is None and workers == 1:
        study = optuna.create_study(study_name=NAME)
        return Member(study, problem, spec, None, bases or {}, None).run()
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grasp-tune-")))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "artifacts").mkdir(exist_ok=True)

        def member() -> Member:
            artifacts = FileSystemArtifactStore(folder / "artifacts")
            study = open_study(folder)
            return Member(study, problem, spec, artifacts, bases or {}, None, out=folder)

        if workers > 1:
            from grasp_tune.optuna.processes import run_members

            run_members(member, workers)
        result = member().run()
        if out is not None:
            result.save(out)
        return result


def open_study(folder: Path) -> optuna.Study:
    """Return the study in a folder of `run_optuna`, new or as it was left."""
    backend = JournalFileBackend(str(folder / "study.journal"))
    return optuna.create_study(
        study_name=NAME, storage=JournalStorage(backend), load_if_exists=True
    )


class Member:
    """One process of a sweep: replays what is known and runs what is open, until the choice."""

    def __init__(
        self,
        study: optuna.Study,
        problem: TorchProblem,
        spec: SweepSpec,
        artifact_store: ArtifactStore | None,
        bases: Mapping[str, Factory],
        timing: Timing | None,
        *,
        out: Path | None = None,
    ) -> None:
        if len(study.directions) > 1 or study.direction != optuna.study.StudyDirection.MINIMIZE:
            raise InputError(
                f"study {study.study_name!r} must have one objective, to be minimised; got "
                f"{[direction.name.lower() for direction in study.directions]}"
            )
        alone = isinstance(study._storage, optuna.storages.InMemoryStorage)
        if artifact_store is None and not alone:
            raise InputError(
                "artifact_store: got None, but checkpoints must outlive this process; give the "
                "workers one, such as optuna.artifacts.FileSystemArtifactStore(folder)"
            )
        self.name = uuid.uuid4().hex[:12]
        self._study, self._problem, self._setting, self._bases = study, problem, spec, bases
        sweep = fingerprint(_agreed_setting(study, spec), study.study_name)
        self._store: Store = MemoryStore()
        if artifact_store is not None:
            self._store = ArtifactCheckpoints(artifact_store, lambda key: f"grasp-{sweep}-{key}")
        timing = timing or Timing.of(study)
        self._pulse, self._watch = Pulse(study, timing), Watch(timing)
        self._search = Search(spec)
        self._ledger = Ledger(study, self._search, sweep, self.name)
        self._worker: Worker | None = None
        self._calls = None if out is None else CallFiles(out, sweep)

    def run(self) -> Result:
        """Take part until the search is done; return its result."""
        pause, rested = PAUSES[0], False
        while True:
            self._ledger.refresh()
            for key in self._search.discardable():
                self._store.delete(key)
            if self._search.choice is not None:
                return self._result()
            for trial in self._watch.silent(self._ledger.running()):
                self._ledger.abandon(trial)
            waiting = self._ledger.open()
            if not waiting:
                # Of uneven length, so that idle processes do not all look at the same moment.
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause, rested = min(2 * pause, PAUSES[1]), True
                continue
            if rested:  # whoever ended the round takes its next task at once: look again
                time.sleep(random.uniform(0.5, 1.5) * PAUSES[0])
                pause, rested = PAUSES[0], False
                continue
            # Not all from the front: two processes that look at once should not both want it.
            task = waiting[random.randrange(min(len(waiting), FRONT))]
            claim = self._ledger.claim(task)
            if claim is not None:
                self._run(claim, task)

    def release(self, worker: str) -> int:
        """End the trials of a worker that is known to be dead; return how many there were."""
        self._ledger.refresh()
        held = [
            trial
            for trial in self._ledger.running()
            if trial.system_attrs["grasp:task"]["worker"] == worker
        ]
        for trial in held:
            self._ledger.abandon(trial)
        return len(held)

    def _run(self, claim: Claim, task: Task) -> None:
        logger.debug("trial %d runs %s", claim.number, task.id)
        try:
            with self._pulse.beating(claim.trial_id):
                outcome = self._own_worker().run(task)
        except CheckpointError as error:
            if error.key is None:
                self._ledger.fail(claim, self._pulse.calls, error=repr(error))
                raise
            self._ledger.fail(claim, self._pulse.calls, lost=error.key)
        except BaseException as error:
            self._ledger.fail(claim, self._pulse.calls, error=repr(error))
            raise
        else:
            self._ledger.complete(claim, outcome)

    def _own_worker(self) -> Worker:
        if self._worker is None:
            seed = self._setting.seed
            worker = Worker(self._problem, seed, self._store, self._bases, self._counting())
            known = self._ledger.origin
            if known is not None and worker.origin != known:
                raise SearchError(
                    f"this process starts from another point (digest {worker.origin}) than the "
                    f"others ({known}): `model` must build the same model in every process; seed "
                    "whatever it draws, or load its weights from a file"
                )
            self._worker = worker
        return self._worker

    def _counting(self) -> Callable[[int], None]:
        if self._calls is None:
            return self._pulse.count
        add = self._calls.counter()

        def count(calls: int) -> None:
            self._pulse.count(calls)
            add(calls)

        return count

    def _result(self) -> Result:
        choice = self._search.partial()
        worker = self._own_worker()
        place_chosen(worker, Running(self._search))
        if self._calls is not None:
            spent = self._search.calls
            budgeted = sum(spent.values()) - spent["repeated"]
            self._search.repeated = max(spent["repeated"], self._calls.total - budgeted)
        seed = self._setting.seed
        result = Result.of(
            self._search, model_tensors(worker.model), lambda: self._problem.build(seed)
        )
        note = {
            "candidate": encode(choice.chosen),
            "by": choice.by,
            "calls": dict(result.calls),
            "certificate": None if result.certificate is None else result.certificate.to_dict(),
        }
        if study_json(self._study, CHOICE) != note:
            set_study_json(self._study, CHOICE, note)
        return result


def _agreed_setting(study: optuna.Study, spec: SweepSpec) -> dict[str, object]:
    """Return the spec as it stands on the study; InputError where that is another one."""
    wanted = spec.to_dict()
    found = study_json(study, SETTING)
    if found is None:
        set_study_json(study, SETTING, wanted)
        found = study_json(study, SETTING)
    if found != wanted:
        pairs = [
            f"{key} {found.get(key)!r} became {value!r}"
            for key, value in wanted.items()
            if found.get(key) != value
        ]
        raise InputError(
            f"the sweep on study {study.study_name!r} differs from this one: {'; '.join(pairs)}"
        )
    return wanted


def _custom_bases(
    method: Method, challengers: Mapping[str, Callable[..., object]] | tuple[str, ...]
) -> dict[str, Factory]:
    found: dict[str, Factory] = {}
    if callable(method.base):
        found[method.base_name("promote")] = method.base
    if isinstance(challengers, Mapping):
        found.update({name: make for name, make in challengers.items() if callable(make)})
    return found
