"""A sweep whose workers are started by somebody else, such as Ray Tune.

Whoever starts them asks `next` for work and hands on what they report. What a task found is read
from the shared storage, where its worker put it before it reported, so that reports may come
twice, late, from unknown workers, or not at all. The last piece of work, `select`, leaves the
chosen model in the storage.
"""

import contextlib
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from pyarrow import fs as arrow
from torch import nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError
from grasp_tune.core.records import Json, fingerprint
from grasp_tune.core.search import ATTEMPTS, Progress, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, ProbeOutcome, Task, TrainOutcome
from grasp_tune.engine.checkpoints import Tensors, model_tensors
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.driver import SELECT, Ledger
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_storage import CHOSEN, SharedStorage
from grasp_tune.runtime.store import discard

logger = logging.getLogger(__name__)

HEARTBEAT = 30.0  # seconds between two reports of a task under way


@dataclass(frozen=True, slots=True, repr=False)
class Work:
    """What a worker is to do, with all that it needs besides the problem and the storage."""

    run: str  # which sweep; its folder in the storage
    task: Task  # or `SELECT`: put the chosen model where users find it
    spec: SweepSpec
    bases: Mapping[str, Factory]
    search: Search | None = None  # which has ended, for `SELECT`

    def __repr__(self) -> str:
        return f"<{self.task.id}>"  # frameworks write it into files and tables


class SharedSweep(Ledger):
    """The search, who works on what, and what each of them said."""

    def __init__(self, spec: SweepSpec, bases: Mapping[str, Factory], *, width_known: bool) -> None:
        super().__init__(Search(spec), select=True)
        self._given, self.bases = spec, bases
        self._width_known = width_known  # otherwise the first outcome says it
        # Names the sweep's folder in the storage: what fixes the sweep, and which time it is run.
        self._kind = fingerprint(spec.to_dict())
        self.run = self._kind + uuid.uuid4().hex[:8]
        self.storage: SharedStorage | None = None
        self._under_way: dict[str, int] = {}  # oracle calls of running tasks, as last reported

    def begin_again(self, **changes: Any) -> None:
        """Change the spec, before anything but the probe has ended."""
        before = self.search
        self.search = Search(replace(before.spec, **changes))
        self.search.repeated, self.search.notes = before.repeated, before.notes
        self.search.replay({}, before.failures)

    @property
    def progress(self) -> Progress:
        """Where the search stands; calls of running tasks are counted as last reported."""
        found = self.search.progress
        return replace(found, calls=found.calls + sum(self._under_way.values()))

    def next(self, owner: str = "") -> Any:
        """Return the owner's `Work`, or that others must end first, or that all is done."""
        while not isinstance(step := super().next(owner), Step):
            if step is not SELECT and self.storage is not None:
                if step.id in self.search.outcomes:
                    self.storage.forget(step)  # what it left is lost
                elif (known := self.storage.read_outcome(step)) is not None:
                    self._tell(step.id, *known)  # a run that was cut off had done it
                    continue
            ended = self.search if step is SELECT else None
            return Work(self.run, step, self.search.spec, self.bases, ended)
        return step

    def hear(self, owner: str, row: Mapping[str, Any]) -> None:
        """Learn from what an owner reports: what `SharedTrial` says."""
        key, status, lost = str(row.get("task")), row.get("status"), row.get("checkpoint")
        if row.get("run") != self.run:
            return
        if status == "running":
            self._under_way[key] = int(row.get("oracle_calls", 0))
        elif status == "fault" and self.running.get(key) == owner:  # else it was heard before
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
                self.running.pop(key, None)  # of a sweep just restored: the storage knows it
            elif (record := self.storage.read_outcome(task)) is not None:
                self._tell(key, *record)
            elif not known:  # else it comes late, and the task is being done again
                raise SearchError(
                    f"{key} ended, but its outcome is not in the storage that the driver sees: "
                    "with several machines, storage_path must be a shared folder (NFS) or a bucket "
                    "(s3://..., gs://...) that all of them, and this one, can reach"
                )

    def _tell(self, key: str, outcome: Outcome, width: int) -> None:
        if not self._width_known:  # as the model's shape asks
            self._width_known = True
            self.begin_again(width=width)
        self.ended(key, outcome)

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
        """Return the result; the best so far, marked partial, where the sweep has not ended."""
        if self.storage is None:
            raise SearchError("there is no result yet: nothing has been run")
        search, store = self.search, self.storage.store
        self.settle(self.storage.calls.total)
        if self.selected:
            return Result.of(search, store.read(CHOSEN).tensors, build)
        if build is not None and search.partial().key == START and not store.exists(START):
            return Result.of(search, model_tensors(build()), build)  # nothing has ended
        return Result.of(search, self.best_tensors(store), build)

    def state(self) -> dict[str, Json]:
        search = {name: getattr(self.search, name) for name in ("repeated", "notes", "failures")}
        own = {"spec": self._given.to_dict(), "run": self.run, "selected": self.selected}
        return {"format": 3, **search, **own}

    def load(self, state: Json) -> None:
        """Go on from `state`, in a new sweep; raise where it belongs to another one."""
        if not isinstance(state, dict) or state.get("format") != 3:
            raise InputError("not a sweep's state of format 3")
        if difference := self._given.difference(state["spec"]):
            raise InputError(f"the saved search differs from this one: {difference}")
        self.search.repeated, self.search.notes = state["repeated"], state["notes"]
        self.search.replay({}, state.get("failures"))
        self.run, self.selected = state["run"], state["selected"]

    def adopt(self, filesystem: arrow.FileSystem, folder: str) -> bool:
        """Go on from what the latest run of this very sweep left in a folder, if there is one."""
        found = filesystem.get_file_info(arrow.FileSelector(folder, allow_not_found=True))
        mine = [run for run in found if run.base_name.startswith(self._kind)]
        if mine:
            self.run = max(mine, key=lambda run: run.mtime_ns or 0).base_name
        return bool(mine)


def fault_row(error: GraspError, work: Work) -> dict[str, Any]:
    """Return the report of what the driver is to know: a lost checkpoint, or a refusal.

    Raises a `CheckpointError` again that another try may mend, elsewhere perhaps: a full disk.
    """
    if not isinstance(error, CheckpointError):
        return {"status": "fault", "reason": f"{type(error).__name__}: {error}"}
    if error.key not in (work.task.reads if work.search is None else [work.search.partial().key]):
        raise error
    return {"status": "fault", "checkpoint": error.key}


class SharedTrial:
    """What a worker does around its work, and what it reports; see `loop.task_optimizer.TaskTrial`.

    open_storage: gives the sweep's storage, as this machine sees it.
    report: tells the driver, with the chosen model where there is a result.
    silence: seconds since the driver last heard of the worker.
    """

    def __init__(
        self,
        work: Work,
        open_storage: Callable[[], SharedStorage],
        report: Callable[[dict[str, Any], Result | None], None],
        silence: float = 0.0,
    ) -> None:
        self.work, self.seed, self._report = work, work.spec.seed, report
        self.task = work.task if work.search is None else None
        self._calls, self._reported = 0, time.monotonic() - silence
        with self.faults():
            self.storage = open_storage()
        self.store = self.storage.store
        known = None if self.task is None else self.storage.read_outcome(self.task)
        if known is not None:  # a worker that was cut off had done it
            self._ended(known[0])
        self._add = self.storage.calls.counter()

    def _last(self, row: dict[str, Any]) -> NoReturn:
        """Report, and end the worker's function the way Tune does: it leaves `report` like this."""
        self._report({**row, "done": True}, None)
        raise SystemExit(0)

    def called(self, calls: int) -> None:
        self.count(1)

    def count(self, calls: int) -> None:
        """Count oracle calls, and report now and then how many were made."""
        self._add(calls)
        self._calls += calls
        if time.monotonic() - self._reported > HEARTBEAT:
            self._reported = time.monotonic()
            self._report({"status": "running", "oracle_calls": self._calls}, None)

    def end(self, outcome: Outcome, width: int = 0) -> NoReturn:
        """Put the outcome into the storage, then report it; see `SharedStorage.write_outcome`."""
        assert self.task is not None
        self.storage.write_outcome(self.task, outcome, width)
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
        self._last(row)

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Report what the driver is to know, in place of an error of the worker."""
        try:
            yield
        except GraspError as error:
            self._last(fault_row(error, self.work))

    def select(self, place: Callable[[str], Tensors], **more: Any) -> Result:
        """Leave the chosen model and the result in the storage, and report them."""
        search, storage = self.work.search, self.storage
        assert search is not None
        tensors = place(search.partial().key)
        storage.store.write(CHOSEN, tensors, {})
        Ledger(search).settle(storage.calls.total)
        result = Result.of(search, tensors)
        if storage.folder is not None:
            result.write(storage.folder)
        loss, outcomes = result.loss, search.outcomes.values()
        if math.isnan(loss):  # x0 was chosen, by its gradient
            probes = [x.value for x in outcomes if isinstance(x, ProbeOutcome) and x.values]
            loss = (probes or [loss])[-1]
        row = {"status": "ended", "folder": storage.path, "score": result.score, "loss": loss}
        self._report({**row, **more}, result)
        return result
