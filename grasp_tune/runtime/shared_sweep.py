"""A sweep whose workers are started by somebody else, such as Ray Tune: the driver's side.

Whoever starts them asks `next` for work and hands on what they report. What a task found is read
from the shared storage, where its worker put it before it reported, so that reports may come
twice, late, from unknown workers, or not at all. The last piece of work, `select`, leaves the
chosen model in the storage.
"""

import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pyarrow import fs as arrow
from torch import nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import CheckpointError, InputError, SearchError
from grasp_tune.core.records import Json
from grasp_tune.core.search import ATTEMPTS, Progress, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, Task
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.optimizers.registry import Factory
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.executor import Died
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_storage import CHOSEN, SharedStorage

logger = logging.getLogger(__name__)

SELECT = "select"  # id of the last piece of work
KEPT = ("run", "width_known", "selected", "select_failures", "attempts")  # in a saved state


@dataclass(frozen=True, slots=True)
class Selection:
    """The last piece of work: put the chosen model where users find it."""

    id: ClassVar[str] = SELECT
    phase: ClassVar[str] = SELECT
    calls: ClassVar[int] = 0
    reads: tuple[str]  # the chosen checkpoint


@dataclass(frozen=True, slots=True, repr=False)
class Work:
    """One task, with everything that a worker needs besides the problem and the storage."""

    run: str  # which sweep; its folder in the storage
    task: Task | Selection
    spec: SweepSpec
    bases: Mapping[str, Factory]
    attempt: int = 0  # above 0: done before, but what it left is lost

    @property
    def reads(self) -> tuple[str, ...]:
        """Keys of the checkpoints that it needs."""
        return self.task.reads

    def __repr__(self) -> str:
        return f"<{self.task.id}>"  # frameworks write it into files and tables


class SharedSweep:
    """The search, who works on what, and what each of them said.

    spec: everything that fixes the sweep.
    bases: the user's own optimizers by name.
    width_known: whether `spec.width` is decided; otherwise the first outcome says it.
    """

    def __init__(self, spec: SweepSpec, bases: Mapping[str, Factory], *, width_known: bool) -> None:
        # Names the sweep's folder in the storage: what fixes the sweep, and which time it is run.
        self._kind = hashlib.blake2b(json.dumps(spec.to_dict()).encode(), digest_size=6).hexdigest()
        self.run = self._kind + uuid.uuid4().hex[:8]
        self.ledger = Ledger(Search(spec))
        self.bases = bases
        self.storage: SharedStorage | None = None
        self.width_known = width_known
        self.selected, self.select_failures = False, 0
        self.attempts: dict[str, int] = {}  # task id -> how often its checkpoints were lost
        self._under_way: dict[str, int] = {}  # oracle calls of running tasks, as last reported

    @property
    def search(self) -> Search:
        """The search; made anew when the width becomes known."""
        return self.ledger.search

    def one_probe(self) -> None:
        """Have one task take the probe, unless it was said how many: x0 is that task's model."""
        if (spec := self.search.spec).probe_parts is None:
            self.ledger = Ledger(Search(replace(spec, probe_parts=1)))

    @property
    def progress(self) -> Progress:
        """Where the search stands; calls of running tasks are counted as last reported."""
        found = self.search.progress
        return replace(found, calls=found.calls + sum(self._under_way.values()))

    # -- asking ---------------------------------------------------------------------------------

    def next(self, owner: str) -> Work | Step:
        """Return the owner's work, or that others must end first, or that all is done."""
        while not isinstance(step := self.ledger.next(owner), Step):
            lost = step.id in self.search.outcomes  # it ended, but its checkpoints are gone
            known = None if lost or self.storage is None else self.storage.read_outcome(step)
            if known is None:
                self.attempts[step.id] = self.attempts.get(step.id, 0) + lost
                return self._work(step)
            self._tell(step.id, *known)  # a run that was cut off had done it
        if step is Step.WAIT or self.selected:
            return step
        if self.ledger.running or self.storage is None:
            return Step.WAIT
        self.storage.write_search(self.search.state())
        self.ledger.running[SELECT] = owner
        return self._work(Selection((self.search.partial().key,)))

    def _work(self, task: Task | Selection) -> Work:
        return Work(self.run, task, self.search.spec, self.bases, self.attempts.get(task.id, 0))

    def follow(self, live: Mapping[str, Work], own: set[str]) -> None:
        """Compare what should be running with what is; after a restore, much may have changed.

        live: the work of every owner that has not ended.
        own: owners whose end is sure to be told.
        """
        mine = {owner: work for owner, work in live.items() if work.run == self.run}
        own.update(mine)
        now = {
            work.task.id: owner
            for owner, work in mine.items()
            if work.attempt == self.attempts.get(work.task.id, 0)
            # A function of the user's own may go on after the choice.
            and not (self.selected and work.task.id == SELECT)
        }
        self.ledger.follow(now, own)

    # -- hearing --------------------------------------------------------------------------------

    def hear(self, row: Mapping[str, Any]) -> None:
        """Learn from a report of `SharedWorker.perform`, or from a sign of life."""
        key, status = str(row.get("task")), row.get("status")
        if row.get("run") != self.run or int(row["attempt"]) != self.attempts.get(key, 0):
            return  # not ours, or late, of an attempt that has been given up
        if status == "running":
            self._under_way[key] = int(row.get("oracle_calls", 0))
            return
        self._under_way.pop(key, None)
        if status == "refused":
            self.ledger.ended(key, SearchError(f"{key} cannot be done: {row.get('reason')}"))
        elif status == "lost checkpoint":
            lost = str(row.get("checkpoint"))
            reason = f"checkpoint {lost} cannot be read"
            if key == SELECT:
                self._select_failed(reason)
                self.search.make_again(lost)
            self.ledger.ended(key, CheckpointError(reason, lost))
        elif status == "ended":
            if self.storage is None:
                self.storage = SharedStorage(arrow.LocalFileSystem(), str(row["folder"]))
            self._end(key)

    def gone(self, owner: str, reason: str) -> None:
        """Learn that an owner is over; whatever it had not ended has failed."""
        while (key := self.ledger.task_of(owner)) is not None:
            self._under_way.pop(key, None)
            logger.warning("%s failed in trial %s: %s", key, owner, reason)
            if key == SELECT:
                self._select_failed(reason)
            self.ledger.ended(key, Died(reason))

    def _end(self, key: str) -> None:
        task, issued = self.search.tasks.get(key), self.ledger.running.pop(key, None)
        self.selected = self.selected or key == SELECT
        if task is None or (key in self.search.outcomes and issued is None):
            return  # the last, or unknown, or heard before
        record = None if self.storage is None else self.storage.read_outcome(task)
        if record is None:
            raise SearchError(
                f"{key} ended, but its outcome is not in the storage that the driver sees: with "
                "several machines, storage_path must be a shared folder (NFS) or a bucket "
                "(s3://..., gs://...) that all of them, and this one, can reach"
            )
        self._tell(key, *record)

    def _tell(self, key: str, outcome: Outcome, width: int) -> None:
        if not self.width_known:  # start over as the model's shape asks: only x0 was sampled
            before = self.search
            search = Search(replace(before.spec, width=width))
            if before.tasks != search.tasks:
                raise SearchError("the first round depends on `fused`: set it to True or False")
            search.replay(before.outcomes, before.state()["failures"])
            self.ledger.search, self.width_known = search, True
        self.ledger.ended(key, outcome)
        if self.storage is not None:
            for garbage in self.search.discardable():
                self.storage.store.delete(garbage)

    def _select_failed(self, reason: str) -> None:
        self.select_failures += 1
        if self.select_failures > ATTEMPTS:
            raise SearchError(f"the chosen model cannot be written: {reason}")

    # -- result and state -----------------------------------------------------------------------

    def result(self, build: Callable[[], nn.Module] | None) -> Result:
        """Return the result; the best so far, marked partial, where the sweep has not ended."""
        if self.storage is None:
            raise SearchError("there is no result yet: nothing has been run")
        search, store = self.search, self.storage.store
        key = CHOSEN if self.selected else search.partial().key
        self.ledger.settle(self.storage.calls.total)
        if key == START and not store.exists(START) and build is not None:
            return Result.of(search, model_tensors(build()), build)  # nothing has ended
        return Result.of(search, store.read(key).tensors, build)

    def state(self) -> dict[str, Json]:
        """Return everything needed to go on, as JSON values."""
        folder = None if self.storage is None else self.storage.folder
        return {
            "format": 2,
            "search": self.search.state(),
            "running": dict(self.ledger.running),
            "folder": None if folder is None else str(folder),
            **{name: copy(getattr(self, name)) for name in KEPT},
        }

    def adopt(self, filesystem: arrow.FileSystem, folder: str) -> bool:
        """Go on from what the latest run of this very sweep left in a folder, if there is one."""
        found = filesystem.get_file_info(arrow.FileSelector(folder, allow_not_found=True))
        mine = [run for run in found if run.base_name.startswith(self._kind)]
        if mine:
            self.run = max(mine, key=lambda run: run.mtime_ns or 0).base_name
        return bool(mine)

    def load(self, state: Json) -> None:
        """Go on from `state`; raise where it belongs to another sweep."""
        if not isinstance(state, dict) or state.get("format") != 2:
            raise InputError("not a sweep's state of format 2")
        saved, spec = state["search"], self.search.spec
        if state["width_known"] and not self.width_known:
            spec = replace(spec, width=int(saved["spec"]["width"]))
        if spec.probe_parts is None:  # it may have been known by then
            spec = replace(spec, probe_parts=saved["spec"]["probe_parts"])
        try:
            search = Search.from_state(saved, spec)
        except SearchError:
            # Saved just after the last failure: no different from just before it.
            search = Search.from_state({**saved, "failures": {}}, spec)
        self.ledger = Ledger(search)
        self.ledger.running.update(state["running"])
        for name in KEPT:
            setattr(self, name, copy(state[name]))
        folder, here = state["folder"], arrow.LocalFileSystem()
        self.storage = None if folder is None else SharedStorage(here, folder)
