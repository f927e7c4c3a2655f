"""Tasks on Ray actors, on one machine or many: plain actors, without Ray Tune.

An actor holds one problem, which travels through Ray's object store once, and runs one task at a
time. Checkpoints go to the folder of the sweep or to a storage that all machines can reach.
"""

import contextlib
import hashlib
import json
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.search import ATTEMPTS
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Task
from grasp_tune.engine.checkpoints import Store
from grasp_tune.engine.lane_group import Seat, meeting_place
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.extras import missing_extra
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.call_counter import CallCounter
from grasp_tune.runtime.callbacks import reporter_for
from grasp_tune.runtime.driver import MakeWorker, run_sweep
from grasp_tune.runtime.executor import Died, Ended, portable
from grasp_tune.runtime.lane_sharing import LaneSharing, SharedTask
from grasp_tune.runtime.lock import NAME as LOCK
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.sweep_folder import SweepFolder

try:
    import ray
except ModuleNotFoundError as missing:
    raise missing_extra("ray", "ray", "grasp_tune.ray") from missing

logger = logging.getLogger(__name__)

LOOK = 2.0  # seconds between two looks at the size of the cluster
PATIENCE = 60.0  # seconds without any worker before a warning says what is waited for
SHARED = (
    "with several machines, the output folder or `storage` must be a shared folder (NFS) or a "
    "bucket (s3://..., gs://...) that all of them can reach"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayBackend:
    """How to use a cluster, for `minimize(..., backend=RayBackend(...))`.

    address: `auto`, host:port or ray://host:port; None: the session at hand, or one started here.
    workers: started at once, and busy with as many tasks, or with the lanes of one; None: as many
        as there is work for and the cluster holds, while it grows or shrinks.
    cpus_per_task, gpus_per_task: what a task reserves; fractions let tasks share.
    storage: a folder or URI that every machine can reach; None: the output folder.
    max_failures: how often a task whose worker died is started again before the search hears of it.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_task: float = 1.0
    gpus_per_task: float = 0.0
    storage: str | None = None
    max_failures: int = 2

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: got {self.workers!r}, expected a whole number >= 1")
        if self.max_failures < 0:
            raise InputError(f"max_failures: got {self.max_failures!r}, expected >= 0")
        shares = self.cpus_per_task, self.gpus_per_task
        if min(shares) < 0.0 or not any(shares):
            raise InputError(
                f"cpus_per_task, gpus_per_task: got {shares[0]!r}, {shares[1]!r}, expected shares "
                ">= 0, not both 0"
            )

    def run(
        self,
        problem: TorchProblem,
        spec: SweepSpec,
        *,
        out: Path | None = None,
        bases: Mapping[str, Factory] | None = None,
        progress: bool = False,
    ) -> Result:
        """Return the result of the sweep; the same `out` again goes on where it was cut off."""
        out = None if out is None else out.absolute()  # workers may be in another folder
        store = None if self.storage is None else _store_in(self.storage, spec, out)
        result = run_sweep(
            problem,
            spec,
            partial(RayExecutor, self),
            out=out,
            shared=True,
            store=store,
            bases=bases,
            reporter=reporter_for(progress),
        )
        if store is not None and out is None:  # nobody can go on from them
            keys = store.keys()
            for key in keys:
                store.delete(key)
        return result


class _Actor:
    """A worker process somewhere in the cluster."""

    def __init__(self, parcel: list[Any], token: str, lock: tuple[str, str], cpus: float) -> None:
        self._parcel, self._token, self._lock, self._cpus = parcel, token, lock, cpus
        self._worker: Worker | None = None
        self._uncounted: CallCounter | None = None  # where the folder's files are out of reach

    def ready(self) -> str:
        """Return, as soon as the process runs, where a group that it leads can meet."""
        address, self._server = meeting_place(ray.util.get_node_ip_address())
        return address

    def run(self, task: Task, seat: Seat | None) -> tuple[Ended, int]:
        """Return how the task ended, and the oracle calls that no file counts.

        seat: the place among the actors that share the task's lanes; None: it is alone.
        """
        before = 0 if self._uncounted is None else self._uncounted.total
        try:
            self._worker = self._worker or self._make_worker()
            ended: Ended = self._worker.run(task, seat)
        except Exception as error:
            ended = portable(error, task)
        return ended, 0 if self._uncounted is None else self._uncounted.total - before

    def _make_worker(self) -> Worker:
        import torch

        torch.set_num_threads(max(1, int(self._cpus)))
        host = ray.util.get_node_ip_address()
        try:
            make_worker = ray.get(self._parcel[0])
        except Exception as error:
            raise SearchError(f"the problem cannot be loaded on {host}: {error}") from None
        if not make_worker.store.exists(self._token):
            raise SearchError(f"{host} does not see the checkpoints of the driver: {SHARED}")
        path, text = Path(self._lock[0]), self._lock[1]
        if not path.is_file() or path.read_text() != text:
            make_worker.calls = self._uncounted = CallCounter(None)
        return make_worker()


@dataclass(eq=False)
class _Member:
    actor: Any
    waits: Any  # what it will answer next; None: it is idle
    job: SharedTask | None = None
    rank: int = 0
    address: str = ""  # where a group that it leads meets; known when it is ready


class RayExecutor:
    """An executor whose workers are Ray actors; one that dies is replaced.

    backend: the options.
    folder: the sweep's; actors on other machines must see it or its store.
    make_worker: sent to the actors.
    """

    def __init__(self, backend: RayBackend, folder: SweepFolder, make_worker: MakeWorker) -> None:
        assert folder.path is not None
        self._backend, self._store, self._usage = backend, folder.store, folder.usage
        self._sharing = LaneSharing(folder.usage)
        self._session = contextlib.ExitStack()
        self._session.enter_context(_session(backend.address))
        self._count = folder.calls.counter()
        self._members: list[_Member] = []
        self._queue: deque[Task] = deque()
        self._deaths: Counter[str] = Counter()
        self._stillborn = 0  # workers in a row that died before they were ready
        self._room, self._looked, self._since = 1, -LOOK, time.monotonic()
        self._token = f"driver-{uuid.uuid4().hex[:12]}"
        self._store.write(self._token, {}, {})
        try:
            parcel = [ray.put(make_worker)]  # in a list: the actor opens it, and can say what fails
        except Exception as error:
            self.cancel()
            raise InputError(f"problem: it cannot be sent to other processes: {error}") from error
        lock = folder.path.resolve() / LOCK
        self._start = partial(
            ray.remote(_Actor)
            .options(num_cpus=backend.cpus_per_task, num_gpus=backend.gpus_per_task)
            .remote,
            parcel,
            self._token,
            (str(lock), lock.read_text()),
            backend.cpus_per_task,
        )

    @property
    def free(self) -> bool:
        """Whether the cluster has room for another task."""
        return len(self._queue) + self._busy < self._capacity()

    @property
    def _busy(self) -> int:
        return sum(member.job is not None for member in self._members)

    def submit(self, task: Task) -> None:
        """Keep the task for the next poll, when it is known how many workers it can have."""
        self._queue.append(task)

    def poll(self, timeout: float) -> Iterator[tuple[Task, Ended]]:
        """Yield the tasks that ended, waiting a little for the first."""
        self._dispatch()
        waiting = {member.waits: member for member in self._members if member.waits is not None}
        if not waiting:
            return
        if ray.wait(list(waiting), timeout=timeout)[0]:
            for ref in ray.wait(list(waiting), num_returns=len(waiting), timeout=0.0)[0]:
                yield from self._hear(waiting[ref])
        elif not any(member.address for member in self._members):
            self._warn()
        self._note()

    def cancel(self) -> None:
        """End all workers."""
        with self._session:
            for member in self._members:
                ray.kill(member.actor)
            self._store.delete(self._token)

    # -- inside ---------------------------------------------------------------------------------

    def _hear(self, member: _Member) -> Iterator[tuple[Task, Ended]]:
        job, calls = member.job, 0
        try:
            answer = ray.get(member.waits)
        except ray.exceptions.RayTaskError as error:  # it could not even say what went wrong
            raise SearchError(f"a worker failed: {error}") from error
        except ray.exceptions.RayError as error:
            self._members.remove(member)
            ended: Ended = self._died(member, str(error).strip().splitlines())
        else:
            member.waits = member.job = None
            if job is None:
                member.address, self._stillborn = answer, 0
                return
            ended, calls = answer
        if job is None:
            return
        self._count(calls)
        job.answers[member.rank] = ended
        if job.done:
            yield from self._conclude(job)

    def _died(self, member: _Member, reasons: list[str]) -> Died:
        reason = reasons[0 if member.address else -1]
        logger.warning("a worker died: %s", reason)
        if not member.address:
            self._stillborn += 1
            if self._stillborn >= ATTEMPTS:
                raise SearchError(f"no worker process could be started: {reason}")
        return Died(f"its worker died: {reason}")

    def _conclude(self, job: SharedTask) -> Iterator[tuple[Task, Ended]]:
        task, ended = job.task, job.ended()
        self._sharing.learn(job, ended)
        if isinstance(ended, Died):
            self._deaths[task.id] += 1
            if self._deaths[task.id] <= self._backend.max_failures:
                self._queue.appendleft(task)
                return
            del self._deaths[task.id]
        yield task, ended

    def _dispatch(self) -> None:
        """Give waiting tasks to idle workers, and start as many workers as there is work for."""
        idle = [member for member in self._members if member.address and member.job is None]
        ready = [self._queue.popleft() for _ in range(min(len(idle), len(self._queue)))]
        for task, size in self._sharing.shares(ready, len(idle)):
            job = SharedTask(task, size, f"{idle[0].address}/{uuid.uuid4().hex}")
            for rank in range(size):
                member = idle.pop(0)
                member.job, member.rank = job, rank
                member.waits = member.actor.run.remote(task, job.seat(rank))
        under_way = {id(m.job): m.job.task for m in self._members if m.job is not None}
        room = self._capacity()
        tasks = (*under_way.values(), *self._queue)
        wanted = sum(self._sharing.workers(task, room) for task in tasks)
        # A number that was asked for is started at once: workers import torch during the probe.
        for _ in range(min(self._backend.workers or wanted, room) - len(self._members)):
            actor: Any = self._start()
            self._members.append(_Member(actor, actor.ready.remote()))
        self._note()

    def _note(self) -> None:
        self._usage.note(self._capacity(), self._busy)

    def _capacity(self) -> int:
        """Return how many tasks the cluster holds now, at least one."""
        if self._backend.workers is not None:
            return self._backend.workers
        if time.monotonic() - self._looked > LOOK:
            needs = {"CPU": self._backend.cpus_per_task, "GPU": self._backend.gpus_per_task}
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            held = [
                min(int(node.get(kind, 0.0) / need) for kind, need in needs.items() if need)
                for node in nodes
            ]
            self._room, self._looked = max(1, sum(held)), time.monotonic()
        return self._room

    def _warn(self) -> None:
        if time.monotonic() - self._since > PATIENCE:
            self._since = time.monotonic()
            logger.warning(
                "waiting for a machine with %g free CPUs and %g free GPUs; the cluster has %s",
                self._backend.cpus_per_task,
                self._backend.gpus_per_task,
                {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")},
            )


@contextlib.contextmanager
def _session(address: str | None) -> Iterator[None]:
    """Use the Ray session at hand; start one where there is none, and end it afterwards."""
    if ray.is_initialized():
        yield
        return
    own = {"include_dashboard": False} if address is None else {"address": address}
    try:
        ray.init(log_to_driver=False, **own)
    except ConnectionError as fault:
        raise SearchError(f"address: no Ray cluster answers at {address!r}: {fault}") from fault
    try:
        yield
    finally:
        ray.shutdown()


def _store_in(storage: str, spec: SweepSpec, out: Path | None) -> Store:
    """Return a store of this sweep's own; the same `out` and spec find it again."""
    from grasp_tune.runtime.remote_store import store_at  # needs pyarrow, which Tune brings

    name = uuid.uuid4().hex
    if out is not None:
        text = json.dumps([str(out.resolve()), spec.to_dict()], sort_keys=True)
        name = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return store_at(storage, f"grasp-{name[:16]}")
