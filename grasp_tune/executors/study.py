"""The study as the event log that all processes of a sweep share.

A trial says on a label which task it holds, and which turn of it. Storages number trials in the
order in which they become visible, so of two that are born with the same label all processes agree
on the first; the other one ends at once. A trial that Optuna has made writes its label and looks
again: where another bears the same, it takes another task; the later of two always sees the first.
What a task came to is written on its trial. Every process reads the same trials, so that its own
search learns the same events and decides the same.

Goes past Optuna's public interface to its storage: system attributes, and trials that are born
with attributes, have no other door.
"""

import contextlib
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import optuna
from optuna import Study
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from grasp_tune.core.choice import best_seen
from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError
from grasp_tune.core.records import Json, decode, encode, fingerprint
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Outcome, TrainOutcome
from grasp_tune.runtime import files
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.executor import Died, Ended
from grasp_tune.schedules.cells import Cells

logger = logging.getLogger(__name__)

TASK = "grasp:task"  # trial, user attribute: the task that it holds, or that none was left
CALLS = "grasp:calls"  # trial: the oracle calls that it used
BEAT = "grasp:beat"  # trial: changes while its worker lives
OUTCOME = "grasp:outcome"  # trial: what its task found
FAULT = "grasp:fault"  # trial: why its task has no outcome: one of these, and its words
LOST, ERROR, DIED = "lost checkpoint", "error", "died"
SETTING = "grasp:spec"  # study: the sweep that runs on it
CHOICE = "grasp:choice"  # study: the chosen candidate and its certificate

PIECE = 30_000  # characters a value: some databases hold 64 KB
SPAN = FloatDistribution(1e-300, 1e300, log=True)  # of a step size, radius or distance
FRONT = 8  # tasks from the front of the line among which a process picks one, so as not to collide
MARKS = 8  # points of a training curve that are reported: each costs a write


def trials_of(study: Study) -> list[FrozenTrial]:
    """Return all trials by number, as stored now; not to be changed."""
    # Not `study.get_trials`: it may answer from before the last write, and some pruners filter it.
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def label_of(trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
    """Return what a trial says of its task; empty where it says nothing, as others' trials do."""
    label = trial.user_attrs.get(TASK)
    # Optuna's retries inherit the attributes of the trial that failed, its number too.
    if isinstance(label, dict) and label.get("trial", trial.number) == trial.number:
        return label
    return {}


def show_trial(study: Study, trial: FrozenTrial, shown: dict[str, Json]) -> None:
    """Write user attributes on a trial, also as Optuna hands it to the objective."""
    for name, value in shown.items():
        study._storage.set_trial_user_attr(trial._trial_id, name, value)
        trial.user_attrs[name] = value


def end_trial(study: Study, trial_id: int, state: TrialState, *values: float) -> bool:
    """Return whether the trial has now ended this way; False where it had ended already."""
    try:
        return study._storage.set_trial_state_values(trial_id, state, values or None)
    except RuntimeError:  # UpdateFinishedTrialError
        return False


def in_memory(study: Study) -> bool:
    """Return whether no other process can see the study."""
    return isinstance(study._storage, optuna.storages.InMemoryStorage)


def in_optimize(study: Study) -> bool:
    """Return whether `study.optimize` runs in this thread, as far as can be told."""
    return bool(getattr(getattr(study, "_thread_local", None), "in_optimize_loop", False))


def _put_json(put: Callable[[str, str], None], key: str, value: Json) -> None:
    """Write JSON values in pieces that every database holds, and what ends a longer text before."""
    text = json.dumps(value, separators=(",", ":"))
    for at in reversed(range(0, len(text) + PIECE, PIECE)):  # who finds the first finds all
        put(f"{key}:{at // PIECE}", text[at : at + PIECE])


def _get_json(attributes: Mapping[str, Any], key: str) -> Json:
    pieces: list[str] = []
    while piece := attributes.get(f"{key}:{len(pieces)}"):
        pieces.append(str(piece))
    return json.loads("".join(pieces)) if pieces else None


def set_study_json(study: Study, key: str, value: Json) -> None:
    _put_json(partial(study._storage.set_study_user_attr, study._study_id), key, value)


def study_json(study: Study, key: str, wanted: Json = None) -> Json:
    """Return what `set_study_json` wrote, after writing `wanted` where there is nothing.

    Of two processes that write at the same time one wins, for both: what is there in the end is
    read again. Later writers do not exist, because they find something.
    """
    try:
        found = _get_json(study._storage.get_study_user_attrs(study._study_id), key)
    except ValueError as error:
        where = f"study {study.study_name}, {key}"
        raise InputError(f"{where}: damaged, or not written by grasp_tune: {error}") from None
    if found is None and wanted is not None:
        set_study_json(study, key, wanted)
        return study_json(study, key)
    return found


def spec_on(study: Study, wanted: SweepSpec | None = None) -> SweepSpec | None:
    """Return the sweep on a study, None without; `wanted` is written then."""
    data = study_json(study, SETTING, None if wanted is None else wanted.to_dict())
    if data is None:
        return None
    # Of an optimizer of the user's own the name will do.
    module, own, name = (base := data["method"].get("base") or "").partition(":")
    bases = {base: type(name, (), {"__module__": module})} if own else {}
    return SweepSpec.from_dict(data, bases)


@dataclass(frozen=True, slots=True)
class Timing:
    """How often a worker says that it lives, and after how much silence it is thought dead."""

    every: float = 5.0  # seconds between two signs of life
    grace: float = 60.0  # seconds of silence

    @classmethod
    def of(cls, study: Study) -> "Timing":
        """Return the study's own timing where its storage has a heartbeat, else ours."""
        storage = study._storage
        every = getattr(storage, "get_heartbeat_interval", lambda: None)()
        if every is None:
            return cls()
        grace = getattr(getattr(storage, "_backend", storage), "grace_period", None)
        return cls(float(every), float(grace or 2 * every))


class StudyLog:
    """The trials of one sweep on a study: who holds which task, and how they ended.

    All processes agree on the sweep; `InputError` where the study has another one.
    """

    def __init__(self, study: Study, spec: SweepSpec, timing: Timing | None = None) -> None:
        if difference := spec.difference(study_json(study, SETTING, spec.to_dict())):
            words = f"the sweep on study {study.study_name!r} differs from this one: {difference}"
            more = ", or GraspSampler.from_study(study)" if isinstance(spec.schedule, Cells) else ""
            raise InputError(f"{words}; use a new study{more}")
        self.study, self.storage = study, study._storage
        self.sweep = fingerprint(spec.to_dict(), study.study_name)
        self.timing = timing or Timing.of(study)
        self.trials: list[FrozenTrial] = []  # all of the study
        self._bearers: dict[tuple[str, int], list[FrozenTrial]] = {}  # of a label: (task, turn)
        self._outcomes: dict[int, Outcome | None] = {}  # by trial number: read once
        self._wanted: dict[str, Any] = {}  # tasks to be run, and not ended as far as we have told
        self._turns: Counter[str] = Counter()  # task id -> its turn now
        self._beats: dict[int, tuple[object, float]] = {}  # by trial: the last one, and its time
        self.refresh()

    def refresh(self) -> None:
        self.trials, self._bearers = trials_of(self.study), {}
        for trial in self.trials:
            label = label_of(trial)
            if label.get("sweep") == self.sweep and label["task"]:
                self._bearers.setdefault((label["task"], label["turn"]), []).append(trial)

    @property
    def holders(self) -> list[FrozenTrial]:
        """The trials that count: of several with one label the first."""
        return [bearers[0] for bearers in self._bearers.values()]

    def running(self) -> list[FrozenTrial]:
        return [trial for trial in self.holders if not trial.state.is_finished()]

    @property
    def calls(self) -> int:
        """Oracle calls of all tasks that have ended, well or not, as far as their trials say."""
        total = 0
        for trial in self.holders:
            if trial.state.is_finished():
                said = {**trial.system_attrs, **trial.user_attrs}.get(CALLS, 0)
                total += int(said) if (found := self.outcome(trial)) is None else found.calls
        return total

    @property
    def origin(self) -> str | None:
        """The digest of the start point that the others have, None before anyone has said."""
        known = map(self.outcome, self.holders)
        return next((outcome.origin for outcome in known if outcome is not None), None)

    def outcome(self, trial: FrozenTrial) -> Outcome | None:
        """Return what a trial that has ended found, None where it did not."""
        if trial.number not in self._outcomes and trial.state.is_finished():
            try:
                found = _get_json(trial.system_attrs, OUTCOME)
                known = None if found is None else decode(Outcome, found)
                self._outcomes[trial.number] = known
            except (ValueError, GraspError) as error:
                words = f"trial {trial.number} has no readable outcome: {error}"
                raise SearchError(words) from None
        return self._outcomes.get(trial.number)

    def ended(self, trial: FrozenTrial) -> Any:
        """Return how a trial's task ended; None where it has not, or its worker raised an error.

        Whoever raised it has said so to its user; whoever comes later tries again.
        """
        kind, words = trial.system_attrs.get(FAULT, (DIED, "its worker died"))
        if not trial.state.is_finished() or kind == ERROR:
            return None
        if kind == LOST:
            return CheckpointError(f"checkpoint {words} cannot be read", words)
        found = None if trial.state == TrialState.FAIL else self.outcome(trial)
        return found or (SELECT if trial.state == TrialState.COMPLETE else Died(words))

    def want(self, task: Any) -> None:
        """Remember the task: some process on the study will run it."""
        self._wanted[task.id] = task

    def unclaimed(self) -> list[Any]:
        return [task for task in self._wanted.values() if self._holder(task.id) is None]

    def heard(self, key: str) -> None:
        """The caller knows how a task ended, before it is on the study."""
        self._wanted.pop(key, None)
        self._turns[key] += 1

    def news(self) -> list[tuple[Any, Any]]:
        """Return what has ended, in the order of the trials: the same for whoever comes late."""
        self.refresh()
        found: dict[int, tuple[Any, Any]] = {}
        for task in list(self._wanted.values()):
            trial = self._holder(task.id)
            if trial is not None and (how := self.ended(trial)) is not None:
                found[trial.number] = task, how
                self.heard(task.id)
        return [found[number] for number in sorted(found)]

    def _holder(self, key: str) -> FrozenTrial | None:
        """Return the trial that decides how the task ends, None where it is still to be made."""
        while True:
            trial = next(iter(self._bearers.get((key, self._turns[key]), ())), None)
            if trial is None or not trial.state.is_finished() or self.ended(trial) is not None:
                return trial
            self._turns[key] += 1

    def last_trial(self, key: str) -> FrozenTrial:
        """Return the trial of a task that has ended well."""
        return self._bearers[key, self._turns[key] - 1][0]

    def end_silent(self) -> bool:
        """End a trial whose worker is gone, by our own clock; return whether there was one."""
        now = time.monotonic()
        for trial in self.running():
            beat, label = trial.system_attrs.get(BEAT), label_of(trial)
            before, since = self._beats.get(trial.number, (beat, now))
            since = since if before == beat else now
            self._beats[trial.number] = beat, since
            worker = label["worker"]  # nobody can tell of a trial that was asked for by hand
            if worker and (now - since > self.timing.grace or files.is_dead(worker)):
                if end_trial(self.study, trial._trial_id, TrialState.FAIL):
                    logger.warning("the worker of %s is gone: it is run again", label["task"])
                return True
        return False

    def beat(self, trials: Iterable[int], calls: int) -> None:
        """Say on some trials of this process that it lives, and how many calls it made."""
        # Optuna's own heartbeat exists for relational databases alone and asks for equal clocks.
        for trial_id in trials:
            try:
                self.storage.set_trial_system_attr(trial_id, BEAT, time.time())
                self.storage.set_trial_system_attr(trial_id, CALLS, calls)
            except RuntimeError:
                continue  # the trial was ended from outside; its worker will notice at the end
            except (optuna.exceptions.StorageInternalError, OSError) as fault:
                logger.info("a heartbeat could not be written: %s", fault)

    @contextlib.contextmanager
    def beating(self, trials: Iterable[int], calls: Callable[[], int]) -> Iterator[None]:
        """Beat in a thread of its own while the block runs."""
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
        """Return the user attributes of a trial that holds a task; None: none was left."""
        key = "" if task is None else task.id
        more = {} if task is None else {"phase": task.phase, "budget": task.calls}
        label = {"sweep": self.sweep, "worker": files.process_name(), "task": key}
        return {TASK: {**label, "turn": self._turns[key]}, "task": key, **more}

    def claim(self, task: Any, parameters: dict[str, Any]) -> int | None:
        """Return the id of a new trial that holds the task, None where another was faster."""
        kinds = {name: CategoricalDistribution((value,)) for name, value in parameters.items()}
        template = create_trial(
            state=TrialState.RUNNING,
            user_attrs=self.shown(task),
            params=parameters,
            distributions={**kinds, **({"value": SPAN} if kinds else {})},
        )
        trial_id = self.storage.create_new_trial(self.study._study_id, template)
        self.refresh()
        if self._bearers[task.id, self._turns[task.id]][0]._trial_id == trial_id:
            return trial_id
        end_trial(self.study, trial_id, TrialState.PRUNED)
        return None

    def take(self, trial: FrozenTrial, task: Any) -> bool:
        """Give a task, or none, to a trial that Optuna made; False where another wants it, too."""
        shown = self.shown(task)
        shown[TASK]["trial"] = trial.number
        if not in_optimize(self.study):  # another process may tell what was asked here
            shown[TASK]["worker"] = ""
        show_trial(self.study, trial, shown)
        self.refresh()
        if task is None or len(self._bearers[task.id, self._turns[task.id]]) == 1:
            return True
        return not self.take(trial, None)

    def write(self, trial_id: int, how: Ended | BaseException) -> None:
        """Write how its task went on a trial, without ending it."""
        write = partial(self.storage.set_trial_system_attr, trial_id)
        if isinstance(how, Died):
            write(FAULT, (DIED, how.reason))
        elif isinstance(how, CheckpointError) and how.key is not None:
            write(FAULT, (LOST, how.key))
        elif isinstance(how, BaseException):
            write(FAULT, (ERROR, repr(how)[:2000]))
        else:
            _put_json(write, OUTCOME, encode(how))
            if isinstance(how, TrainOutcome) and len(how.segments) == 1:
                points = [p for p in how.segments[0].curve if math.isfinite(p.loss)][::-1]
                for point in reversed(points[:: max(1, -(-len(points) // MARKS))]):
                    self.storage.set_trial_intermediate_value(trial_id, point.call, point.loss)
            # A part of a sweep is never the study's best trial: its loss is an attribute.
            if math.isfinite(loss := best_seen([how])):
                self.storage.set_trial_user_attr(trial_id, "loss", loss)
