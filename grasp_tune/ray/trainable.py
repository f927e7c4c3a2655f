"""The trainable: a Tune actor that does whichever piece of work its trial is given.

The problem is built once in a process and kept for all its trials. A task runs in a thread, and
its trial reports about every half minute until it is over. Which checkpoints exist is decided by
the tasks; Tune itself is given one, the chosen model.
"""

import inspect
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ClassVar

import torch
from ray.tune import PlacementGroupFactory, Trainable

from grasp_tune.core.errors import GraspError, InputError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.ray.companions import Companions
from grasp_tune.ray.trial_config import HEARTBEAT, KEY, report, work_in
from grasp_tune.ray.tune_internals import no_checkpoint, sweep_storage
from grasp_tune.runtime.shared_sweep import Work
from grasp_tune.runtime.shared_worker import SharedWorker, refusal

logger = logging.getLogger(__name__)

# One problem a process: an actor runs one trial at a time, and the next is of the same kind.
_KEPT: list[tuple[object, SharedWorker]] = []
_COMPANIONS = Companions()


class GraspTrainable(Trainable):
    """Runs one task of a sweep; made by `grasp_trainable`."""

    token: ClassVar[str]  # one per trainable, the same in every process
    make_problem: ClassVar[Callable[..., TorchProblem]]
    resources: ClassVar[PlacementGroupFactory | None] = None
    heartbeat: ClassVar[float] = HEARTBEAT

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | None:
        """Return what `grasp_trainable` was told, None to leave it to Tune."""
        return cls.resources

    @classmethod
    def problem(cls, constants: Mapping[str, Any], given: Mapping[str, Any]) -> TorchProblem:
        """Return a fresh problem; `given` are the parameters of `tune.with_parameters`."""
        make = cls.make_problem
        config = [dict(constants)] if _required(make) - set(given) else []
        problem = make(*config, **given)
        if not isinstance(problem, TorchProblem):
            kind = type(problem).__name__
            raise InputError(f"make_problem: it returned {kind}, expected a TorchProblem")
        return problem

    def setup(self, config: dict[str, Any], **given: Any) -> None:
        """Take the first trial's work."""
        self._given = given
        self._job: Future[dict[str, Any]] | None = None
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial's work; whatever was under way is given up."""
        self.cleanup()
        self._constants = {key: value for key, value in new_config.items() if key != KEY}
        self._work = work_in(new_config)
        self._worker: SharedWorker | None = None  # once its task has begun
        return True

    def step(self) -> dict[str, Any]:
        """Return the task's report, or how far it is where it takes long."""
        if self._job is None:
            thread = ThreadPoolExecutor(1, self._work.task.id)
            self._job = thread.submit(self._perform)
            thread.shutdown(wait=False)
        if not wait([self._job], self.heartbeat).done:
            calls = 0 if self._worker is None else self._worker.count.calls
            return report(self._work, {"status": "running", "oracle_calls": calls})
        job, self._job = self._job, None
        row = report(self._work, job.result())
        keep = self._worker is not None and self._worker.result is not None
        return {**row, "done": True, **({"should_checkpoint": True} if keep else {})}

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Give Tune a checkpoint of the chosen model, and none of anything else."""
        result = None if self._worker is None else self._worker.result
        nothing = no_checkpoint() if result is None else None
        return super().save(checkpoint_dir) if nothing is None else nothing

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the result: `Result.load` reads it."""
        if self._worker is not None and self._worker.result is not None:
            self._worker.result.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: a task's inputs are named by the task."""

    def cleanup(self) -> None:
        """End the task under way, if there is one."""
        if self._job is None:
            return
        if self._worker is not None:
            self._worker.count.cancelled = True
        if not wait([self._job], self.heartbeat).done:
            logger.warning("%s does not end at its next oracle call", self._work.task.id)
        self._job = None
        _KEPT.clear()  # a task cut in the middle leaves its model anywhere

    # -- in the thread --------------------------------------------------------------------------

    def _perform(self) -> dict[str, Any]:
        given, work = self.trial_resources, self._work
        needs = given.bundles[0] if given is not None and given.bundles else {"CPU": 1.0}
        torch.set_num_threads(max(1, int(needs.get("CPU", 1))))
        try:
            self._worker = self._make_worker()
        except GraspError as error:
            return refusal(error)
        context, source = getattr(self, "_storage", None), (self._constants, self._given)
        make = partial(_shared_worker, type(self), source, context, work)
        with _COMPANIONS.seat(work.task, needs, make) as seat:
            begun = time.monotonic()
            row = self._worker.perform(work, seat)
        if self._worker.count.calls:  # else it had been done before
            _COMPANIONS.learn(work.task, seat, time.monotonic() - begun)
        return row

    def _make_worker(self) -> SharedWorker:
        work = self._work
        storage = sweep_storage(getattr(self, "_storage", None), work.run)
        key = self.token, self._constants, storage.path, work.spec.seed
        if not _KEPT or _KEPT[0][0] != key:
            _KEPT.clear()
            problem = self.problem(self._constants, self._given)
            _KEPT.append((key, SharedWorker(problem, storage, work)))
        return _KEPT[0][1]


def _shared_worker(
    kind: type[GraspTrainable], source: tuple[Any, Any], context: Any, work: Work
) -> SharedWorker:
    """Return a worker in another process than the trial's."""
    return SharedWorker(kind.problem(*source), sweep_storage(context, work.run), work)


def grasp_trainable(
    make_problem: Callable[..., TorchProblem],
    *,
    cpus: float | None = None,
    gpus: float | None = None,
    heartbeat: float = HEARTBEAT,
) -> type[GraspTrainable]:
    """Return a trainable for `GraspSearcher` that trains the problem which `make_problem` builds.

    make_problem: called once in every worker process, without arguments, or with the constants of
        the config where it takes one. Load large data in it, or share them by `ray.put` or
        `tune.with_parameters(grasp_trainable(make_problem), data=...)`.
    cpus, gpus: what a task reserves; fractions let tasks share. None: one CPU, or whatever
        `tune.with_resources` says, which may look at `config["grasp"]["phase"]`.
    heartbeat: seconds between two reports of a task that takes long.
    """
    if isinstance(make_problem, TorchProblem) or not callable(make_problem):
        kind = type(make_problem).__name__
        raise InputError(f"make_problem: got {kind}, expected a function that returns the problem")
    if not heartbeat > 0.0:
        raise InputError(f"heartbeat: got {heartbeat!r}, expected seconds > 0")
    bundle = {"CPU": 1.0 if cpus is None else float(cpus), "GPU": float(gpus or 0.0)}
    if min(bundle.values()) < 0.0 or not any(bundle.values()):
        raise InputError(f"cpus, gpus: got {cpus!r}, {gpus!r}, expected shares >= 0, not both 0")
    given = cpus is not None or gpus is not None
    content = {
        "token": uuid.uuid4().hex,
        "make_problem": staticmethod(make_problem),
        "heartbeat": float(heartbeat),
        "resources": PlacementGroupFactory([bundle]) if given else None,
        "__module__": __name__,
    }
    return type("grasp", (GraspTrainable,), content)


def _required(make_problem: Callable[..., TorchProblem]) -> set[str]:
    """Return the names of the arguments that it cannot do without."""
    try:
        parameters = inspect.signature(make_problem).parameters.values()
    except (TypeError, ValueError):
        return set()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {item.name for item in parameters if item.kind in kinds and item.default is item.empty}
