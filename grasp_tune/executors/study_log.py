"""The study as the event log that all processes of a sweep share.

A trial says on a label which task it holds, and which turn of it. Storages number trials in the
order in which they become visible, so of two trials with the same label all processes agree on the
first; the other one ends at once. What a task came to is written on its trial. Every process reads
the same trials, so that its own search learns the same events and decides the same.
"""

import logging
import math
import time
from collections import Counter
from itertools import dropwhile
from types import SimpleNamespace
from typing import Any

from optuna import Study
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from grasp_tune.core.choice import best_seen
from grasp_tune.core.errors import CheckpointError, GraspError, SearchError
from grasp_tune.core.records import Json
from grasp_tune.core.tasks import Outcome, TrainOutcome, outcome_from_dict, outcome_to_dict
from grasp_tune.executors import study as storage
from grasp_tune.executors.study import CALLS, TASK, Timing, end_trial, label_of
from grasp_tune.runtime import files
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.executor import Died

logger = logging.getLogger(__name__)

OUTCOME = "grasp:outcome"
FAULT = "grasp:fault"  # why a task has no outcome: one of these, and its words
LOST, ERROR, DIED = "lost checkpoint", "error", "died"
NOTHING = SimpleNamespace(id="")  # the task of a trial for which none was left
SPAN = FloatDistribution(1e-300, 1e300, log=True)  # of a step size, radius or distance
MARKS = 8  # points of a training curve that are reported: each costs a write


class StudyLog:
    """The trials of one sweep on a study: who holds which task, and how they ended.

    sweep: the name by which the processes of a sweep know its trials.
    """

    def __init__(self, study: Study, sweep: str, timing: Timing | None = None) -> None:
        self.study, self.sweep, self._worker = study, sweep, files.process_name()
        self.timing = timing or Timing.of(study)
        self.recent: list[FrozenTrial] = []  # all but the first ones that have ended
        self._settled = 0  # so many of the first trials have ended: they never change
        self._holders: dict[tuple[str, int], FrozenTrial] = {}  # (task, turn) -> its first trial
        self._outcomes: dict[int, Outcome | None] = {}  # by trial number: read once
        self._wanted: dict[str, Any] = {}  # tasks to be run, and not ended as far as we have told
        self._turns: Counter[str] = Counter()  # task id -> its turn now
        self._beats: dict[int, tuple[object, float]] = {}  # by trial: the last one, and its time
        self.refresh()

    def refresh(self) -> None:
        """Read what is on the study now."""
        trials = storage.trials_of(self.study)
        fresh = trials[self._settled :]
        for trial in fresh:
            label = label_of(trial)
            if label.get("sweep") == self.sweep and label["task"]:
                key = label["task"], label["turn"]
                self._holders[key] = min(trial, self._holders.get(key, trial))  # by number
        self.recent = list(dropwhile(lambda trial: trial.state.is_finished(), fresh))
        self._settled = len(trials) - len(self.recent)

    def running(self) -> list[FrozenTrial]:
        """Return the trials that hold a task now."""
        return [trial for trial in self._holders.values() if not trial.state.is_finished()]

    @property
    def calls(self) -> int:
        """Oracle calls of all tasks that have ended, well or not, as far as their trials say."""
        over = [trial for trial in self._holders.values() if trial.state.is_finished()]
        said = ({**trial.system_attrs, **trial.user_attrs}.get(CALLS, 0) for trial in over)
        known = zip(map(self.outcome, over), said, strict=True)
        return sum(int(calls) if found is None else found.calls for found, calls in known)

    @property
    def origin(self) -> str | None:
        """The digest of the start point that the others have, None before anyone has said."""
        known = map(self.outcome, self._holders.values())
        return next((outcome.origin for outcome in known if outcome is not None), None)

    def outcome(self, trial: FrozenTrial) -> Outcome | None:
        """Return what a trial that has ended found, None where it did not."""
        if trial.number not in self._outcomes and trial.state.is_finished():
            try:
                found = storage.joined(trial.system_attrs, OUTCOME)
                self._outcomes[trial.number] = None if found is None else outcome_from_dict(found)
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
        """Return the tasks that nobody holds."""
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
            trial = self._holders.get((key, self._turns[key]))
            if trial is None or not trial.state.is_finished() or self.ended(trial) is not None:
                return trial
            self._turns[key] += 1

    def last_trial(self, key: str) -> FrozenTrial:
        """Return the trial of a task that has ended well."""
        return self._holders[key, self._turns[key] - 1]

    def end_silent(self) -> bool:
        """End a trial whose worker is gone, by our own clock; return whether there was one."""
        now = time.monotonic()
        for trial in self.running():
            beat, label = trial.system_attrs.get(storage.BEAT), label_of(trial)
            before, since = self._beats.get(trial.number, (beat, now))
            since = since if before == beat else now
            self._beats[trial.number] = beat, since
            worker = label["worker"]  # nobody can tell of a trial that was asked for by hand
            if worker and (now - since > self.timing.grace or files.is_dead(worker)):
                if end_trial(self.study, trial._trial_id, TrialState.FAIL):
                    logger.warning("the worker of %s is gone: it is run again", label["task"])
                return True
        return False

    def label(self, task: Any) -> dict[str, Json]:
        """Return the label of a trial that holds a task, or `NOTHING`."""
        own = {"sweep": self.sweep, "worker": self._worker}
        return {**own, "task": task.id, "turn": self._turns[task.id]}

    def shown(self, task: Any) -> dict[str, Json]:
        """Return all user attributes of such a trial."""
        more = {} if task is NOTHING else {"phase": task.phase, "budget": task.calls}
        return {TASK: self.label(task), "task": task.id, **more}

    def claim(self, task: Any, parameters: dict[str, Any]) -> int | None:
        """Return the id of a new trial that holds the task, None where another was faster."""
        kinds = {name: CategoricalDistribution((value,)) for name, value in parameters.items()}
        template = create_trial(
            state=TrialState.RUNNING,
            user_attrs=self.shown(task),
            params=parameters,
            distributions={**kinds, **({"value": SPAN} if kinds else {})},
        )
        trial_id = self.study._storage.create_new_trial(self.study._study_id, template)
        self.refresh()
        if self._holders[task.id, self._turns[task.id]]._trial_id == trial_id:
            return trial_id
        end_trial(self.study, trial_id, TrialState.PRUNED)
        return None

    def take(self, trial: FrozenTrial, task: Any) -> None:
        """Give a task to a trial that Optuna made; the caller knows that nobody else does."""
        shown = self.shown(task)
        shown[TASK]["trial"] = trial.number
        if not storage.in_optimize(self.study):  # another process may tell what was asked here
            shown[TASK]["worker"] = ""
        storage.show_trial(self.study, trial, shown)
        if task is not NOTHING:
            self._holders[task.id, self._turns[task.id]] = trial

    def write_outcome(self, trial_id: int, outcome: Outcome) -> None:
        """Write what a task found on its trial, without ending it."""
        database = self.study._storage
        for at, piece in enumerate(storage.pieces_of(outcome_to_dict(outcome))):
            database.set_trial_system_attr(trial_id, f"{OUTCOME}:{at}", piece)
        if isinstance(outcome, TrainOutcome) and len(outcome.segments) == 1:
            points = [p for p in outcome.segments[0].curve if math.isfinite(p.loss)][::-1]
            for point in reversed(points[:: max(1, -(-len(points) // MARKS))]):
                database.set_trial_intermediate_value(trial_id, point.call, point.loss)
        # A part of a sweep is never the study's best trial: its loss is an attribute.
        if math.isfinite(loss := best_seen([outcome])):
            database.set_trial_user_attr(trial_id, "loss", loss)

    def write_fault(self, trial_id: int, how: Died | BaseException) -> None:
        """Write why a trial has no outcome, without ending it."""
        fault = ERROR, repr(how)[:2000]
        if isinstance(how, Died):
            fault = DIED, how.reason
        elif isinstance(how, CheckpointError) and how.key is not None:
            fault = LOST, how.key
        self.study._storage.set_trial_system_attr(trial_id, FAULT, fault)
