"""The sampler behind `optimizer(trial, model)`: each trial is given one task of the whole method.

Trials decide in the order of their numbers, each after all before it have decided, so that no two
take the same task and no lock is needed; see `claims`. What a task found is written on its trial,
which ends pruned: it is no result. The last trial has the chosen weights, and its value counts.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import optuna
from optuna.artifacts._protocol import ArtifactStore
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.random_streams import words
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.tasks import Outcome, Task
from grasp_tune.engine.checkpoints import Tensors
from grasp_tune.executors.optuna import (
    ERROR,
    LOST,
    RESULT,
    TASK,
    Bystander,
    StudyExecutor,
    StudyLog,
)
from grasp_tune.executors.study import (
    Heartbeat,
    Timing,
    end_trial,
    in_memory,
    in_optimize,
    is_dead,
    set_trial,
    trials_of,
)
from grasp_tune.loop.loop_optimizer import check_spec
from grasp_tune.optuna.claims import LONGEST_PAUSE, PATIENCE, PAUSE
from grasp_tune.optuna.runner import sweep_on, write_choice
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.result import Result

NOTHING = ""  # the task of a trial for which none was left


class TaskSampler(BaseSampler):
    """Runs the whole method on an objective that calls `grasp_tune.optuna.optimizer(trial, model)`.

    budget: T, the oracle calls (steps of the objective's loop) over all trials.
    method: `NonConvex()` by default; `Convex` or `ConvexFree`.
    schedule: `promote` by default; `paper` is the paper's algorithm to the letter.
    seed: fixes the method's choices, the minibatches of a shuffling loader, and the values of other
        parameters that the objective suggests: they are the same in all trials.
    artifact_store: where checkpoints go; needed unless the study lives in this process's memory.
    timing: how often a worker says that it lives, and after how long a silence another takes its
        task over; by default the storage's heartbeat settings, or 5 and 60 seconds.
    """

    def __init__(
        self,
        budget: int,
        method: Method | None = None,
        schedule: AnySchedule = "promote",
        seed: int = 0,
        *,
        artifact_store: ArtifactStore | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._spec, bases = SweepSpec.assemble(method, budget, schedule, seed, probe_parts=1)
        check_spec(self._spec, bases)
        self._artifacts, self._timing = artifact_store, timing
        self._desks: dict[tuple[int, int], _Desk] = {}  # by storage and study

    def _desk(self, study: optuna.Study) -> "_Desk":
        key = (id(study._storage), study._study_id)
        if key not in self._desks:
            desk = _Desk(study, self._spec, self._artifacts, self._timing)
            self._desks.setdefault(key, desk)
        return self._desks[key]

    def task_of(self, trial: optuna.Trial) -> "ObjectiveTrial":
        """Return the trial with its task, for `optimizer`."""
        return ObjectiveTrial(self._desk(trial.study), trial, self._spec.seed)

    def result(self, study: optuna.Study) -> Result:
        """Return the result; the best so far, marked partial, where the search has not ended."""
        desk = self._desk(study)
        return desk.result(lambda key: desk.store.read(key).tensors)

    # -- what Optuna asks -----------------------------------------------------------------------

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Give the trial its task."""
        try:
            self._desk(study).take(trial)
        except BaseException:
            end_trial(study, trial._trial_id, TrialState.FAIL)  # not left running for ever
            raise

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return nothing: other parameters are independent of each other."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a value that is the same in all trials: they train one model."""
        (word,) = words(self._spec.seed, "independent", param_name, count=1).tolist()
        constant = RandomSampler(seed=word >> 32)
        return constant.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End the study's loop when the search is over; say so where a loop ended early."""
        desk = self._desk(study)
        task = desk.key(trial.number)
        desk.forget(trial.number)
        if task == NOTHING or (task == RESULT and state == TrialState.COMPLETE):
            with contextlib.suppress(RuntimeError):  # with ask and tell there is no loop to end
                study.stop()
        elif task != RESULT and state == TrialState.COMPLETE:
            set_trial(study, trial._trial_id, ERROR, "its loop ended early")
            raise InputError(
                f"the objective ended in the middle of {task} (trial {trial.number}): make its "
                "optimizer with grasp_tune.optuna.optimizer(trial, model), and loop until opt.done"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_desks": {}}  # they are found again from the study


@dataclass(slots=True)
class _Given:
    """What a trial of this process was given, while it runs."""

    key: str  # of the task
    trial_id: int
    thread: int
    calls: int = 0
    beating: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class _Desk:
    """The search as this process knows it from one study, and the tasks of its own trials."""

    def __init__(
        self,
        study: optuna.Study,
        spec: SweepSpec,
        artifact_store: ArtifactStore | None,
        timing: Timing | None,
    ) -> None:
        sweep, self.store = sweep_on(study, spec, artifact_store)
        self.study, self.log = study, StudyLog(study, sweep)
        self._timing = timing or Timing.of(study)
        if in_memory(study):  # only threads of this process, which do not die
            self._timing = replace(self._timing, grace=math.inf)
        self._ledger = Ledger(Search(spec))
        self._board = StudyExecutor(self.log, Bystander(), self._timing)
        self._lock = threading.Lock()
        self.given: dict[int, _Given] = {}  # by trial number
        self._missed: set[int] = set()  # turns of the last trial that could not read the choice

    def take(self, trial: FrozenTrial) -> None:
        """Give a trial a task, once all trials before it have one; waits while others run."""
        here = threading.get_ident()
        for number in [key for key, item in self.given.items() if item.thread == here]:
            if in_optimize(self.study):  # which was interrupted in that trial
                end_trial(self.study, self.given[number].trial_id, TrialState.FAIL)
                self.forget(number)
        stuck: dict[int, float] = {}  # trial id -> since when it holds us up
        pause = PAUSE
        while True:
            # The trials first: whatever those before it have taken is then on the study.
            mute = [
                item._trial_id
                for item in trials_of(self.study)[: trial.number]
                if item.state == TrialState.RUNNING and TASK not in item.system_attrs
            ]
            with self._lock:
                if not mute and (found := self._pick()) is not None:
                    key = self.log.take(trial._trial_id, *found)
                    break
            now = time.monotonic()
            stuck = {trial_id: stuck.get(trial_id, now) for trial_id in mute}
            for trial_id, since in stuck.items():
                if now - since > PATIENCE:
                    end_trial(self.study, trial_id, TrialState.FAIL)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        given = self.given[trial.number] = _Given(key, trial._trial_id, here)
        beat = Heartbeat(self.study, self._timing, lambda: given.calls)
        given.beating.enter_context(beat.of([trial._trial_id], thread=True))

    def key(self, number: int) -> str:
        """Return the task of a trial of this process."""
        return self.given[number].key if number in self.given else NOTHING

    def forget(self, number: int) -> None:
        """Learn that a trial of this process is over."""
        if number in self.given:
            self.given.pop(number).beating.close()

    def task(self, key: str) -> Task:
        """Return a task by its id."""
        return self._ledger.search.tasks[key]

    def result(self, place: Callable[[str], Tensors]) -> Result:
        """Return the result; `place` gives the tensors of a checkpoint."""
        with self._lock:
            self._learn()
            search = self._ledger.search
            tensors = place(search.partial().key)
            self._ledger.settle(self.log.calls)
            return Result.of(search, tensors)

    def _learn(self) -> Step:
        """Hear what has ended on the study; return whether the search waits or is done."""
        while True:
            while not isinstance(step := self._ledger.next(), Step):
                self._board.submit(step)
            if not (news := list(self._board.poll(0.0))):
                return step
            for task, how in news:
                self._ledger.ended(task, how)
            for key in self._ledger.search.discardable():
                self.store.delete(key)

    def _pick(self) -> tuple[Task | str, int] | None:
        """Return a task and its turn, or that the search is over; None where others must end."""
        if self._learn() is Step.WAIT:
            return next(iter(self._board.unclaimed()), None)
        turn = 0
        while (holder := self.log.at(RESULT, turn)) is not None:
            if (lost := holder.system_attrs.get(LOST)) is not None:
                if turn not in self._missed:
                    self._missed.add(turn)
                    self._ledger.search.make_again(lost)
                    return self._pick()
            elif not holder.state.is_finished() and is_dead(holder.system_attrs[TASK]["worker"]):
                end_trial(self.study, holder._trial_id, TrialState.FAIL)
            elif holder.state != TrialState.FAIL:
                return NOTHING, 0
            turn += 1
        return RESULT, turn


class ObjectiveTrial:
    """A trial of an objective; see `loop.task_optimizer.TaskTrial`."""

    def __init__(self, desk: _Desk, trial: optuna.Trial, seed: int) -> None:
        self._desk, self._trial, self.seed, self.store = desk, trial, seed, desk.store
        key = desk.key(trial.number)
        if key == NOTHING:
            raise optuna.TrialPruned("the search is over, and the chosen weights have a trial")
        self.task: Task | None = None if key == RESULT else desk.task(key)

    def select(self, place: Callable[[str], Tensors]) -> Result:
        """Write on the trial what was chosen; the objective goes on."""
        result = self._desk.result(place)
        write_choice(self._desk.study, result)
        chosen = result.choice.chosen
        for name, value in (("base", chosen.base), ("step", chosen.value)):
            self._trial.set_user_attr(name, value)
        return result

    def called(self, calls: int) -> None:
        """Note it for the heartbeat."""
        self._desk.given[self._trial.number].calls = calls

    def end(self, outcome: Outcome) -> NoReturn:
        """Write the outcome on the trial, and end it."""
        assert self.task is not None
        self._desk.log.write_outcome(self._trial._trial_id, outcome)
        raise optuna.TrialPruned(f"{self.task.id} has ended; a part of the search is no result")

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Have a lost checkpoint made again; anything else is the user's to see."""
        try:
            yield
        except CheckpointError as error:
            if error.key is None or (self.task is not None and error.key not in self.task.reads):
                raise
            set_trial(self._desk.study, self._trial._trial_id, LOST, error.key)
            raise optuna.TrialPruned(f"checkpoint {error.key} is lost: it is made again") from None
