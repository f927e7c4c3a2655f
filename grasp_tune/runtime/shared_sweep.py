"""A sweep whose workers are started by somebody else, such as Ray Tune.

Whoever starts them asks `next` for work and hands on what they report. What a task found is read
from the shared storage, where its worker put it before it reported, so that reports may come
twice, late, from unknown workers, or not at all. The last piece of work, `select`, leaves the
chosen model in the storage.
"""

import hashlib
import json
import logging
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs as arrow
from torch import nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError
from grasp_tune.core.records import Json
from grasp_tune.core.search import ATTEMPTS, Progress, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, ProbeOutcome, Task, TrainOutcome
from grasp_tune.engine.checkpoints import Tensors, model_tensors
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_storage import CHOSEN, SharedStorage

logger = logging.getLogger(__name__)

SELECT = "select"  # id of the last piece of work


@dataclass(frozen=True, slots=True, repr=False)
class Work:
    """What a worker is to do, with all that it needs besides the problem and the storage."""

    run: str  # which sweep; its folder in the storage
    task: Task | None  # None: put the chosen model where users find it
    spec: SweepSpec
    bases: Mapping[str, Factory]
    search: Search | None = None  # which has ended, where there is no task

    @property
    def id(self) -> str:
        return SELECT if self.task is None else self.task.id

    def __repr__(self) -> str:
        return f"<{self.id}>"  # frameworks write it into files and tables


class SharedSweep(Ledger):
    """The search, who works on what, and what each of them said.

    spec: everything that fixes the sweep.
    bases: the user's own optimizers by name.
    width_known: whether `spec.width` is decided; otherwise the first outcome says it.
    """

    def __init__(self, spec: SweepSpec, bases: Mapping[str, Factory], *, width_known: bool) -> None:
        super().__init__(Search(spec))
        self._given, self.bases, self._width_known = spec, bases, width_known
        # Names the sweep's folder in the storage: what fixes the sweep, and which time it is run.
        self._kind = hashlib.blake2b(json.dumps(spec.to_dict()).encode(), digest_size=6).hexdigest()
        self.run = self._kind + uuid.uuid4().hex[:8]
        self.storage: SharedStorage | None = None
        self.selected, self._select_failures = False, 0
        self._under_way: dict[str, int] = {}  # oracle calls of running tasks, as last reported

    def begin_again(self, **changes: Any) -> None:
        """Change the spec, before anything but the probe has ended."""
        before = self.search
        self.search = Search(replace(before.spec, **changes))
        self.search.repeated, self.search.notes = before.repeated, before.notes

    @property
    def progress(self) -> Progress:
        """Where the search stands; calls of running tasks are counted as last reported."""
        found = self.search.progress
        return replace(found, calls=found.calls + sum(self._under_way.values()))

    def next(self, owner: str = "") -> Any:
        """Return the owner's `Work`, or that others must end first, or that all is done."""
        while not isinstance(step := super().next(owner), Step):
            if self.storage is not None:
                if step.id in self.search.outcomes:
                    self.storage.forget(step)  # what it left is lost
                elif (known := self.storage.read_outcome(step)) is not None:
                    self._tell(step.id, *known)  # a run that was cut off had done it
                    continue
            return Work(self.run, step, self.search.spec, self.bases)
        if step is Step.WAIT or self.selected:
            return step
        if self.running:
            return Step.WAIT
        self.running[SELECT] = owner
        return Work(self.run, None, self.search.spec, self.bases, self.search)

    def hear(self, owner: str, row: Mapping[str, Any]) -> None:
        """Learn from what an owner reports: `ended_row`, `fault_row`, or a sign of life."""
        key, status, lost = str(row.get("task")), row.get("status"), row.get("checkpoint")
        if row.get("run") != self.run:
            return
        if status == "running":
            self._under_way[key] = int(row.get("oracle_calls", 0))
        elif status == "ended":
            if self.storage is None:
                self.storage = SharedStorage(arrow.LocalFileSystem(), str(row["folder"]))
            self._end(key, self.storage)
        elif status == "fault" and self.running.get(key) == owner:  # else it was heard before
            if lost is None:
                raise SearchError(f"{key} cannot be done: {row.get('reason')}")
            self.ended(key, CheckpointError(f"checkpoint {lost} cannot be read", str(lost)))

    def _end(self, key: str, storage: SharedStorage) -> None:
        self.selected = self.selected or key == SELECT
        task, known = self.search.tasks.get(key), key in self.search.outcomes
        if known and key not in self.running:
            return  # heard before
        record = None if task is None else storage.read_outcome(task)
        if record is not None:
            self._tell(key, *record)
        elif task is None:
            self.running.pop(key, None)
        elif not known:  # else it comes late, and the task is being done again
            raise SearchError(
                f"{key} ended, but its outcome is not in the storage that the driver sees: with "
                "several machines, storage_path must be a shared folder (NFS) or a bucket "
                "(s3://..., gs://...) that all of them, and this one, can reach"
            )

    def _tell(self, key: str, outcome: Outcome, width: int) -> None:
        if not self._width_known:  # as the model's shape asks
            self._width_known = True
            self.begin_again(width=width)
        self.ended(key, outcome)

    def ended(self, task: Task | str, how: Ended) -> None:
        key = task if isinstance(task, str) else task.id
        self._under_way.pop(key, None)
        if isinstance(how, Died):
            logger.warning("%s failed in trial %s: %s", key, self.running.get(key), how.reason)
            self._select_failures += key == SELECT
            if self._select_failures > ATTEMPTS:
                raise SearchError(f"the chosen model cannot be written: {how.reason}")
        if key == SELECT and isinstance(how, CheckpointError) and how.key is not None:
            self.search.make_again(how.key)
        super().ended(key, how)
        if self.storage is not None:
            for garbage in self.search.discardable():
                self.storage.store.delete(garbage)

    def result(self, build: Callable[[], nn.Module] | None) -> Result:
        """Return the result; the best so far, marked partial, where the sweep has not ended."""
        if self.storage is None:
            raise SearchError("there is no result yet: nothing has been run")
        search, store = self.search, self.storage.store
        key = CHOSEN if self.selected else search.partial().key
        self.settle(self.storage.calls.total)
        if key == START and not store.exists(START) and build is not None:
            return Result.of(search, model_tensors(build()), build)  # nothing has ended
        return Result.of(search, store.read(key).tensors, build)

    def state(self) -> dict[str, Json]:
        """Return as JSON values what is needed to go on besides the outcomes in the storage."""
        search = {"repeated": self.search.repeated, "notes": list(self.search.notes)}
        own = {"spec": self._given.to_dict(), "run": self.run, "selected": self.selected}
        return {"format": 3, **search, **own}

    def load(self, state: Json) -> None:
        """Go on from `state`, in a new sweep; raise where it belongs to another one."""
        if not isinstance(state, dict) or state.get("format") != 3:
            raise InputError("not a sweep's state of format 3")
        if difference := self._given.difference(state["spec"]):
            raise InputError(f"the saved search differs from this one: {difference}")
        self.search.repeated, self.search.notes = state["repeated"], state["notes"]
        self.run, self.selected = state["run"], state["selected"]

    def adopt(self, filesystem: arrow.FileSystem, folder: str) -> bool:
        """Go on from what the latest run of this very sweep left in a folder, if there is one."""
        found = filesystem.get_file_info(arrow.FileSelector(folder, allow_not_found=True))
        mine = [run for run in found if run.base_name.startswith(self._kind)]
        if mine:
            self.run = max(mine, key=lambda run: run.mtime_ns or 0).base_name
        return bool(mine)


# -- what a worker does and reports --------------------------------------------------------------


def ended_row(storage: SharedStorage, outcome: Outcome) -> dict[str, Any]:
    """Return the report of a task whose outcome is in the storage."""
    row = {"status": "ended", "folder": storage.path, "oracle_calls": outcome.calls}
    if isinstance(outcome, ProbeOutcome):
        row |= {"train_loss": outcome.value, "gradient_norm": outcome.gradient_norm}
    elif isinstance(outcome, TrainOutcome):
        finite = [item for item in outcome.segments if item.finite and math.isfinite(item.loss)]
        if finite:
            best = min(finite, key=lambda item: item.loss)
            row |= {"train_loss": best.loss, "gradient_norm": best.window_norm}
    return row


def fault_row(error: GraspError, work: Work) -> dict[str, Any]:
    """Return the report of what the driver is to know: a lost checkpoint, or a refusal.

    Raises a `CheckpointError` again that another try may mend, elsewhere perhaps: a full disk.
    """
    if not isinstance(error, CheckpointError):
        return {"status": "fault", "reason": f"{type(error).__name__}: {error}"}
    reads = () if work.task is None else work.task.reads
    chosen = () if work.search is None else (work.search.partial().key,)
    if error.key not in (*reads, *chosen):
        raise error
    return {"status": "fault", "checkpoint": error.key}


def select_model(
    storage: SharedStorage, search: Search, place: Callable[[str], Tensors]
) -> tuple[Result, dict[str, Any]]:
    """Leave the chosen model and the result in the storage; return the latter and the report.

    place: puts a model at a checkpoint, and returns its tensors.
    """
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
    return result, {"status": "ended", "folder": storage.path, "score": result.score, "loss": loss}
