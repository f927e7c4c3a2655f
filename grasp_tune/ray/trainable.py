"""The trainable: a Tune actor that does whichever piece of work its trial is given.

The problem is built once in a process and kept for all its trials. Which checkpoints exist is
decided by the tasks; Tune itself is given one, the chosen model. A trial of Tune has its own
resources and no more. So a task of several lanes looks for what is free in the cluster, starts
companions there, and lets go of them when it ends. Without them, or when one of them dies, it goes
alone: the bits are the same.
"""

import contextlib
import inspect
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import ray
import torch
from ray import tune
from ray.tune import PlacementGroupFactory
from ray.tune.trainable import FunctionTrainable

from grasp_tune.core.errors import InputError
from grasp_tune.core.tasks import Task, TrainTask
from grasp_tune.engine.lane_group import Seat, meeting_place
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.ray import load_compiler, room_for, start_actor
from grasp_tune.ray.trial import HEARTBEAT, KEY, TuneTrial
from grasp_tune.ray.tune_internals import sweep_storage
from grasp_tune.runtime.lane_sharing import LaneSharing, UsageMeter, lanes_of
from grasp_tune.runtime.shared_sweep import Work
from grasp_tune.runtime.shared_worker import SharedWorker

logger = logging.getLogger(__name__)

GAIN = 20.0  # seconds that sharing must save: companions first have to start
PATIENCE = 60.0  # seconds for them to start


class Companions:
    """What a worker process of Tune knows of the speed of tasks, alone and shared."""

    def __init__(self) -> None:
        self._usage = UsageMeter()
        self.sharing = LaneSharing(self._usage)

    @contextlib.contextmanager
    def seat(
        self, task: Any, needs: Mapping[str, float], make: Callable[[], Any]
    ) -> Iterator[Seat | None]:
        """Give the trial's place among its companions while the block runs; None: it is alone.

        needs: resources of one worker, such as `{"CPU": 1}`.
        make: makes a worker in another process.
        """
        actors = self._start(task, needs, make) if lanes_of(task) > 1 else []
        if not actors:
            yield None
            return
        logger.info("%s: %d workers a step", task.id, 1 + len(actors))
        address, server = meeting_place(ray.util.get_node_ip_address())
        seats = [Seat(rank, 1 + len(actors), f"{address}/0") for rank in range(1 + len(actors))]
        try:
            for actor, seat in zip(actors, seats[1:], strict=True):
                actor.run.remote(task, seat)
            yield seats[0]
        finally:
            _end(actors)
            del server

    def _start(self, task: Task, needs: Mapping[str, float], make: Callable[[], Any]) -> list[Any]:
        alone = self._usage.speeds.get(1)
        if alone is None or not ray.is_initialized():
            return []
        size = self.sharing.workers(task, 1 + room_for(needs, ray.available_resources()))
        if task.calls / alone * (1.0 - 1.0 / size) <= GAIN:
            return []
        actors = [start_actor(needs, make) for _ in range(size - 1)]
        waiting = {actor.ready.remote(): actor for actor in actors}
        found = []
        for ref in ray.wait(list(waiting), num_returns=len(waiting), timeout=PATIENCE)[0]:
            try:
                ray.get(ref)
                found.append(waiting[ref])
            except ray.exceptions.RayError as error:
                logger.warning("a worker beside %s did not start: %s", task.id, error)
        used = found[: self.sharing.workers(task, 1 + len(found)) - 1]
        _end([actor for actor in actors if actor not in used])  # somebody else was faster
        return used


def _end(actors: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)


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
        config: list[dict[str, Any]] = []
        with contextlib.suppress(ValueError):  # a callable without a signature
            try:
                inspect.signature(cls.make_problem).bind(**given)
            except TypeError:  # it wants more than that
                config = [dict(constants)]
        problem = cls.make_problem(*config, **given)
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
