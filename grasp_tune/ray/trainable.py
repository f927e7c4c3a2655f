"""The trainable: a Tune actor that does whichever piece of work its trial is given.

The problem is built once in a process and kept for all its trials. Which checkpoints exist is
decided by the tasks; Tune itself is given one, the chosen model.
"""

import inspect
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from ray import tune
from ray.tune import PlacementGroupFactory
from ray.tune.trainable import FunctionTrainable

from grasp_tune.core.errors import InputError
from grasp_tune.core.tasks import TrainTask
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.ray import load_compiler
from grasp_tune.ray.companions import Companions
from grasp_tune.ray.trial import HEARTBEAT, KEY, TuneTrial
from grasp_tune.ray.tune_internals import sweep_storage
from grasp_tune.runtime.shared_sweep import Work
from grasp_tune.runtime.shared_worker import SharedWorker

# One problem a process: an actor runs one trial at a time, and the next is of the same kind.
_KEPT: list[tuple[object, SharedWorker]] = []
_COMPANIONS = Companions()


class GraspTrainable(FunctionTrainable):
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
        """Take what `tune.with_parameters` has to say."""
        self._given = given
        load_compiler()
        super().setup(config)

    def _trainable_func(self, config: dict[str, Any]) -> None:
        """Do the work of a trial."""
        trial = TuneTrial(config, self.heartbeat)
        constants = {key: value for key, value in config.items() if key != KEY}
        given, work = self.trial_resources, trial.work
        needs = given.bundles[0] if given is not None and given.bundles else {"CPU": 1.0}
        torch.set_num_threads(max(1, int(needs.get("CPU", 1))))
        key = self.token, constants, trial.storage.path, work.spec.seed
        kept = [worker for known, worker in _KEPT if known == key]
        _KEPT.clear()
        with trial.faults():
            problem = None if kept else self.problem(constants, self._given)
            worker = kept[0] if problem is None else SharedWorker(problem, trial.storage, work)
        worker.beat = trial.beat
        make = partial(
            _companion, type(self), (constants, self._given), tune.get_context().get_storage(), work
        )
        with _COMPANIONS.seat(work.task, needs, make) as seat:
            begun = time.monotonic()
            row = worker.perform(work, seat)
        if isinstance(work.task, TrainTask) and worker.calls:  # else it had been done before
            size, seconds = 1 if seat is None else seat.size, time.monotonic() - begun
            _COMPANIONS.sharing.learn(size, work.task.calls, seconds)
        _KEPT.append((key, worker))  # not one whose task was cut off: its model may be anywhere
        trial.last(row, worker.result)


def _companion(
    kind: type[GraspTrainable], source: tuple[Any, Any], context: Any, work: Work
) -> tuple[SharedWorker, None]:
    """Return a worker in another process than the trial's."""
    return SharedWorker(kind.problem(*source), sweep_storage(context, work.run), work), None


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
