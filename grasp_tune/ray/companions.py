"""Actors beside a trial that share the lanes of its task, where the cluster has room for them.

A trial of Tune has its own resources and no more. So a task of several lanes looks for what is free
in the cluster, starts companions there, and lets go of them when it ends. Without them, or when one
of them dies, it goes alone: the bits are the same.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray

from grasp_tune.core.tasks import Task, TrainTask
from grasp_tune.engine.lane_group import Seat, meeting_place
from grasp_tune.runtime.lane_sharing import LaneSharing, lanes_of
from grasp_tune.runtime.shared_worker import SharedWorker
from grasp_tune.runtime.usage import UsageMeter

logger = logging.getLogger(__name__)

GAIN = 20.0  # seconds that sharing must save: companions first have to start
PATIENCE = 60.0  # seconds for them to start


class _Companion:
    """A worker process that takes part in one task."""

    def __init__(self, make: Callable[[], SharedWorker]) -> None:
        self._worker = make()

    def ready(self) -> None:
        """Return as soon as the problem is there."""

    def run(self, task: Task, seat: Seat) -> None:
        """Compute some lanes of the task; what comes of it is written by the trial."""
        self._worker.share(task, seat)


class Companions:
    """What a worker process of Tune knows of the speed of tasks, alone and shared."""

    def __init__(self) -> None:
        self.meter = UsageMeter()
        self._sharing = LaneSharing(self.meter)

    @contextlib.contextmanager
    def seat(
        self, task: Any, needs: Mapping[str, float], make: Callable[[], SharedWorker]
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

    def learn(self, task: Any, seat: Seat | None, seconds: float) -> None:
        """Note how long a task took that was run to its end."""
        if isinstance(task, TrainTask) and len(task.segments) == 1 and seconds > 0.0:
            self.meter.speeds[1 if seat is None else seat.size] = task.calls / seconds

    def _start(
        self, task: Task, needs: Mapping[str, float], make: Callable[[], SharedWorker]
    ) -> list[Any]:
        alone = self.meter.speeds.get(1)
        if alone is None or not ray.is_initialized():
            return []
        there = ray.available_resources()
        free = min(int(there.get(kind, 0.0) / need) for kind, need in needs.items() if need)
        size = self._sharing.workers(task, 1 + free)
        if task.calls / alone * (1.0 - 1.0 / size) <= GAIN:
            return []
        # Not inside of the trial's own placement group, which has room for the trial only.
        kind: Any = ray.remote(_Companion).options(
            num_cpus=needs.get("CPU", 0.0),
            num_gpus=needs.get("GPU", 0.0),
            scheduling_strategy="DEFAULT",
        )
        actors = {(actor := kind.remote(make)).ready.remote(): actor for _ in range(size - 1)}
        for ref in ray.wait(list(actors), num_returns=len(actors), timeout=PATIENCE)[1]:
            ray.kill(actors.pop(ref))  # somebody else was faster
        for ref in list(actors):
            try:
                ray.get(ref)
            except ray.exceptions.RayError as error:
                logger.warning("a worker beside %s did not start: %s", task.id, error)
                del actors[ref]
        found = list(actors.values())
        used = self._sharing.workers(task, 1 + len(found)) - 1
        _end(found[used:])
        return found[:used]


def _end(actors: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)
