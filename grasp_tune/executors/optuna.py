"""Tasks as trials of an Optuna study: the study is the event log that all processes share.

A trial says on a label which task it holds, and which turn of it. Storages number trials in the
order in which they become visible, so of two trials with the same label all processes agree on the
first; the other one ends at once. What a task came to is written on its trial. Every process reads
the same trials, so that its own search learns the same events and decides the same.
"""

import json
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.choice import Candidate, best_seen
from grasp_tune.core.errors import CheckpointError, GraspError, SearchError
from grasp_tune.core.records import Json
from grasp_tune.core.tasks import (
    Outcome,
    Task,
    TrainOutcome,
    TrainTask,
    outcome_from_dict,
    outcome_to_dict,
)
from grasp_tune.executors.local import InProcess
from grasp_tune.executors.study import (
    CALLS,
    TASK,
    Heartbeat,
    Timing,
    Watch,
    end_trial,
    in_memory,
    in_optimize,
    is_dead,
    joined,
    label_of,
    process_name,
    set_trial,
    set_trial_text,
    trials_of,
)
from grasp_tune.runtime.call_counter import CallCounter
from grasp_tune.runtime.driver import TimeUp
from grasp_tune.runtime.executor import Died, Ended, Executor

logger = logging.getLogger(__name__)

OUTCOME = "grasp:outcome"
LOST = "grasp:lost"  # the checkpoint that a task could not read
ERROR = "grasp:error"  # what its worker raised
DIED = "grasp:died"  # how its worker process ended

RESULT = "result"  # the task of the trial that holds the chosen run
NOTHING = ""  # the task of a trial for which none was left
FRONT = 8  # tasks from the front of the line among which a process picks one
PAUSES = (0.02, 0.5)  # seconds between two looks at the study: the first, and the longest
MARKS = 8  # points of a training curve that are reported: each costs a write
_SPAN = FloatDistribution(1e-300, 1e300, log=True)


class StudyLog:
    """The trials of one sweep on a study, as read last; who holds which task, and how they ended.

    study: where the trials are.
    sweep: the name by which the processes of a sweep know its trials.
    """

    def __init__(self, study: optuna.Study, sweep: str) -> None:
        self.study, self.sweep, self._worker = study, sweep, process_name()
        self._turns: dict[tuple[str, int], FrozenTrial] = {}  # (task, turn) -> its first trial
        self._outcomes: dict[int, Outcome] = {}  # by trial number: read once
        self._settled = 0  # so many of the first trials have ended: they never change
        self.recent: list[FrozenTrial] = []  # all others
        self.refresh()

    def refresh(self) -> None:
        """Read what is on the study now."""
        self.recent = trials_of(self.study)[self._settled :]
        for trial in self.recent:
            label = label_of(trial)
            if label is not None and label.get("sweep") == self.sweep and label["task"]:
                key = label["task"], label["turn"]
                if key not in self._turns or self._turns[key].number >= trial.number:
                    self._turns[key] = trial
        ended = next((at for at, t in enumerate(self.recent) if not t.state.is_finished()), None)
        self._settled += len(self.recent) if ended is None else ended
        self.recent = [] if ended is None else self.recent[ended:]

    def at(self, task: str, turn: int) -> FrozenTrial | None:
        """Return the trial that holds a turn of a task, None where it is free."""
        return self._turns.get((task, turn))

    def running(self) -> list[FrozenTrial]:
        """Return the trials that hold a task now."""
        return [trial for trial in self._turns.values() if not trial.state.is_finished()]

    @property
    def calls(self) -> int:
        """Oracle calls of all tasks that have ended, well or not, as far as their trials say."""
        done = self._done()
        spent = sum(self.outcome(trial).calls for trial in done)
        over = [trial for trial in self._turns.values() if trial.state.is_finished()]
        failed = [trial for trial in over if trial not in done]
        return spent + sum(int(trial.system_attrs.get(CALLS, 0)) for trial in failed)

    @property
    def origin(self) -> str | None:
        """The digest of the start point that the others have, None before anyone has said."""
        return next((self.outcome(trial).origin for trial in self._done()), None)

    def _done(self) -> list[FrozenTrial]:
        """Return the trials with an outcome; those of an objective of the user's own are pruned."""
        over = [trial for trial in self._turns.values() if trial.state.is_finished()]
        return [trial for trial in over if f"{OUTCOME}:0" in trial.system_attrs]

    def outcome(self, trial: FrozenTrial) -> Outcome:
        """Return what a completed trial says."""
        if trial.number not in self._outcomes:
            try:
                found = outcome_from_dict(json.loads(joined(trial.system_attrs, OUTCOME)))
            except (ValueError, GraspError) as error:
                sentence = f"trial {trial.number} has no readable outcome: {error}"
                raise SearchError(sentence) from None
            self._outcomes[trial.number] = found
        return self._outcomes[trial.number]

    def ended(self, trial: FrozenTrial) -> Any:
        """Return how a trial's task ended; None where it has not, or its worker raised an error.

        Whoever raised it has said so to its user; whoever comes later tries again.
        """
        attributes = trial.system_attrs
        if not trial.state.is_finished():
            return None
        whole = trial.state == TrialState.COMPLETE and ERROR not in attributes
        if whole or (trial.state == TrialState.PRUNED and f"{OUTCOME}:0" in attributes):
            return self.outcome(trial)
        if key := attributes.get(LOST):
            return CheckpointError(f"checkpoint {key} cannot be read", str(key))
        return None if ERROR in attributes else Died(attributes.get(DIED, "its worker died"))

    # -- taking a task --------------------------------------------------------------------------

    def claim(self, task: str, turn: int, **template: Any) -> int | None:
        """Return the id of a new trial that holds the turn, None where another was faster."""
        label = {**self.label(task, turn, self._worker), **template.pop("label", {})}
        trial_id = self.study._storage.create_new_trial(
            self.study._study_id,
            template_trial=optuna.trial.create_trial(
                state=TrialState.RUNNING, system_attrs={TASK: label}, **template
            ),
        )
        self.refresh()
        holder = self.at(task, turn)
        if holder is not None and holder._trial_id == trial_id:
            return trial_id
        end_trial(self.study, trial_id, TrialState.PRUNED)
        return None

    def take(self, trial: FrozenTrial, task: Any, turn: int) -> None:
        """Give a turn to a trial that Optuna made; the caller knows that nobody else does."""
        key = task if isinstance(task, str) else task.id
        # Outside of `optimize`, another process may tell what this one has asked for.
        worker = self._worker if in_optimize(self.study) else ""
        self.show(trial, {**self.label(key, turn, worker), "trial": trial.number}, task)
        if key != NOTHING:
            self._turns[key, turn] = trial

    def label(self, task: str, turn: int, worker: str) -> dict[str, Json]:
        return {"sweep": self.sweep, "task": task, "turn": turn, "worker": worker}

    def show(self, trial: FrozenTrial, label: dict[str, Json], task: Any) -> None:
        """Write the label on a trial, and a few words for dashboards."""
        shown: dict[str, Json] = {"task": label["task"]}
        if not isinstance(task, str):
            label["runs"] = _runs(task)
            shown |= {"phase": task.phase, "budget": task.calls}
        set_trial(self.study, trial._trial_id, TASK, label)
        trial.system_attrs[TASK] = label
        for name, value in shown.items():
            self.study._storage.set_trial_user_attr(trial._trial_id, name, value)

    # -- saying how it ended --------------------------------------------------------------------

    def write_outcome(self, trial_id: int, outcome: Outcome) -> None:
        """Write what a task found on its trial, without ending it."""
        text = json.dumps(outcome_to_dict(outcome), separators=(",", ":"))
        set_trial_text(self.study, trial_id, OUTCOME, text)
        for call, loss in _marks(outcome):
            self.study._storage.set_trial_intermediate_value(trial_id, call, loss)
        # A part of a sweep is never the study's best trial: its loss is an attribute.
        if math.isfinite(loss := best_seen([outcome])):
            self.study._storage.set_trial_user_attr(trial_id, "loss", loss)

    def write(self, trial_id: int, task: Task, how: Ended, calls: int = 0) -> None:
        """End a trial of ours, unless it was taken from us meanwhile."""
        study = self.study
        try:
            if not isinstance(how, Died | Exception):
                self.write_outcome(trial_id, how)
                end_trial(study, trial_id, TrialState.COMPLETE, math.inf)
                return
            set_trial(study, trial_id, CALLS, calls)
            if isinstance(how, Died):
                set_trial(study, trial_id, DIED, how.reason)
            elif isinstance(how, CheckpointError) and how.key is not None:
                set_trial(study, trial_id, LOST, how.key)
            else:
                set_trial(study, trial_id, ERROR, repr(how)[:2000])
            end_trial(study, trial_id, TrialState.FAIL)
        except RuntimeError:  # UpdateFinishedTrialError: it was thought dead
            logger.warning("%s was given to another worker meanwhile", task.id)

    def result_turn(self) -> tuple[int, FrozenTrial | None]:
        """Return which turn of the result's trial is next, or the trial that holds it already."""
        turn = 0
        while (holder := self.at(RESULT, turn)) is not None:
            if not holder.state.is_finished() and is_dead((label_of(holder) or {}).get("worker")):
                end_trial(self.study, holder._trial_id, TrialState.FAIL)
            elif holder.state != TrialState.FAIL and LOST not in holder.system_attrs:
                return turn, holder
            turn += 1
        return turn, None

    def publish(self, value: float, chosen: Candidate | None) -> None:
        """Add the one trial with a finite value: the study's best trial is the chosen run.

        chosen: a point of that run, None for x0.
        """
        self.refresh()
        turn, holder = self.result_turn()
        if holder is not None:
            return  # another process has said it, or is about to
        template: dict[str, Any] = {"user_attrs": {"task": RESULT, "phase": RESULT}}
        if chosen is not None:
            template["params"] = {"base": chosen.base, "value": chosen.value}
            kinds = {"base": CategoricalDistribution((chosen.base,)), "value": _SPAN}
            template["distributions"] = kinds
        if (trial_id := self.claim(RESULT, turn, **template)) is not None:
            end_trial(self.study, trial_id, TrialState.COMPLETE, value)


class StudyCalls(CallCounter):
    """Counts the calls of this process, and knows those of the others from the study.

    folder: where each process counts in a file too, so that what a killed one had asked is known
        to the call; without it, it is known up to its last heartbeat.
    log: the sweep on the study.
    """

    def __init__(self, folder: Path | None, log: StudyLog) -> None:
        super().__init__(folder)
        self._log, self.made = log, 0  # by this process

    def counter(self) -> Callable[[int], None]:
        add = super().counter()

        def count(calls: int) -> None:
            self.made += calls
            add(calls)

        return count

    @property
    def total(self) -> int:
        """All calls so far, as far as they are known."""
        return max(super().total, self._log.calls)


class StudyExecutor:
    """Runs those tasks of a sweep that nobody else on the study holds, and hears of the others.

    log: the sweep on the study.
    inner: runs the tasks that are ours; None where they are somebody else's, such as
        `study.optimize`'s.
    timing: how often a worker says that it lives, and how long a silence means that it does not.
    calls: what the heartbeat says of the task under way, and a failed trial of the calls it made.
    cap: no task begins that may bring the calls above this number.
    """

    def __init__(
        self,
        log: StudyLog,
        inner: Executor | None,
        timing: Timing | None = None,
        calls: StudyCalls | None = None,
        cap: int | None = None,
    ) -> None:
        timing = timing or Timing.of(log.study)
        self._log, self._inner = log, inner
        self._watch, self._heartbeat = Watch(timing), Heartbeat(log.study, timing, self._made)
        self._calls, self._begun, self._cap = calls, 0, cap
        self._wanted: dict[str, Task] = {}  # submitted, and not ended as far as we have told
        self._turns: dict[str, int] = {}  # task id -> its turn now
        self._ours: dict[str, tuple[int, Task]] = {}  # by task id: what runs, and its trial
        self._error: Exception = SearchError("its process was stopped")
        self._pause = PAUSES[0]
        self._alone = in_memory(log.study)

    @property
    def free(self) -> bool:
        """Whether it wants to know of more tasks: those that others hold cost nothing."""
        return len(self.unclaimed()) < FRONT

    def submit(self, task: Task) -> None:
        """Remember the task: some process on the study will run it."""
        self._wanted[task.id] = task

    def poll(self, timeout: float) -> Iterator[tuple[Task, Ended]]:
        """Run what is ours, and yield what has ended on the study since, by whoever."""
        try:
            if not (ended := self._news()):
                self._claim()
                if self._run(timeout):
                    ended = self._news()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else SearchError(repr(error))
            raise
        yield from ended

    def cancel(self) -> None:
        """Let go of all workers, and give back what they had."""
        if self._inner is not None:
            self._inner.cancel()
        for trial_id, task in self._ours.values():
            self._log.write(trial_id, task, self._error, self._made())
        self._ours.clear()

    def unclaimed(self) -> list[tuple[Task, int]]:
        """Return the tasks that nobody holds, each with its turn."""
        free = [task for task in self._wanted.values() if self._holder(task) is None]
        return [(task, self._turns[task.id]) for task in free]

    def heard(self, key: str) -> None:
        """The caller knows how a task ended, before it is on the study."""
        self._wanted.pop(key, None)
        self._turns[key] = self._turns.get(key, 0) + 1

    def _holder(self, task: Task) -> FrozenTrial | None:
        """Return the trial that decides how the task ends, None where it is still to be made."""
        while True:
            turn = self._turns.setdefault(task.id, 0)
            trial = self._log.at(task.id, turn)
            if trial is None or not trial.state.is_finished() or self._log.ended(trial) is not None:
                return trial
            self._turns[task.id] += 1

    def _news(self) -> list[tuple[Task, Ended]]:
        """Return what has ended, in the order of the trials: the same for whoever comes late."""
        self._log.refresh()
        found: dict[int, tuple[Task, Ended]] = {}
        for task in list(self._wanted.values()):
            trial = self._holder(task)
            if trial is not None and (how := self._log.ended(trial)) is not None:
                found[trial.number] = task, how
                self.heard(task.id)
        return [found[number] for number in sorted(found)]

    def _claim(self) -> None:
        while self._inner is not None and self._inner.free and (waiting := self.unclaimed()):
            # Not all from the front: two processes that look at once should not both want it.
            at = 0 if self._alone else random.randrange(min(len(waiting), FRONT))
            task, turn = waiting[at]
            if not self._fits(task):
                return
            trial_id = self._log.claim(
                task.id,
                turn,
                label={"runs": _runs(task)},
                user_attrs={"task": task.id, "phase": task.phase, "budget": task.calls},
                **_parameters(task),
            )
            if trial_id is not None:
                self._begun = 0 if self._calls is None else self._calls.made
                self._ours[task.id] = trial_id, task
                self._inner.submit(task)

    def _fits(self, task: Task) -> bool:
        """Return whether the cap allows a task beside those that run; `TimeUp` where it never will.

        Calls of a running task are counted twice, as made and as allowed: that resolves at its end.
        """
        if self._cap is None or self._calls is None:
            return True
        running = self._log.running()
        held = sum(int(trial.user_attrs.get("budget", 0)) for trial in running)
        if self._calls.total + held + task.calls <= self._cap:
            return True
        if not running:
            raise TimeUp
        return False

    def _run(self, timeout: float) -> bool:
        """Let our tasks go on; without one, wait for the others and look who of them is gone.

        Returns whether there may be news.
        """
        if not self._ours or self._inner is None:
            for trial in self._watch.silent(self._log.running()):
                if end_trial(self._log.study, trial._trial_id, TrialState.FAIL):
                    name = (label_of(trial) or {})["task"]
                    logger.warning("the worker of %s is gone: it is run again", name)
                    return True
            if not timeout:
                return False
            # Of uneven length, so that idle processes do not all look at the same moment.
            time.sleep(min(timeout, self._pause * random.uniform(0.5, 1.5)))
            self._pause = min(2 * self._pause, PAUSES[1])
            return True
        self._pause = PAUSES[0]
        beating = [trial_id for trial_id, _ in self._ours.values()]
        with self._heartbeat.of(beating, thread=isinstance(self._inner, InProcess)):
            for task, how in self._inner.poll(timeout):
                trial_id, _ = self._ours.pop(task.id)
                self._log.write(trial_id, task, how, self._made())
                if isinstance(how, Exception) and getattr(how, "key", None) is None:
                    raise how
        return True

    def _made(self) -> int:
        return 0 if self._calls is None else self._calls.made - self._begun


def _runs(task: Task) -> list[Json]:
    """Return the runs that a training task advances: (run, base, value, from, to)."""
    if not isinstance(task, TrainTask):
        return []
    return [[s.arm.index, s.arm.base, s.arm.value, s.start, s.stop] for s in task.segments]


def _parameters(task: Task) -> dict[str, Json]:
    """Return the parameter to show for a task of one run."""
    if not isinstance(task, TrainTask) or len(task.segments) > 1:
        return {}
    value = task.segments[0].arm.value
    if not _SPAN.low <= value <= _SPAN.high:
        return {}
    return {"params": {"value": value}, "distributions": {"value": _SPAN}}


def _marks(outcome: Outcome) -> list[tuple[int, float]]:
    """Return a few points of the training curve of a task of one run."""
    if not isinstance(outcome, TrainOutcome) or len(outcome.segments) > 1:
        return []
    points = [p for p in outcome.segments[0].curve if math.isfinite(p.loss)]
    every = max(1, -(-len(points) // MARKS))
    return [(p.call, p.loss) for p in points[::-1][::every][::-1]]
