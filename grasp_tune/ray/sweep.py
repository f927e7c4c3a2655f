"""One sweep as Tune's trials see it: which task is with which trial, and what each of them said.

Between the search, which knows tasks, and the searcher, which speaks Tune. What a task found is
read from the storage, where its worker put it before it reported, so that notices may come twice,
late, from unknown trials, or not at all.
"""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.records import Json
from grasp_tune.core.search import ATTEMPTS, Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, Task, outcome_from_dict
from grasp_tune.ray.depot import Depot
from grasp_tune.ray.work import KEY, SELECT, Selection, Work

logger = logging.getLogger(__name__)


class Sweep:
    """The search, and who works on what."""

    def __init__(self, spec: SweepSpec, *, width_known: bool) -> None:
        self.search = Search(spec)
        self.run = uuid.uuid4().hex[:12]  # names the sweep's folder in the storage
        self.selected = False  # the last trial has ended
        self.under_way: dict[str, int] = {}  # oracle calls of running tasks, as last reported
        self.depot: Depot | None = None
        self._width_known = width_known  # otherwise the first outcome says it
        self._issued: dict[str, str] = {}  # task id -> the trial that works on it
        self._attempts: dict[str, int] = {}  # task id -> how often its checkpoints were lost
        self._select_failures = 0
        self._folder: str | None = None  # of the depot, where it is a folder of this machine

    @property
    def spec(self) -> SweepSpec:
        """Everything that fixes the sweep; its width is known from the first outcome on."""
        return self.search.spec

    # -- asking ----------------------------------------------------------------------------------

    def next_work(self, trial_id: str) -> Work | Step:
        """Return the trial's work, or that others must end first, or that all is done."""
        while True:
            step = self.search.ask()
            if step is Step.DONE:
                return self._conclude(trial_id)
            if step is Step.WAIT:
                if not self._issued:
                    raise SearchError("the search waits although nothing runs")
                return Step.WAIT
            assert not isinstance(step, Step)
            if step.id not in self._issued and not self._is_known(step):
                return self._issue(step, trial_id)

    def compare(self, live: Mapping[str, Mapping[str, Any]]) -> None:
        """Compare what should be running with what is: after a restore, much may have changed."""
        running: dict[str, str] = {}
        for trial_id, config in live.items():
            own = config.get(KEY)
            if isinstance(own, Mapping) and own.get("run") == self.run:
                running[str(own.get("task"))] = trial_id
        for key in [key for key in self._issued if key not in running]:
            logger.info("the trial of %s is gone without a word: it is issued again", key)
            del self._issued[key]
            self.search.release(key)
        self._issued.update(running)

    def _is_known(self, task: Task) -> bool:
        """Learn a task's outcome from the storage, where a run that was cut off left it."""
        if self.depot is None or task.id in self.search.outcomes or task.id in self._attempts:
            return False
        record = self.depot.read_outcome(task)
        if record is None:
            return False
        self._tell(task, *record)
        return True

    def _issue(self, task: Task | Selection, trial_id: str) -> Work:
        if task.id in self.search.outcomes:  # a task that ended: its checkpoints are lost
            self._attempts[task.id] = self._attempts.get(task.id, 0) + 1
        self._issued[task.id] = trial_id
        logger.debug("trial %s: %s", trial_id, task.id)
        return Work(self.run, task, self.spec.to_dict(), self._attempts.get(task.id, 0))

    def _conclude(self, trial_id: str) -> Work | Step:
        """Return the last trial; then that all is done."""
        if self.selected:
            return Step.DONE
        if self._issued:
            return Step.WAIT
        failures = self.search.state()["failures"]
        return self._issue(Selection(self.search.partial().key, failures), trial_id)

    # -- hearing ---------------------------------------------------------------------------------

    def hear(self, row: Mapping[str, Any]) -> None:
        """Learn from a report: how far a task is, or how it ended."""
        if row.get("run") != self.run:
            return
        key, status = str(row.get("task")), row.get("status")
        if int(row.get("attempt", 0)) != self._attempts.get(key, 0):
            return  # late, of an attempt that has been given up
        if status == "running":
            self.under_way[key] = int(row.get("oracle_calls", 0))
            return
        self.under_way.pop(key, None)
        if status == "refused":
            raise SearchError(f"{key} cannot be done: {row.get('reason')}")
        if status == "lost checkpoint":
            self._lose(key, str(row.get("checkpoint")))
        elif status == "ended":
            if self.depot is None and row.get("folder"):
                self.depot = Depot.at(str(row["folder"]))
            self._end(key)

    def fail(self, trial_id: str, reason: str) -> None:
        """Learn that a trial is over; whatever it had not ended has failed."""
        for key in [key for key, trial in self._issued.items() if trial == trial_id]:
            del self._issued[key]
            self.under_way.pop(key, None)
            logger.warning("%s failed in trial %s: %s", key, trial_id, reason)
            if key == SELECT:
                self._count_failure(reason)
            else:
                self.search.tell(key, None, reason)

    def _end(self, key: str) -> None:
        issued = self._issued.pop(key, None)
        if key == SELECT:
            self.selected = True
            return
        task = self.search.tasks.get(key)
        if task is None or (key in self.search.outcomes and issued is None):
            return  # unknown, or heard before
        record = None if self.depot is None else self.depot.read_outcome(task)
        if record is None:
            raise SearchError(
                f"{key} ended, but its outcome is not in {self.depot}: with several machines, "
                "storage_path must be a shared folder (NFS) or a bucket (s3://..., gs://...) that "
                "all of them, and this one, can reach"
            )
        self._tell(task, *record)

    def _tell(self, task: Task, outcome: Outcome, width: int) -> None:
        if not self._width_known:
            self._decide_width(width)
        self.search.tell(task.id, outcome)
        if self.depot is not None:
            for key in self.search.discardable():
                self.depot.store.delete(key)

    def _decide_width(self, width: int) -> None:
        """Start over with the width that the model's shape asks for: nothing but x0 was sampled."""
        before = self.search
        self.search = Search(replace(before.spec, width=width))
        if before.tasks != self.search.tasks:
            raise SearchError("the first round depends on `fused`: set it to True or False")
        self.search.replay(before.outcomes, before.state()["failures"])
        self._width_known = True

    def _lose(self, key: str, checkpoint: str) -> None:
        self._issued.pop(key, None)
        if key == SELECT:
            self._count_failure(f"checkpoint {checkpoint} cannot be read")
            self.search.make_again(checkpoint)
        else:
            self.search.lost_checkpoint(key, checkpoint)

    def _count_failure(self, reason: str) -> None:
        self._select_failures += 1
        if self._select_failures > ATTEMPTS:
            raise SearchError(f"the chosen model cannot be written: {reason}")

    # -- state -----------------------------------------------------------------------------------

    def open_depot(self) -> Depot | None:
        """Return the sweep's folder in the storage, None where nothing was run yet."""
        if self.depot is None and self._folder is not None:
            self.depot = Depot.at(self._folder)
        return self.depot

    def state(self) -> dict[str, Json]:
        """Return everything needed to go on, as JSON values."""
        folder = self._folder
        if self.depot is not None:
            folder = None if self.depot.folder is None else str(self.depot.folder)
        return {
            "format": 1,
            "run": self.run,
            "width_known": self._width_known,
            "search": self.search.state(),
            "issued": dict(self._issued),
            "attempts": dict(self._attempts),
            "selected": self.selected,
            "select_failures": self._select_failures,
            "folder": folder,
        }

    def load(self, state: Json) -> None:
        """Go on from `state`; raise where it belongs to another sweep."""
        if not isinstance(state, dict) or state.get("format") != 1:
            raise InputError("not a searcher's state of format 1")
        stored, spec = dict(state["search"]["spec"]), self.spec
        if state["width_known"] and not self._width_known:
            spec = replace(spec, width=int(stored["width"]))
        mine = spec.to_dict()
        if differing := [key for key in mine if mine[key] != stored.get(key)]:
            pairs = [f"{key} {stored.get(key)!r} became {mine[key]!r}" for key in differing]
            raise InputError(f"the saved sweep differs from this one: {'; '.join(pairs)}")
        outcomes = state["search"]["outcomes"].items()
        known = {key: outcome_from_dict(item) for key, item in outcomes}
        search = _replayed(spec, known, state["search"]["failures"])
        search.repeated = int(state["search"]["repeated"])
        self.search, self.run = search, str(state["run"])
        self.selected, self._width_known = bool(state["selected"]), bool(state["width_known"])
        self._issued, self._attempts = dict(state["issued"]), dict(state["attempts"])
        self._select_failures = int(state["select_failures"])
        self._folder, self.depot = state["folder"], None


def _replayed(
    spec: SweepSpec, known: Mapping[str, Outcome], failures: Mapping[str, list[str]]
) -> Search:
    """Return a search that has learned these outcomes.

    Where what failed was given up and left nothing to go on with, it is tried again: a state that
    was saved just after the last failure is no different from one that was saved just before it.
    """
    search = Search(spec)
    try:
        search.replay(known, failures)
    except SearchError:
        search = Search(spec)
        search.replay(known)
    return search
