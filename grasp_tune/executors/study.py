"""A study as the log that all processes of a sweep share: which trial holds a task, how it ended.

Each trial has a label with its task. If two processes want a task at once, the first trial with its
label holds it: a trial that we create has its label from the start; one that Optuna creates gets it
later, and its process then reads all trials again. All processes read the same trials, so their
searches make the same decisions.

This uses Optuna's storage directly: the public interface has no system attributes, nor trials with
attributes from the start.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import optuna
from optuna import Study
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from grasp_tune.core.choice import best_seen
from grasp_tune.core.errors import CheckpointError, InputError, SearchError, expect
from grasp_tune.core.records import Json, decode, encode, fingerprint
from grasp_tune.core.search import check_origin
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, TrainOutcome
from grasp_tune.runtime import files
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.schedules.cells import Cells

logger = logging.getLogger(__name__)

TASK = "grasp:task"  # trial, user attribute: its label; without a task if none was left
CALLS = "grasp:calls"  # trial: the oracle calls that it used
BEAT = "grasp:beat"  # trial: its last heartbeat
OUTCOME = "grasp:outcome"  # trial: the outcome of its task
FAULT = "grasp:fault"  # trial: why its task has no outcome: one of these, and a text
LOST, ERROR, DIED = "lost checkpoint", "error", "died"
SETTING = "grasp:spec"  # study: the sweep that runs on it
CHOICE = "grasp:choice"  # study: the chosen candidate and its certificate

SPAN = FloatDistribution(1e-300, 1e300, log=True)  # for a step size, radius or distance
FRONT = 8  # processes pick at random among this many tasks, so that they rarely want the same one
MARKS = 8  # points of a training curve that are reported, because each costs a write


def label_of(trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
    """Return a trial's label, or an empty dict for trials that are not ours."""
    label: Any = trial.user_attrs.get(TASK)
    # Optuna's retries inherit the attributes of the failed trial, including its number.
    ours = isinstance(label, dict) and label.get("trial", trial.number) == trial.number
    return label if ours else {}


def show_trial(study: Study, trial: FrozenTrial, shown: dict[str, Json]) -> None:
    """Write user attributes on a trial, in the storage and in the given object."""
    for name, value in shown.items():
        study._storage.set_trial_user_attr(trial._trial_id, name, value)
        trial.user_attrs[name] = value


def end_trial(study: Study, trial_id: int, state: TrialState, *values: float) -> bool:
    """Return whether this call has ended the trial; False if it had ended already."""
    try:
        return study._storage.set_trial_state_values(trial_id, state, values or None)
    except RuntimeError:  # UpdateFinishedTrialError
        return False


def in_memory(study: Study) -> bool:
    """Return whether no other process can see the study."""
    return isinstance(study._storage, optuna.storages.InMemoryStorage)


def in_optimize(study: Study) -> bool:
    """Return whether `study.optimize` runs in this thread, as far as Optuna tells."""
    return bool(getattr(getattr(study, "_thread_local", None), "in_optimize_loop", False))


def setting_on(study: Study, wanted: SweepSpec | None = None) -> Json:
    """Return the specification on a study as JSON values; if there is none, write `wanted` first.

    If two processes write at the same time, one wins, and both return its value: they read again.
    """
    known = study._storage.get_study_user_attrs(study._study_id)
    fine, where = f"{SETTING}:0" not in known, f"study {study.study_name!r}"
    expect(fine, where, "a sweep that version 0.2 wrote", "a new study, or that version")
    if SETTING not in known and wanted is not None:
        study._storage.set_study_user_attr(study._study_id, SETTING, wanted.to_dict())
        return setting_on(study)
    return known.get(SETTING)


def spec_on(study: Study, wanted: SweepSpec | None = None) -> SweepSpec | None:
    """Return the sweep's specification on a study; if there is none, write and return `wanted`."""
    if (data := setting_on(study, wanted)) is None:
        return None
    base = str(SweepSpec.checked(data)["method"].get("base") or "")
    # The user's own optimizer is not called here, so a type with its name is enough.
    module, own, name = base.partition(":")
    return SweepSpec.from_dict(data, {base: type(name, (), {"__module__": module})} if own else {})


@dataclass(frozen=True, slots=True)
class Timing:
    """The heartbeat settings of the workers on a study.

    every: seconds between two heartbeats.
    grace: seconds without a heartbeat after which a worker is considered dead.
    """

    every: float = 5.0
    grace: float = 60.0

    @classmethod
    def of(cls, study: Study) -> "Timing":
        """Return the heartbeat settings of the study's storage, or our defaults if it has none."""
        storage = study._storage
        every = getattr(storage, "get_heartbeat_interval", lambda: None)()
        grace = getattr(getattr(storage, "_backend", storage), "grace_period", None)
        return cls() if every is None else cls(float(every), float(grace or 2 * every))


class StudyLog:
    """The trials of one sweep on a study: which task each one holds, and how it ended."""

    def __init__(self, study: Study, spec: SweepSpec, timing: Timing | None = None) -> None:
        if difference := spec.difference(setting_on(study, spec)):
            words = f"the sweep on study {study.study_name!r} differs from this one: {difference}"
            more = ", or GraspSampler.from_study(study)" if isinstance(spec.schedule, Cells) else ""
            raise InputError(f"{words}; use a new study{more}")
        self.study, self.storage = study, study._storage
        self.sweep = fingerprint(spec.to_dict(), study.study_name)
        self.timing = timing or Timing.of(study)
        self._trials: dict[str, list[FrozenTrial]] = {}  # task id -> those that held it
        self._outcomes: dict[int, Outcome | None] = {}  # by trial number; each is read once
        self._wanted: dict[str, Any] = {}  # tasks whose end has not been reported yet, by id
        self._told = set[int]()  # the numbers of the trials whose end has been reported
        self._beats: dict[int, tuple[object, float]] = {}  # by trial: last heartbeat, and its time
        self.refresh()

    def refresh(self) -> None:
        self._trials = {}
        # Not `study.get_trials`, which may miss the last write, and which some pruners filter.
        for trial in self.storage.get_all_trials(self.study._study_id, deepcopy=False):
            label = label_of(trial)
            if label.get("sweep") == self.sweep and label["task"]:
                self._trials.setdefault(label["task"], []).append(trial)

    @property
    def trials(self) -> list[FrozenTrial]:
        return list(chain.from_iterable(self._trials.values()))

    def running(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials if not trial.state.is_finished()]

    @property
    def calls(self) -> int:
        """The oracle calls of all tasks that ended or failed, as far as their trials say."""
        total = 0
        for trial in self.trials:
            if trial.state.is_finished():
                said = {**trial.system_attrs, **trial.user_attrs}.get(CALLS, 0)
                total += int(said) if (found := self.outcome(trial)) is None else found.calls
        return total

    @property
    def origin(self) -> str | None:
        """The digest of the start point in the outcomes so far, None if there are no outcomes."""
        return next((found.origin for found in map(self.outcome, self.trials) if found), None)

    def outcome(self, trial: FrozenTrial) -> Outcome | None:
        """Return the outcome on a trial that has ended, None if there is none."""
        if trial.number not in self._outcomes and trial.state.is_finished():
            try:
                found = trial.system_attrs.get(OUTCOME)
                self._outcomes[trial.number] = found and decode(Outcome, found)
            except ValueError as error:
                words = f"trial {trial.number} has no readable outcome: {error}"
                raise SearchError(words) from None
        return self._outcomes.get(trial.number)

    def ended(self, trial: FrozenTrial) -> Any:
        """Return how a trial's task ended; None if it has not, or if its worker raised an error."""
        kind, words = trial.system_attrs.get(FAULT, (DIED, "its worker died"))
        if not trial.state.is_finished() or kind == ERROR:
            return None
        if kind == LOST:
            return CheckpointError(f"checkpoint {words} cannot be read", words)
        found = None if trial.state == TrialState.FAIL else self.outcome(trial)
        return found or (SELECT if trial.state == TrialState.COMPLETE else Died(words))

    def want(self, task: Any) -> None:
        """Request that some process on the study runs the task."""
        self._wanted[task.id] = task

    def unclaimed(self) -> list[Any]:
        return [task for task in self._wanted.values() if not self._holders(task.id)]

    def heard(self, number: int, key: str) -> None:
        """Mark the end of a trial and its task as known to the caller: `news` leaves it out."""
        self._told.add(number)
        self._wanted.pop(key, None)

    def news(self) -> list[tuple[Any, Any]]:
        """Return the tasks that have ended since, in the order of trials: the same everywhere."""
        self.refresh()
        found: dict[int, tuple[Any, Any]] = {}
        for task in list(self._wanted.values()):
            while (holders := self._holders(task.id)) and holders[0].state.is_finished():
                self._told.add(number := holders[0].number)
                if (how := self.ended(holders[0])) is not None:
                    found[number] = self._wanted.pop(task.id), how
                    break
        return [found[number] for number in sorted(found)]

    def _holders(self, key: str) -> list[FrozenTrial]:
        """Return the trials that hold a task now: the first one does, any others give it back."""
        return [trial for trial in self._trials.get(key, ()) if trial.number not in self._told]

    def last_trial(self, key: str) -> FrozenTrial:
        """Return the last trial of a task whose end has been reported."""
        return [trial for trial in self._trials[key] if trial.number in self._told][-1]

    def end_silent(self) -> bool:
        """End one trial whose worker is dead or silent, and return whether there was one."""
        now = time.monotonic()
        for trial in self.running():
            beat, label = trial.system_attrs.get(BEAT), label_of(trial)
            if self._beats.get(trial.number, ("", now))[0] != beat:
                self._beats[trial.number] = beat, now
            silence = now - self._beats[trial.number][1]
            worker = label["worker"]  # empty for `study.ask`: then nobody can tell
            if worker and (silence > self.timing.grace or files.is_dead(worker)):
                if end_trial(self.study, trial._trial_id, TrialState.FAIL):
                    logger.warning("the worker of %s is gone: it is run again", label["task"])
                return True
        return False

    def beat(self, trials: Iterable[int], calls: int) -> None:
        """Write a heartbeat and the number of calls on trials of this process."""
        # Optuna's own heartbeat needs a relational database and synchronized clocks.
        for trial_id in trials:
            try:
                self.storage.set_trial_system_attr(trial_id, BEAT, time.time())
                self.storage.set_trial_system_attr(trial_id, CALLS, calls)
            except RuntimeError:
                continue  # the trial was ended from outside; its worker notices that at the end
            except (optuna.exceptions.StorageInternalError, OSError) as fault:
                logger.info("a heartbeat could not be written: %s", fault)

    @contextlib.contextmanager
    def beating(self, trials: Iterable[int], calls: Callable[[], int]) -> Iterator[None]:
        """Write heartbeats in a thread while the block runs."""
        done = threading.Event()

        def work() -> None:
            while not done.wait(self.timing.every):
                self.beat(trials, calls())

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def shown(self, task: Any) -> dict[str, Json]:
        """Return the user attributes for a trial that holds a task; None: no task was left."""
        key = "" if task is None else task.id
        more = {} if task is None else {"phase": task.phase, "budget": task.calls}
        label = {"sweep": self.sweep, "worker": files.process_name(), "task": key}
        return {TASK: {**label, "turn": len(self._trials.get(key, ()))}, "task": key, **more}

    def claim(self, task: Any, parameters: dict[str, Any]) -> int | None:
        """Return the id of a new trial that holds the task, None if another process was faster."""
        kinds = {name: CategoricalDistribution((value,)) for name, value in parameters.items()}
        template = create_trial(
            state=TrialState.RUNNING,
            user_attrs=self.shown(task),
            params=parameters,
            distributions={**kinds, **({"value": SPAN} if kinds else {})},
        )
        trial_id = self.storage.create_new_trial(self.study._study_id, template)
        self.refresh()
        if self._holders(task.id)[0]._trial_id == trial_id:
            return trial_id
        self.storage.set_trial_user_attr(trial_id, TASK, {})
        end_trial(self.study, trial_id, TrialState.PRUNED)
        return None

    def take(self, trial: FrozenTrial, task: Any) -> bool:
        """Give a task, or None, to a trial that Optuna created; False if another trial has it."""
        shown = self.shown(task)
        shown[TASK]["trial"] = trial.number
        if not in_optimize(self.study):  # then another process may call `study.tell`
            shown[TASK]["worker"] = ""
        show_trial(self.study, trial, shown)
        self.refresh()
        if task is None or len(self._holders(task.id)) == 1:
            return True
        return not self.take(trial, None)

    def write(self, trial_id: int, how: Ended | BaseException) -> None:
        """Write how a trial's task ended on the trial, without ending the trial."""
        write = partial(self.storage.set_trial_system_attr, trial_id)
        if isinstance(how, Died):
            write(FAULT, (DIED, how.reason))
        elif isinstance(how, CheckpointError) and how.key is not None:
            write(FAULT, (LOST, how.key))
        elif isinstance(how, BaseException):
            write(FAULT, (ERROR, repr(how)[:2000]))
        else:
            check_origin(how.origin, self.origin)
            write(OUTCOME, encode(how))
            if isinstance(how, TrainOutcome) and len(how.segments) == 1:
                points = [p for p in how.segments[0].curve if math.isfinite(p.loss)][::-1]
                for point in reversed(points[:: max(1, -(-len(points) // MARKS))]):
                    self.storage.set_trial_intermediate_value(trial_id, point.call, point.loss)
            # As an attribute, so that a part of a sweep is never the study's best trial.
            if math.isfinite(loss := best_seen([how])):
                self.storage.set_trial_user_attr(trial_id, "loss", loss)
