"""Which task belongs to which trial of `study.optimize`, agreed by processes without a lock.

Trials decide in the order of their numbers, each after all before it have decided, so that no two
take the same task. One that does not decide within `PATIENCE` is ended from outside, after which
its owner can write nothing more on it. A trial for which there is nothing yet waits a little for
what others run, and ends without a task; so `timeout=` and Ctrl-C end a study in about their time.
"""

import contextlib
import logging
import math
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.random_streams import words
from grasp_tune.core.search import Search, Step
from grasp_tune.engine.checkpoints import Store
from grasp_tune.executors.optuna import NOTHING, StudyExecutor, StudyLog
from grasp_tune.executors.study import (
    Heartbeat,
    Timing,
    end_trial,
    in_memory,
    in_optimize,
    label_of,
)
from grasp_tune.runtime.cell_search import CellSearch, CellTask
from grasp_tune.runtime.driver import Ledger

logger = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds that a trial may take to say which task it takes
PAUSES = (0.02, 1.0)  # seconds between two looks: the first, and the longest
WAIT = (1.0, 0.25)  # a trial waits so many seconds, or this share of the wait before it


@dataclass(slots=True)
class _Own:
    """A trial of this process that holds a task, while it runs."""

    task: str
    trial_id: int
    thread: int = 0  # whose loop runs it; 0 where it was asked for outside of `optimize`
    calls: int = 0
    beating: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class Assignments:
    """The tasks of one search on one study, as this process knows them.

    log: the search's trials on the study.
    search: what is to run; learns how the trials ended.
    timing: how often a worker says that it lives, and how long a silence means that it does not.
    parameter: trials that have a value of their own for it take no task.
    """

    def __init__(
        self,
        log: StudyLog,
        search: Search | CellSearch,
        timing: Timing | None = None,
        parameter: str | None = None,
        store: Store | None = None,
    ) -> None:
        self.study, self.log, self.search, self.store = log.study, log, search, store
        self._timing = timing or Timing.of(self.study)
        if in_memory(self.study):  # only threads of this process, which do not die
            self._timing = replace(self._timing, grace=math.inf)
        self.ledger = Ledger(search)  # type: ignore[arg-type]
        self._board = StudyExecutor(log, None, self._timing)
        self._parameter = parameter
        self._lock = threading.RLock()
        self.own: dict[int, _Own] = {}  # by trial number
        self._idle: float | None = None  # since when this process has found nothing to run
        self._told = False

    # -- a trial begins -------------------------------------------------------------------------

    def take(self, trial: FrozenTrial) -> None:
        """Give a trial its task, once all trials before it have theirs."""
        self._end_interrupted()
        if self._has_value(trial):
            return
        begun = time.monotonic()
        self._idle = self._idle or begun
        patience = max(WAIT[0], WAIT[1] * (begun - self._idle))
        stuck: dict[int, float] = {}  # trial id -> since when it holds us up
        strangers: set[int] = set()
        pause = PAUSES[0]
        while True:
            with self._lock:
                step = self.learn()
                mute, strangers = self._undecided(trial, strangers)
                found = None if mute else self._pick(trial, step)
                late = time.monotonic() - begun > patience
                if found is None and not mute and (late or not self._hopeful()):
                    found = NOTHING, 0
                if found is not None:
                    self.log.take(trial, *found)
                    break
            now = time.monotonic()
            stuck = {trial_id: stuck.get(trial_id, now) for trial_id in mute}
            for trial_id, since in stuck.items():
                if now - since > PATIENCE:
                    end_trial(self.study, trial_id, TrialState.FAIL)
            time.sleep(pause)
            pause = min(2 * pause, PAUSES[1])
        if (task := found[0]) != NOTHING:
            self._idle = None
            key = task if isinstance(task, str) else task.id
            own = self.own[trial.number] = _Own(key, trial._trial_id)
            if in_optimize(self.study):
                own.thread = threading.get_ident()
                beat = Heartbeat(self.study, self._timing, lambda: own.calls)
                own.beating.enter_context(beat.of([own.trial_id], thread=True))

    def _has_value(self, trial: FrozenTrial) -> bool:
        return self._parameter in trial.system_attrs.get("fixed_params", {})

    def _undecided(self, trial: FrozenTrial, known: set[int]) -> tuple[list[int], set[int]]:
        """Return the trials before this one that may yet take a task, and those that never will.

        Databases are read with several queries, between which others write: a parameter may be
        there and our label, which was written before it, not yet. Whoever looks again sees it.
        """
        before = [item for item in self.log.recent if item.number < trial.number]
        silent = [
            item
            for item in before
            if item.state == TrialState.RUNNING
            and label_of(item) is None
            and not self._has_value(item)
        ]
        strangers = {item._trial_id for item in silent if item.params}
        return [t._trial_id for t in silent if t._trial_id not in strangers & known], strangers

    def _pick(self, trial: FrozenTrial, step: Step) -> tuple[Any, int] | None:
        """Return a task and its turn; None where others must end first."""
        if step is Step.DONE:
            return self.last()
        for task, turn in self._board.unclaimed():
            # Optuna's retry of a trial that failed has its value already.
            given = trial.params.get(self._parameter or "")
            if given is None or (isinstance(task, CellTask) and task.cell.value == given):
                return task, turn
        return None

    def last(self) -> tuple[Any, int] | None:
        """Return what a trial gets when the search is over."""
        return NOTHING, 0

    def _hopeful(self) -> bool:
        """Return whether waiting may help: others run tasks, and may die or lead to further ones.

        Of a trial that was asked for outside of `optimize` nobody can tell whether it lives.
        """
        running = self.log.running()
        return any(item for item in running if self.growing or (label_of(item) or {})["worker"])

    def _end_interrupted(self) -> None:
        """End the trial that Ctrl-C left behind in this thread's loop."""
        here = threading.get_ident()
        for number, own in list(self.own.items()):
            if own.thread == here and in_optimize(self.study):
                end_trial(self.study, own.trial_id, TrialState.FAIL)
                self.forget(number)

    # -- a trial ends ---------------------------------------------------------------------------

    def task(self, number: int) -> str:
        """Return the id of the task that a trial of this process holds."""
        return self.own[number].task if number in self.own else NOTHING

    def forget(self, number: int) -> None:
        """Learn that a trial of this process is over."""
        if number in self.own:
            self.own.pop(number).beating.close()

    def ended(self, number: int, how: Any) -> None:
        """Learn how a trial of this process ends, before that is on the study."""
        if (key := self.task(number)) != NOTHING:
            with self._lock:
                self._board.heard(key)
                self.ledger.ended(key, how)
        self.forget(number)

    @property
    def growing(self) -> bool:
        """Whether further tasks follow when those that run have ended."""
        return self.search.grows if isinstance(self.search, CellSearch) else True

    def learn(self) -> Step:
        """Hear what has ended on the study; return whether the search waits or is done."""
        with self._lock:
            while True:
                step = self._submit()
                if not (news := list(self._board.poll(0.0))):
                    return step
                for task, how in news:
                    self.ledger.ended(task, how)
                if self.store is not None and isinstance(self.search, Search):
                    for key in self.search.discardable():
                        self.store.delete(key)

    def _submit(self) -> Step:
        while not isinstance(step := self.ledger.next(), Step):
            self._board.submit(step)
        return step

    def exhausted(self) -> bool:
        """Return whether no task waits for a trial, now or later, unless one that runs fails."""
        with self._lock:
            step = self.learn()
            return step is Step.DONE or not (self._board.unclaimed() or self.growing)

    def over(self, number: int) -> bool:
        """Return whether nothing is left for this process after one of its trials."""
        with self._lock:
            self._submit()
            if self._board.unclaimed() or not self.exhausted():  # the first asks no storage
                return False
            running = [item for item in self.log.running() if item.number != number]
        if in_memory(self.study) or not running:
            return True
        if any((label_of(item) or {})["worker"] for item in running):
            return False  # it may die, which the next trial would notice
        if not self._told:
            self._told = True
            numbers = [item.number for item in running]
            logger.warning(
                "trials %s, asked for outside of study.optimize, have not been told; where their "
                "workers are dead, study.tell(number, state=optuna.trial.TrialState.FAIL) gives "
                "their cells back",
                numbers,
            )
        return True


class StudySampler(BaseSampler):
    """A sampler that gives each trial a task; what the two kinds of them share."""

    def __init__(self) -> None:
        self._studies: dict[tuple[int, int], Assignments] = {}  # by storage and study

    def _open(self, study: optuna.Study) -> Assignments:
        raise NotImplementedError

    def assignments(self, study: optuna.Study) -> Assignments:
        """Return who does what on a study, as this process knows it."""
        key = (id(study._storage), study._study_id)
        if key not in self._studies:
            self._studies.setdefault(key, self._open(study))
        return self._studies[key]

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Give the trial its task."""
        try:
            self.assignments(study).take(trial)
        except BaseException:
            end_trial(study, trial._trial_id, TrialState.FAIL)  # not left running for ever
            raise

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_studies": {}}  # they are found again from the study


def addressed(
    study: optuna.Study, trial: FrozenTrial, kind: BaseDistribution, name: str, *address: int
) -> Any:
    """Return a random value that is a function of its address, whoever draws it and when."""
    (word,) = words(address[0], "independent", *address[1:], name, count=1).tolist()
    return RandomSampler(seed=word >> 32).sample_independent(study, trial, name, kind)
