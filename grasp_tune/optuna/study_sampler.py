"""Samplers that give each trial of `study.optimize` a task, in several processes without a lock.

If there is no task for a trial yet, it waits a little, and then ends without one. So `timeout=` and
Ctrl-C end a study with little delay.
"""

import contextlib
import copy
import logging
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from optuna import Study, Trial, TrialPruned
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.random_streams import words
from grasp_tune.core.search import ATTEMPTS, Search, Step
from grasp_tune.executors.study import FRONT, StudyLog, end_trial, in_memory, in_optimize, label_of
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.store import discard

logger = logging.getLogger(__name__)

PAUSE = 0.2  # seconds between two checks for a task
WAIT = (1.0, 0.25)  # a trial waits for a task this long, in seconds, or this share of idle time

Space = dict[str, BaseDistribution]


@dataclass(slots=True)
class _Held:
    """A running trial of this process that holds a task."""

    task: str
    trial_id: int
    thread: int  # the thread whose `optimize` runs it; 0 for `study.ask`
    calls: int = 0
    living: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class Assignments(Ledger):
    """The tasks of one search on one study, as this process knows them.

    parameter: the name of our parameter; trials with an enqueued value for it get no task.
    store: the checkpoints of a whole sweep, whose last trial holds the choice.
    """

    def __init__(
        self, log: StudyLog, search: Search, parameter: str | None = None, store: Any = None
    ) -> None:
        super().__init__(search, select=store is not None)
        self.study, self.log, self.store, self._parameter = log.study, log, store, parameter
        self.held: dict[int, _Held] = {}  # by trial number
        self._lock = threading.RLock()
        self._idle: float | None = None  # since when this process has found nothing to run

    def take(self, trial: FrozenTrial) -> None:
        """Give a trial a task, or none if there is none after a while."""
        thread = threading.get_ident() if in_optimize(self.study) else 0
        for number, held in list(self.held.items()):
            if thread and held.thread == thread:  # left behind in this thread's loop by Ctrl-C
                end_trial(self.study, held.trial_id, TrialState.FAIL)
                self.forget(number)
        if self._parameter in trial.system_attrs.get("fixed_params", {}):
            return
        given = trial.params.get(self._parameter or "")  # set if Optuna retries a failed trial
        begun, front = time.monotonic(), 1
        self._idle = self._idle or begun
        patience = max(WAIT[0], WAIT[1] * (begun - self._idle))
        while True:
            with self._lock:
                self.log.end_silent()
                free = self.learn().log.unclaimed()
                fits = [t for t in free if given is None or t.segments[0].arm.value == given]
                found = random.choice(fits[:front]) if fits else None
                # More tasks may follow when a running one ends or its worker dies. For a trial from
                # `study.ask`, nobody can tell whether its worker is alive.
                running = self.log.running()
                hope = any(self.growing or label_of(item)["worker"] for item in running)
                ready = found or not hope or time.monotonic() - begun > patience
                if ready and self.log.take(trial, found):
                    break
            time.sleep(PAUSE * random.uniform(0.1, 1.0))
            front = FRONT  # avoid the task that others want
        if found:
            self._idle = None
            held = self.held[trial.number] = _Held(found.id, trial._trial_id, thread)
            if thread:
                beating = self.log.beating([held.trial_id], lambda: held.calls)
                held.living.enter_context(beating)

    def forget(self, number: int, how: Any = None) -> None:
        """Record how a trial of this process ended, before that is written on the study."""
        held = self.held.pop(number)
        held.living.close()
        if how is not None:
            with self._lock:
                self.log.heard(number, held.task)
                self.ended(held.task, how)

    def learn(self) -> "Assignments":
        """Return itself, after reading which tasks have ended on the study."""
        with self._lock:
            news: list[Any] | None = None
            while news != []:
                while not isinstance(step := self.next(), Step):
                    self.log.want(step)
                news = self.log.news()
                for task, how in news:
                    self.ended(task.id, how)
            if self.store is not None:
                discard(self.store, self.search.discardable())
        return self

    def exhausted(self) -> bool:
        """Return whether no task is left, now or later, unless a running one fails."""
        with self._lock:
            self.log.end_silent()
            self.learn()
            return not (self.log.unclaimed() or self.growing)

    def over(self, number: int) -> bool:
        """Return whether nothing is left to do for this process after one of its trials."""
        with self._lock:
            exhausted = not self.log.unclaimed() and self.exhausted()  # the cheap check comes first
            others = [item for item in self.log.running() if item.number != number]
        if self.select_failures >= ATTEMPTS:
            self.select_failures = 0  # another `study.optimize` tries again
            advice = (
                "mend the objective and call study.optimize again, or use sampler.result(study)"
            )
            words = "the last trial, which has the chosen weights, failed %d times; %s"
            logger.warning(words, ATTEMPTS, advice)
            return True
        if not exhausted or not others or in_memory(self.study):
            return exhausted
        if any(label_of(item)["worker"] for item in others):
            return False  # its worker may die; the next trial would notice
        numbers = [item.number for item in others]
        words = "trials %s, asked for outside of study.optimize, have not been told; where they are"
        advice = (
            "dead, study.tell(number, state=optuna.trial.TrialState.FAIL) gives back their cells"
        )
        logger.warning(f"{words} {advice}", numbers)
        return True


class StudySampler(BaseSampler):
    """A sampler that gives each trial a task; the sampler `others` draws the other parameters."""

    parameter = ""  # the name of our parameter

    def __init__(self, others: BaseSampler) -> None:
        self._others = others
        self._studies: dict[tuple[int, int], Assignments] = {}  # by storage and study

    def _open(self, study: Study) -> Assignments:
        raise NotImplementedError

    def assignments(self, study: Study) -> Assignments:
        key = (id(study._storage), study._study_id)
        return self._studies.get(key) or self._studies.setdefault(key, self._open(study))

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        try:
            self.assignments(study).take(trial)
        except BaseException:
            end_trial(study, trial._trial_id, TrialState.FAIL)  # else it would run for ever
            raise
        self._others.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Space:
        space = self._others.infer_relative_search_space(study, trial)
        return {name: kind for name, kind in space.items() if name != self.parameter}

    def sample_relative(self, study: Study, trial: FrozenTrial, space: Space) -> dict[str, Any]:
        self._raise_error_if_multi_objective(study)
        prune_surplus(trial)
        found = self._others.sample_relative(study, trial, space) if space else {}
        # A sampler may have its own search space (TPE with group=True) with our parameter in it.
        return {name: value for name, value in found.items() if name in space}

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        self._raise_error_if_multi_objective(study)
        return self._others.sample_independent(study, trial, name, kind)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        """Record how the trial ended, and stop the study's loop when no task is left."""
        self._others.after_trial(study, trial, state, values)
        found, now = self.assignments(study), copy.copy(trial)
        now.state, now.values = state, values  # as the study will have it
        if trial.number in found.held:
            found.forget(trial.number, found.log.ended(now))
        if found.over(trial.number):
            with contextlib.suppress(RuntimeError):  # with ask and tell there is no loop to stop
                study.stop()

    def reseed_rng(self) -> None:
        self._others.reseed_rng()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_studies": {}}  # rebuilt from the study


class Addressed(RandomSampler):
    """A sampler of uniform values from the seed and name alone; with `each`, also from the cell."""

    def __init__(self, seed: int, *, each: bool) -> None:
        super().__init__()
        self._seed, self._each = seed, each

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        label = label_of(trial)
        place = label["index"] - 1 if label.get("index") else trial.number
        again = [turn] if (turn := label.get("turn")) else []  # another attempt at a failed cell
        address = (place, *again, name) if self._each else (name,)
        (word,) = words(self._seed, "independent", *address, count=1).tolist()
        return RandomSampler(seed=word >> 32).sample_independent(study, trial, name, kind)


def prune_surplus(trial: FrozenTrial | Trial) -> None:
    """Raise `TrialPruned` if no task was left for this trial."""
    if label_of(trial).get("task") == "":
        raise TrialPruned("every cell or task has been given to a trial")
