"""An executor for plain Ray actors, without Ray Tune, on one machine or many.

Each actor gets a copy of the problem through Ray's object store, and runs one task at a time.
"""

import contextlib
import importlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from grasp_tune.core.errors import InputError, SearchError, expect, whole
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, Task, TrainTask
from grasp_tune.engine.lane_group import GroupLost, Seat, meeting_place
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.executors.local import Job, Member, WorkerPool
from grasp_tune.extras import need
from grasp_tune.runtime.driver import MakeWorker, run_sweep
from grasp_tune.runtime.executor import Died, Ended, portable
from grasp_tune.runtime.lane_sharing import LaneSharing, lanes_of
from grasp_tune.runtime.lock import FolderLock
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import SHARED, discard
from grasp_tune.runtime.sweep_folder import CallCounter, SweepFolder

ray: Any = need("ray", "ray", "grasp_tune.ray")
logger = logging.getLogger(__name__)

LOOK = 2.0  # seconds between two checks of the cluster's size
PATIENCE = 60.0  # seconds without any worker until a warning says what is missing
GAIN = 20.0  # seconds that companions must save, because they take time to start


@dataclass(frozen=True, slots=True, kw_only=True)
class RayBackend:
    """A backend for `minimize(backend=...)` that runs the tasks on a Ray cluster.

    address: `auto`, host:port or ray://host:port; None: the session of this process, else that of
        `RAY_ADDRESS`, else a new one.
    workers: the number of workers to start; they run several tasks, or share the lanes of one.
        None: as many as there is work for and the cluster holds, as it grows or shrinks.
    cpus_per_task, gpus_per_task: what a task reserves; fractions let tasks share.
    storage: a folder or URI for checkpoints that all machines can reach; None: the output folder.
    max_failures: how often a task whose worker died is restarted before it counts as failed.
    hard_cap: as in `minimize`; all machines must see `out`, where the calls are counted.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_task: float = 1.0
    gpus_per_task: float = 0.0
    storage: str | None = None
    max_failures: int = 2
    hard_cap: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None:
            whole("workers", self.workers)
        cpus, gpus = self.cpus_per_task, self.gpus_per_task
        fine, words = min(cpus, gpus) >= 0.0 < max(cpus, gpus), "shares >= 0, not both 0"
        expect(fine, "cpus_per_task, gpus_per_task", f"{cpus!r}, {gpus!r}", words)

    @property
    def needs(self) -> dict[str, float]:
        return {"CPU": self.cpus_per_task, "GPU": self.gpus_per_task}

    def run(
        self, problem: TorchProblem, spec: SweepSpec, *, out: Path | None = None, **how: Any
    ) -> Result:
        """Return the result of the sweep; with the same `out` an interrupted sweep continues."""
        out = out and out.absolute()  # workers may have another working directory
        store = None
        if self.storage is not None:
            from grasp_tune.runtime.shared_sweep import sweep_store  # needs pyarrow, as Tune does

            store = sweep_store(self.storage, spec, out)
        how |= {"hard_cap": self.hard_cap, "again": self.max_failures}
        result = run_sweep(problem, spec, partial(RayExecutor, self), out=out, store=store, **how)
        if store is not None and out is None:  # without `out` nothing can be resumed
            discard(store, store.keys())
        return result


MakeActor = Callable[[CallCounter], Worker]  # the counter is for calls not counted in a file


class WorkerActor:
    """A Ray actor: a worker process somewhere in the cluster, with `cpus` threads."""

    def __init__(self, make: MakeActor, cpus: float) -> None:
        self._make, self._cpus = make, cpus
        self._worker: Worker | None = None
        self._uncounted = CallCounter(None)
        load_compiler()

    def ready(self) -> str:
        """Return the address where a group that it leads can connect, once the process runs."""
        address, self._server = meeting_place(ray.util.get_node_ip_address())
        return address

    def run(self, task: Task, seat: Seat | None) -> tuple[Ended, int]:
        """Return how the task ended, and the oracle calls not counted in a file."""
        before = self._uncounted.total
        try:
            if self._worker is None:
                torch.set_num_threads(max(1, int(self._cpus)))
                self._worker = self._make(self._uncounted)
            ended: Ended = self._worker.run(task, seat)
        except Exception as error:
            ended = portable(error, task)
        return ended, self._uncounted.total - before


def _make_worker(
    parcel: list[Any], token: str, lock: FolderLock, hard_cap: bool, uncounted: CallCounter
) -> Worker:
    """Return a worker on this machine; raise if it does not see the driver's checkpoints."""
    host = ray.util.get_node_ip_address()
    try:
        make_worker = ray.get(parcel[0])  # in a list, because Ray itself would hide the error
    except Exception as error:
        raise SearchError(f"the problem cannot be loaded on {host}: {error}") from None
    if not make_worker.store.exists(token):
        words = f"with several machines, `out` or `storage` {SHARED}"
        raise SearchError(f"{host} does not see the checkpoints of the driver: {words}")
    if not lock.held:
        if hard_cap:
            raise SearchError(f"hard_cap: {host} does not see the driver's `out`, {lock.folder}")
        make_worker.calls = uncounted
    return make_worker()


class RayExecutor(WorkerPool):
    """An executor whose workers are Ray actors; a worker that dies is replaced."""

    def __init__(self, backend: RayBackend, folder: SweepFolder, make_worker: MakeWorker) -> None:
        super().__init__(folder.sharing, backend.workers)
        self._backend, self._store, self._count = backend, folder.store, folder.calls.counter()
        self._room, self._looked, self._since = 1, -LOOK, time.monotonic()
        self._token = f"driver-{uuid.uuid4().hex[:12]}"
        with contextlib.ExitStack() as stack:
            stack.enter_context(_session(backend))
            self._store.write(self._token, {}, {})
            stack.callback(self._store.delete, self._token)
            try:
                parcel = [ray.put(make_worker)]
            except Exception as why:
                raise InputError(f"problem: it cannot be sent to other processes: {why}") from why
            self._session = stack.pop_all()
        self._make = partial(_make_worker, parcel, self._token, folder.lock, backend.hard_cap)

    @property
    def capacity(self) -> int:
        """The number of workers that fit on the cluster now, at least one."""
        if self.size is None and time.monotonic() - self._looked > LOOK:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            self._room = max(1, sum(room_for(self._backend.needs, node) for node in nodes))
            self._looked = time.monotonic()
        return self.size or self._room

    def start(self) -> Member:
        actor = start_actor(self._backend.needs, self._make)
        return Member(actor, actor.ready.remote())

    def send(self, member: Member, job: Job) -> None:
        member.inbox = member.process.run.remote(job.task, job.seat(member.rank))

    def receive(self, timeout: float) -> Iterator[tuple[Member, str | Ended]]:
        waiting = {member.inbox: member for member in self.members if member.inbox is not None}
        if waiting and ray.wait(list(waiting), timeout=timeout)[0]:
            for ref in ray.wait(list(waiting), num_returns=len(waiting), timeout=0.0)[0]:
                yield waiting[ref], self._hear(waiting[ref])
        elif time.monotonic() - self._since > PATIENCE and not any(x.address for x in self.members):
            self._since, there = time.monotonic(), ray.cluster_resources()
            found = {kind: there.get(kind, 0.0) for kind in self._backend.needs}
            words = "waiting for a machine with %s free; the cluster has %s"
            logger.warning(words, self._backend.needs, found)

    def cancel(self) -> None:
        with self._session:
            for member in self.members:
                ray.kill(member.process)

    def _hear(self, member: Member) -> str | Ended:
        try:
            answer, member.inbox = ray.get(member.inbox), None
        except ray.exceptions.RayTaskError as error:  # the worker could not report its own error
            raise SearchError(f"a worker failed: {error}") from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0 if member.address else -1]
            return Died(f"its worker died: {reason}")
        if isinstance(answer, str):
            return answer
        ended, calls = answer
        self._count(calls)
        return ended


def run_with_companions(
    sharing: LaneSharing, worker: Worker, task: Task, needs: Mapping[str, float], make: MakeActor
) -> Outcome:
    """Return the outcome of a Tune trial's task, run by its worker and companion actors.

    The companions use free resources of the cluster until the task ends; `make` builds workers.
    """
    size, alone = 1, sharing.speeds.get(1)
    if alone is not None and lanes_of(task) > 1 and ray.is_initialized():
        size = sharing.workers(task, 1 + room_for(needs, ray.available_resources()))
        size = size if task.calls / alone * (1.0 - 1.0 / size) > GAIN else 1
    actors = [start_actor(needs, make) for _ in range(size - 1)]
    try:
        refs = {actor.ready.remote(): actor for actor in actors}
        # Fewer, if other programs took the resources; a dead one shows when the group connects.
        ready = ray.wait([*refs], num_returns=size - 1, timeout=PATIENCE)[0] if refs else []
        job = Job(task, sharing.workers(task, 1 + len(ready)), "")
        if job.size > 1:
            logger.info("%s: %d workers a step", task.id, job.size)
            address, _server = meeting_place(ray.util.get_node_ip_address())
            job.address = f"{address}/0"
        for rank, ref in enumerate(ready[: job.size - 1], 1):
            refs[ref].run.remote(task, job.seat(rank))
        outcome = worker.run(task, job.seat(0))
        if isinstance(task, TrainTask):
            sharing.learn(job.size, task.calls, time.monotonic() - job.since)
        return outcome
    except GroupLost as lost:
        logger.warning("%s: %s; it is run again, alone", task.id, lost)
    finally:
        for actor in actors:
            ray.kill(actor)
    return worker.run(task)


def load_compiler() -> None:
    """Load PyTorch's compiler in the background; the first optimizer would wait seconds for it."""
    threading.Thread(target=importlib.import_module, args=("torch._dynamo",), daemon=True).start()


def start_actor(needs: Mapping[str, float], make: MakeActor) -> Any:
    """Return a new `WorkerActor`, which starts when these resources are free."""
    cpus, gpus = needs.get("CPU", 0.0), needs.get("GPU", 0.0)
    # DEFAULT: not inside the placement group of a Tune trial, which has no room for it.
    kind = ray.remote(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="DEFAULT")(WorkerActor)
    return kind.remote(make, cpus)


def room_for(needs: Mapping[str, float], there: Mapping[str, float]) -> int:
    return min(int(there.get(kind, 0.0) / need) for kind, need in needs.items() if need)


@contextlib.contextmanager
def _session(backend: RayBackend) -> Iterator[None]:
    """Use the Ray session of this process, or start one and end it afterwards."""
    if ray.is_initialized():
        yield
        return
    address = backend.address or os.environ.get("RAY_ADDRESS")  # set in submitted jobs
    # "local", because with None Ray joins the cluster that was last started on this machine.
    own: Any = {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        if address is not None and ":" in address:  # Ray itself would try for minutes
            place = urlsplit(address if "//" in address else f"//{address}")
            socket.create_connection((place.hostname, place.port or 0), timeout=10.0).close()
        ray.init(log_to_driver=False, **own)
    except Exception as fault:  # Ray raises a bare Exception if a node starts too slowly
        where = f"no Ray cluster answers at {address!r}" if address else "Ray did not start here"
        raise SearchError(f"address: {where}: {fault}") from fault
    try:
        there = ray.cluster_resources()
        if not address and not room_for(backend.needs, there):
            found = {kind: there.get(kind, 0.0) for kind in backend.needs}
            raise InputError(f"a task needs {backend.needs}, but this machine has {found}")
        yield
    finally:
        ray.shutdown()
