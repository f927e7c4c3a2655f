"""Tasks as trials of an Optuna study: the study is the event log that all processes share.

A trial says on a label which task it holds, and which turn of it. Storages number trials in the
order in which they become visible, so of two trials with the same label all processes agree on the
first; the other one ends at once. What a task came to is written on its trial. Every process reads
the same trials, so that its own search learns the same events and decides the same.
"""

import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from optuna import Study
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from grasp_tune.core.choice import Candidate, best_seen
from grasp_tune.core.errors import CheckpointError, GraspError, SearchError
from grasp_tune.core.records import Json
from grasp_tune.core.tasks import Outcome, TrainOutcome, TrainTask, outcome_from_dict
from grasp_tune.core.tasks import outcome_to_dict as encoded
from grasp_tune.executors import study as storage
from grasp_tune.executors.local import InProcess
from grasp_tune.executors.study import CALLS, TASK, Heartbeat, Timing, end_trial, label_of
from grasp_tune.runtime.call_counter import CallCounter
from grasp_tune.runtime.executor import Died, Ended, Executor

logger = logging.getLogger(__name__)

OUTCOME = "grasp:outcome"
FAULT = "grasp:fault"  # why a task has no outcome: one of these, and its words
LOST, ERROR, DIED = "lost checkpoint", "error", "died"
NOTHING = ""  # the task of a trial for which none was left
FRONT = 8  # tasks from the front of the line among which a process picks one
PAUSES = (0.02, 0.5)  # seconds between two looks at the study: the first, and the longest
MARKS = 8  # points of a training curve that are reported: each costs a write
_SPAN = FloatDistribution(1e-300, 1e300, log=True)


RESULT = SimpleNamespace(id="result", phase="result", calls=0)  # whose trial holds the chosen run


class StudyLog:
    """The trials of one sweep on a study: who holds which task, and how they ended.

    study: where the trials are.
    sweep: the name by which the processes of a sweep know its trials.
    timing: how often a worker says that it lives, and how long a silence means that it does not.
    """

    def __init__(self, study: Study, sweep: str, timing: Timing | None = None) -> None:
        self.study, self.sweep, self._worker = study, sweep, storage.process_name()
        self.timing = timing or Timing.of(study)
        self.recent: list[FrozenTrial] = []  # all but the first ones that have ended
        self._settled = 0  # so many of the first trials have ended: they never change
        self._holders: dict[tuple[str, int], FrozenTrial] = {}  # (task, turn) -> its first trial
        self._outcomes: dict[int, Outcome] = {}  # by trial number: read once
        self._wanted: dict[str, Any] = {}  # tasks to be run, and not ended as far as we have told
        self._turns: dict[str, int] = {}  # task id -> its turn now
        self._beats: dict[int, tuple[object, float]] = {}  # by trial: the last one, and its time
        self.refresh()

    def refresh(self) -> None:
        """Read what is on the study now."""
        self.recent = storage.trials_of(self.study)[self._settled :]
        for trial in self.recent:
            label = label_of(trial)
            if label.get("sweep") == self.sweep and label["task"]:
                key = label["task"], label["turn"]
                if key not in self._holders or self._holders[key].number >= trial.number:
                    self._holders[key] = trial
        running = (at for at, item in enumerate(self.recent) if not item.state.is_finished())
        ended = next(running, len(self.recent))
        self._settled, self.recent = self._settled + ended, self.recent[ended:]

    def running(self) -> list[FrozenTrial]:
        """Return the trials that hold a task now."""
        return [trial for trial in self._holders.values() if not trial.state.is_finished()]

    @property
    def calls(self) -> int:
        """Oracle calls of all tasks that have ended, well or not, as far as their trials say."""
        over = [trial for trial in self._holders.values() if trial.state.is_finished()]
        known = ((self.outcome(trial), trial.system_attrs.get(CALLS, 0)) for trial in over)
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
                if (found := storage.joined(trial.system_attrs, OUTCOME)) is None:
                    return None
                self._outcomes[trial.number] = outcome_from_dict(found)
            except (ValueError, GraspError) as error:
                sentence = f"trial {trial.number} has no readable outcome: {error}"
                raise SearchError(sentence) from None
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
        return found or (RESULT if trial.state == TrialState.COMPLETE else Died(words))

    # -- what is to run -------------------------------------------------------------------------

    def want(self, task: Any) -> None:
        """Remember the task: some process on the study will run it."""
        self._wanted[task.id] = task

    def unclaimed(self) -> list[tuple[Any, int]]:
        """Return the tasks that nobody holds, each with its turn."""
        free = [task for task in self._wanted.values() if self._holder(task.id) is None]
        return [(task, self._turns[task.id]) for task in free]

    def heard(self, key: str) -> None:
        """The caller knows how a task ended, before it is on the study."""
        self._wanted.pop(key, None)
        self._turns[key] = self._turns.get(key, 0) + 1

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
            trial = self._holders.get((key, self._turns.setdefault(key, 0)))
            if trial is None or not trial.state.is_finished() or self.ended(trial) is not None:
                return trial
            self._turns[key] += 1

    def end_silent(self) -> bool:
        """End a trial whose worker is gone, by our own clock; return whether there was one."""
        now = time.monotonic()
        for trial in self.running():
            beat, worker = trial.system_attrs.get(storage.BEAT), label_of(trial)["worker"]
            before, since = self._beats.get(trial.number, (beat, now))
            self._beats[trial.number] = beat, since if before == beat else now
            silence = now - self._beats[trial.number][1]
            if worker and (silence > self.timing.grace or storage.is_dead(worker)):
                if end_trial(self.study, trial._trial_id, TrialState.FAIL):
                    name = label_of(trial)["task"]
                    logger.warning("the worker of %s is gone: it is run again", name)
                return True
        return False

    # -- taking a task, and saying how it ended --------------------------------------------------

    def label(self, task: Any, turn: int) -> dict[str, Json]:
        """Return the user attributes of a trial that holds a turn of a task, or none."""
        key = getattr(task, "id", NOTHING)
        label = {"sweep": self.sweep, "task": key, "turn": turn, "worker": self._worker}
        shown = {"phase": task.phase, "budget": task.calls} if key else {}
        return {TASK: label, "task": key, **shown}

    def claim(self, task: Any, turn: int, parameters: dict[str, Any]) -> int | None:
        """Return the id of a new trial that holds the turn, None where another was faster."""
        kinds = {name: CategoricalDistribution((value,)) for name, value in parameters.items()}
        template = create_trial(
            state=TrialState.RUNNING,
            user_attrs=self.label(task, turn),
            params=parameters,
            distributions={**kinds, **({"value": _SPAN} if kinds else {})},
        )
        trial_id = self.study._storage.create_new_trial(self.study._study_id, template)
        self.refresh()
        if self._holders[task.id, turn]._trial_id == trial_id:
            return trial_id
        end_trial(self.study, trial_id, TrialState.PRUNED)
        return None

    def take(self, trial: FrozenTrial, task: Any, turn: int) -> None:
        """Give a turn to a trial that Optuna made; the caller knows that nobody else does."""
        shown = self.label(task, turn)
        shown[TASK]["trial"] = trial.number
        if not storage.in_optimize(self.study):  # another process may tell what was asked here
            shown[TASK]["worker"] = ""
        storage.show_trial(self.study, trial, shown)
        if key := shown[TASK]["task"]:
            self._holders[key, turn] = trial

    def write_outcome(self, trial_id: int, outcome: Outcome) -> None:
        """Write what a task found on its trial, without ending it."""
        for at, piece in enumerate(storage.pieces_of(encoded(outcome))):
            storage.set_trial(self.study, trial_id, f"{OUTCOME}:{at}", piece)
        if isinstance(outcome, TrainOutcome) and len(outcome.segments) == 1:
            points = [p for p in outcome.segments[0].curve if math.isfinite(p.loss)][::-1]
            for point in reversed(points[:: max(1, -(-len(points) // MARKS))]):
                self.study._storage.set_trial_intermediate_value(trial_id, point.call, point.loss)
        # A part of a sweep is never the study's best trial: its loss is an attribute.
        if math.isfinite(loss := best_seen([outcome])):
            self.study._storage.set_trial_user_attr(trial_id, "loss", loss)

    def write_fault(self, trial_id: int, how: Died | Exception) -> None:
        """Write why a trial has no outcome, without ending it."""
        fault = ERROR, repr(how)[:2000]
        if isinstance(how, Died):
            fault = DIED, how.reason
        elif isinstance(how, CheckpointError) and how.key is not None:
            fault = LOST, how.key
        storage.set_trial(self.study, trial_id, FAULT, fault)

    def publish(self, value: float, chosen: Candidate) -> None:
        """Add the one trial with a finite value: the study's best trial is the chosen run."""
        self.want(RESULT)
        self.end_silent()
        self.news()
        parameters = {"base": chosen.base, "value": chosen.value} if chosen.arm else {}
        for task, turn in self.unclaimed():  # else another process has said it, or is about to
            if task is RESULT and (trial_id := self.claim(task, turn, parameters)) is not None:
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
    inner: runs the tasks that are ours.
    calls: what the heartbeat says of the task under way, and a failed trial of the calls it made.
    """

    def __init__(self, log: StudyLog, inner: Executor, calls: StudyCalls | None = None) -> None:
        self._log, self._inner, self._calls, self._begun = log, inner, calls, 0
        self._heartbeat = Heartbeat(log.study, log.timing, self._made)
        self._ours: dict[str, int] = {}  # task id -> its trial: what runs
        self._error: Exception = SearchError("its process was stopped")
        self._pause = PAUSES[0]
        self.submit = log.want

    @property
    def free(self) -> bool:
        """Whether it wants to know of more tasks: those that others hold cost nothing."""
        return len(self._log.unclaimed()) < FRONT

    def poll(self, timeout: float) -> Iterator[tuple[Any, Ended]]:
        """Run what is ours, and yield what has ended on the study since, by whoever."""
        try:
            if not (ended := self._log.news()):
                self._claim()
                self._run(timeout)
                ended = self._log.news()
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else SearchError(repr(error))
            raise
        yield from ended

    def cancel(self) -> None:
        """Let go of all workers, and give back what they had."""
        self._inner.cancel()
        for key in list(self._ours):
            self._write(key, self._error)

    def _claim(self) -> None:
        while self._inner.free and (waiting := self._log.unclaimed()):
            # Not all from the front: two processes that look at once should not both want it.
            alone = storage.in_memory(self._log.study)
            task, turn = waiting[0 if alone else random.randrange(min(len(waiting), FRONT))]
            one = isinstance(task, TrainTask) and len(task.segments) == 1
            value = task.segments[0].arm.value if one else math.nan
            shown = {"value": value} if _SPAN.low <= value <= _SPAN.high else {}
            if (trial_id := self._log.claim(task, turn, shown)) is not None:
                self._begun += self._made()
                self._ours[task.id] = trial_id
                self._inner.submit(task)

    def _run(self, timeout: float) -> None:
        """Let our tasks go on; without one, wait for the others and look who of them is gone."""
        if not self._ours:
            if not self._log.end_silent():
                # Of uneven length, so that idle processes do not all look at the same moment.
                time.sleep(min(timeout, self._pause * random.uniform(0.5, 1.5)))
                self._pause = min(2 * self._pause, PAUSES[1])
            return
        self._pause, held = PAUSES[0], list(self._ours.values())
        # The processes of a pool are forked, and threads do not go with that.
        alone = isinstance(self._inner, InProcess)
        with self._heartbeat.during(held) if alone else contextlib.nullcontext():
            for task, how in self._inner.poll(timeout):
                self._write(task.id, how)
                if isinstance(how, Exception) and getattr(how, "key", None) is None:
                    raise how
        self._heartbeat.beat(held)

    def _write(self, key: str, how: Ended) -> None:
        """End a trial of ours, unless it was taken from us meanwhile."""
        trial_id, log = self._ours.pop(key), self._log
        try:
            if not isinstance(how, Died | Exception):
                log.write_outcome(trial_id, how)
                end_trial(log.study, trial_id, TrialState.COMPLETE, math.inf)
                return
            storage.set_trial(log.study, trial_id, CALLS, self._made())
            log.write_fault(trial_id, how)
            end_trial(log.study, trial_id, TrialState.FAIL)
        except RuntimeError:  # UpdateFinishedTrialError: it was thought dead
            logger.warning("%s was given to another worker meanwhile", key)

    def _made(self) -> int:
        """Return the calls of this process since it claimed a task last."""
        return 0 if self._calls is None else self._calls.made - self._begun
