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

from grasp_tune.core.tasks import Task
from grasp_tune.engine.lane_group import Seat, meeting_place
from grasp_tune.executors.ray import room_for, start_actor
from grasp_tune.runtime.lane_sharing import LaneSharing, lanes_of
from grasp_tune.runtime.usage import UsageMeter

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
