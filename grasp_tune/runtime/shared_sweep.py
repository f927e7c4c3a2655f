"""A sweep whose workers are started by a framework such as Ray Tune, on one machine or many.

The framework asks `next` for work and passes on the reports of the workers. All of them share a
folder or bucket, with `checkpoints/`, `outcomes/` of tasks (a small file each), `calls/` as in
`sweep_folder`, and at the end the result. An outcome is saved before it is reported. So nothing is
lost if the driver dies, and reports may come twice, late, from unknown workers, or not at all.
"""

import contextlib
import io
import json
import logging
import math
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pyarrow import fs as arrow
from torch import nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError
from grasp_tune.core.records import Json, decode, encode, fingerprint
from grasp_tune.core.search import ATTEMPTS, Progress, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, ProbeOutcome, Task, TrainOutcome, TrainTask
from grasp_tune.engine.checkpoints import Store, Tensors, model_tensors
from grasp_tune.engine.tensor_file import Content
from grasp_tune.engine.worker import Worker
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.driver import SELECT, Ledger
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import SHARED, BlobStore, CheckpointStore, discard, spooled
from grasp_tune.runtime.sweep_folder import CallCounter

logger = logging.getLogger(__name__)

HEARTBEAT = 30.0  # seconds between two reports of a running task
CHOSEN = "chosen"  # key of the chosen model's checkpoint


class ArrowStore(BlobStore):
    """A checkpoint store in a folder of a pyarrow file system."""

    def __init__(self, filesystem: arrow.FileSystem, folder: str, sweep: str) -> None:
        super().__init__(sweep)
        self._filesystem, self._folder = filesystem, folder.rstrip("/")

    def put_blob(self, name: str, content: Content) -> None:
        self._filesystem.create_dir(self._folder, recursive=True)
        with (
            spooled(content) as file,
            self._filesystem.open_output_stream(f"{self._folder}/{name}") as stream,
        ):
            shutil.copyfileobj(file, stream)

    def open_blob(self, name: str) -> BinaryIO:
        with self._filesystem.open_input_stream(f"{self._folder}/{name}") as stream:
            return io.BytesIO(stream.read())  # read at once, because a stream has no size

    def remove_blob(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(f"{self._folder}/{name}")

    def blobs(self) -> Iterable[str]:
        where = arrow.FileSelector(self._folder, allow_not_found=True)
        return (item.base_name for item in self._filesystem.get_file_info(where))


def store_on(filesystem: arrow.FileSystem, folder: str, sweep: str) -> Store:
    """Return a sweep's checkpoint store in a folder of a local or remote file system."""
    if isinstance(filesystem, arrow.LocalFileSystem):
        return CheckpointStore(Path(folder), sweep=sweep)
    return ArrowStore(filesystem, folder, sweep)


def sweep_store(storage: str, spec: SweepSpec, out: Path | None) -> Store:
    """Return a sweep's own store in a folder or bucket, the same for the same `out` and spec."""
    values = {**spec.to_dict(), "budget": 0}  # without the budget, which may be extended
    name = uuid.uuid4().hex[:16] if out is None else fingerprint(str(out.resolve()), values)
    name, place = f"grasp-{name}", storage if "://" in storage else str(Path(storage).resolve())
    try:
        filesystem, path = arrow.FileSystem.from_uri(place)
    except (OSError, ValueError) as fault:
        raise InputError(f"storage: got {storage!r}, expected a folder or URI: {fault}") from fault
    return store_on(filesystem, f"{path}/{name}", name)


class SharedStorage:
    """The folder of one sweep at `path` on a pyarrow file system; see the module docstring."""

    def __init__(self, filesystem: arrow.FileSystem, path: str) -> None:
        local = isinstance(filesystem, arrow.LocalFileSystem)
        self.path, sweep = path, path.rpartition("/")[2]  # unchanged if the experiment is moved
        self.folder = Path(path) if local else None  # None: not on this machine's file system
        self.store = store_on(filesystem, f"{path}/checkpoints", sweep)
        self._outcomes = store_on(filesystem, f"{path}/outcomes", sweep)
        # Without a folder, only the calls of one process can be counted.
        self.calls = CallCounter(None if self.folder is None else self.folder / "calls")

    def write_outcome(self, task: Task, outcome: Outcome) -> None:
        task_text, text = json.dumps(encode(task)), json.dumps(encode(outcome))
        self._outcomes.write(task.id, {}, {"task": task_text, "outcome": text})

    def read_outcome(self, task: Task) -> Outcome | None:
        """Return the saved outcome of exactly this task, None if there is none."""
        try:
            found = self._outcomes.read(task.id).meta
        except CheckpointError:
            return None
        # Another version of the schedule may have used this id for a different task.
        if found["task"] != json.dumps(encode(task)):
            return None
        return decode(Outcome, json.loads(str(found["outcome"])))

    def forget(self, task: Task) -> None:
        self._outcomes.delete(task.id)


@dataclass(frozen=True, slots=True, repr=False)
class Work:
    """A task for a worker, with everything it needs except the problem and the storage."""

    run: str  # the name of the sweep's folder in the storage
    task: Task  # or `SELECT`: save the chosen model for the user
    seed: int  # the sweep's seed
    bases: Mapping[str, Factory]
    search: Search | None = None  # only for `SELECT`: the search, which has ended

    def __repr__(self) -> str:
        return f"<{self.task.id}>"  # short, because frameworks write it to files and tables

    @property
    def words(self) -> dict[str, Any]:
        """A readable description of the task, for configs and tables."""
        words = {"task": self.task.id, "phase": self.task.phase, "budget": self.task.calls}
        if isinstance(self.task, TrainTask):
            arms = [segment.arm for segment in self.task.segments]
            cells, values = sorted(arm.index for arm in arms), sorted(arm.value for arm in arms)
            ends = {"cell": (f"{cells[0]}", f"{cells[-1]}")}
            ends["value"] = f"{values[0]:.3g}", f"{values[-1]:.3g}"
            words |= {name: "to".join(dict.fromkeys(pair)) for name, pair in ends.items()}
            words["base"] = "+".join(dict.fromkeys(arm.base.rpartition(".")[2] for arm in arms))
        return words


class SharedSweep(Ledger):
    """The ledger of a shared sweep: the search, the owners of tasks and the workers' reports."""

    def __init__(self, spec: SweepSpec, bases: Mapping[str, Factory]) -> None:
        super().__init__(Search(spec), select=True)
        self._given, self.bases = spec, bases
        # `run` names the sweep's folder in the storage: a hash of the spec, and a random part.
        self._kind = fingerprint(spec.to_dict())
        self.run = self._kind + uuid.uuid4().hex[:8]
        self.storage: SharedStorage | None = None
        self._under_way: dict[str, int] = {}  # last reported oracle calls of running tasks

    def begin_again(self, **changes: Any) -> None:
        """Start again with a changed spec; outcomes that still fit are read from the storage."""
        spec = replace(self.search.spec, **changes)
        self.search = Search.from_state(self._without_outcomes(spec), spec)

    def _without_outcomes(self, spec: SweepSpec) -> dict[str, Json]:
        return {**self.search.state(), "spec": spec.to_dict(), "outcomes": {}}

    @property
    def progress(self) -> Progress:
        """The progress of the search, including the last reported calls of running tasks."""
        found = self.search.progress
        return replace(found, calls=found.calls + sum(self._under_way.values()))

    def next(self, owner: str = "") -> Any:
        """Return `Work` for the owner; or `WAIT` if other tasks must end first; or `DONE`."""
        while not isinstance(step := super().next(owner), Step):
            if step is not SELECT and self.storage is not None:
                if step.id in self.search.outcomes:
                    self.storage.forget(step)  # its checkpoint is lost, so it runs again
                elif (known := self.storage.read_outcome(step)) is not None:
                    self.ended(step.id, known)  # done by an interrupted run
                    continue
            ended = self.search if step is SELECT else None
            return Work(self.run, step, self.search.spec.seed, self.bases, ended)
        return step

    def catch_up(self) -> None:
        """Read the outcomes in the storage, after the sweep was restored."""
        while not isinstance(self.next(), Step):
            pass
        for task in [*self.running]:
            self.give_back(task)

    def hear(self, owner: str, row: Mapping[str, Any]) -> None:
        """Record a row that an owner's `SharedTrial` has reported."""
        key, status, lost = str(row.get("task")), row.get("status"), row.get("checkpoint")
        if row.get("run") != self.run:
            return
        if status == "running":
            self._under_way[key] = int(row.get("oracle_calls", 0))
        elif status == "fault" and self.running.get(key) == owner:  # else it is a repeated report
            if lost is None:
                raise SearchError(f"{key} cannot be done: {row.get('reason')}")
            self.ended(key, CheckpointError(f"checkpoint {lost} cannot be read", str(lost)))
        elif status == "ended":
            if self.storage is None:
                self.storage = SharedStorage(arrow.LocalFileSystem(), str(row["folder"]))
            task, known = self.search.tasks.get(key), key in self.search.outcomes
            if key == SELECT.id:
                self.ended(key, SELECT)
            elif task is None or (known and key not in self.running):
                self.running.pop(key, None)  # just restored: the outcome is in the storage
            elif (outcome := self.storage.read_outcome(task)) is not None:
                self.ended(key, outcome)
            elif not known:  # else the report is late, and the task is already running again
                words = "is not in the storage that the driver sees: with several machines,"
                raise SearchError(f"{key} ended, but its outcome {words} storage_path {SHARED}")

    def ended(self, key: str, how: Ended) -> None:
        self._under_way.pop(key, None)
        if isinstance(how, Died):
            logger.warning("%s failed in trial %s: %s", key, self.running.get(key), how.reason)
        super().ended(key, how)
        if isinstance(how, Died) and self.select_failures >= ATTEMPTS:
            raise SearchError(f"the chosen model cannot be written: {how.reason}")
        if self.storage is not None:
            discard(self.storage.store, self.search.discardable())

    def result(self, build: Callable[[], nn.Module] | None) -> Result:
        """Return the result; if the sweep has not ended, the best so far, marked as partial."""
        if self.storage is None:
            raise SearchError("there is no result yet: nothing has been run")
        search, store = self.search, self.storage.store
        self.settle(self.storage.calls.total)
        if self.selected:
            return Result.of(search, store.read(CHOSEN).tensors, build)
        if build is not None and search.partial().key == START and not store.exists(START):
            return Result.of(search, model_tensors(build()), build)  # no task has ended yet
        return Result.of(search, self.best_tensors(store), build)

    def state(self) -> dict[str, Json]:
        """Return the state without the outcomes, which are in the storage."""
        search = self._without_outcomes(self._given)
        return {"search": search, "run": self.run, "selected": self.selected}

    def load(self, state: Json) -> None:
        """Continue from `state`, in a new sweep; raise an error if it belongs to another one."""
        saved = state if isinstance(state, dict) else {}
        self.search = Search.from_state(saved.get("search"), self._given)
        self.run, self.selected = saved["run"], saved["selected"]

    def adopt(self, filesystem: arrow.FileSystem, folder: str) -> bool:
        """Return whether a run of this sweep is in the folder, after adopting the latest one."""
        found = filesystem.get_file_info(arrow.FileSelector(folder, allow_not_found=True))
        mine = [run for run in found if run.base_name.startswith(self._kind)]
        if mine:
            self.run = max(mine, key=lambda run: run.mtime_ns or 0).base_name
        return bool(mine)


def fault_row(error: GraspError, work: Work) -> dict[str, Any]:
    """Return the row that reports an error to the driver: a lost checkpoint, or a permanent error.

    Other checkpoint errors, such as a full disk, are raised again: another attempt may succeed.
    """
    if not isinstance(error, CheckpointError):
        return {"reason": f"{type(error).__name__}: {error}"}
    if error.key not in (work.task.reads if work.search is None else [work.search.partial().key]):
        raise error
    return {"checkpoint": error.key}


class SharedTrial:
    """The worker's side of a shared sweep, as a `loop.task_optimizer.TaskTrial`.

    open_storage: returns the sweep's storage on this machine.
    report: reports a row to the driver, and at the end the result.
    metric: an additional column of all rows.
    silence: seconds since the worker's last report.
    """

    def __init__(
        self,
        work: Work,
        open_storage: Callable[[], SharedStorage],
        report: Callable[[dict[str, Any], Result | None], None],
        metric: str | None = None,
        silence: float = 0.0,
    ) -> None:
        self.work, self.seed, self._report = work, work.seed, report
        self.task = work.task if work.search is None else None
        self._calls, self._reported = 0, time.monotonic() - silence
        # Every row has every column. Only the last trial has numbers for `score` and `loss`, so
        # that the best trial by either of them has the chosen model.
        columns = ("score", "loss", "train_loss", "gradient_norm", metric or "score")
        names = {"task": work.task.id, "phase": work.task.phase, "run": work.run, "oracle_calls": 0}
        self._blank = {**names, **dict.fromkeys(columns, math.nan)}
        with self.faults():
            self.storage = open_storage()
        self.store = self.storage.store
        known = None if self.task is None else self.storage.read_outcome(self.task)
        if known is not None:  # done by a worker that was interrupted
            self._ended(known)
        self._add = self.storage.calls.counter()

    def _last(self, **row: Any) -> NoReturn:
        """Report, and end the worker's function by `SystemExit`, like Tune's own `report` does."""
        self._report({**self._blank, **row, "done": True}, None)
        raise SystemExit(0)

    def called(self, calls: int) -> None:
        self.count(1)

    def count(self, calls: int) -> None:
        """Count oracle calls, and report their number from time to time."""
        self._add(calls)
        self._calls += calls
        if time.monotonic() - self._reported > HEARTBEAT:
            self._reported, row = time.monotonic(), {"status": "running"}
            self._report({**self._blank, **row, "oracle_calls": self._calls}, None)

    def end(self, outcome: Outcome, worker: Worker | None = None) -> NoReturn:
        """Save the outcome in the storage, then report it; `worker` has run the task."""
        assert self.task is not None
        start = worker.start if worker is not None and isinstance(outcome, ProbeOutcome) else None
        if start is not None and not self.store.exists(START):  # needed if the sweep is stopped
            self.store.write(START, start, {})
        self.storage.write_outcome(self.task, outcome)
        self._ended(outcome)

    def _ended(self, outcome: Outcome) -> NoReturn:
        row = {"status": "ended", "folder": self.storage.path, "oracle_calls": outcome.calls}
        if isinstance(outcome, ProbeOutcome):
            row |= {"train_loss": outcome.value, "gradient_norm": outcome.gradient_norm}
        elif isinstance(outcome, TrainOutcome):
            finite = [item for item in outcome.segments if item.finite and math.isfinite(item.loss)]
            if finite:
                best = min(finite, key=lambda item: item.loss)
                row |= {"train_loss": best.loss, "gradient_norm": best.window_norm}
        self._last(**row)

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Report faults to the driver instead of raising them."""
        try:
            yield
        except GraspError as error:
            self._last(status="fault", **fault_row(error, self.work))

    def select(self, place: Callable[[str], Tensors], **more: Any) -> Result:
        """Return the result, after saving and reporting it together with the chosen model."""
        search, storage = self.work.search, self.storage
        assert search is not None
        tensors = place(search.partial().key)
        storage.store.write(CHOSEN, tensors, {})
        Ledger(search).settle(storage.calls.total)
        result = Result.of(search, tensors)
        if storage.folder is not None:
            result.write(storage.folder)
        loss, outcomes = result.loss, search.outcomes.values()
        if math.isnan(loss):  # x0 was chosen by its gradient
            probes = [x.value for x in outcomes if isinstance(x, ProbeOutcome) and x.values]
            loss = (probes or [loss])[-1]
        row = {"status": "ended", "folder": storage.path, "score": result.score, "loss": loss}
        self._report({**self._blank, **row, **more}, result)
        return result
