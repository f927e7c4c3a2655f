"""The study as the memory of a sweep: who runs which task, and what came out.

A task is claimed by creating a trial that bears its name from birth. Storages number trials in the
order in which they become visible, so of two trials with the same claim all processes agree on the
first; the other one ends at once. Outcomes are attributes of completed trials: every process reads
them and replays the same search.
"""

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import GraspError, SearchError
from grasp_tune.core.records import Json
from grasp_tune.core.search import ATTEMPTS, Search
from grasp_tune.core.tasks import (
    Outcome,
    ProbeOutcome,
    Task,
    TrainOutcome,
    TrainTask,
    outcome_from_dict,
    outcome_to_dict,
    phase_of,
)
from grasp_tune.optuna.attributes import (
    CALLS,
    create_trial,
    end_trial,
    joined,
    set_trial,
    set_trial_text,
    trials_of,
)

logger = logging.getLogger(__name__)

TASK = "grasp:task"  # the claim of a trial
OUTCOME = "grasp:outcome"
LOST = "grasp:lost"  # the checkpoint that a task could not read
ERROR = "grasp:error"  # what its worker raised

MARKS = 8  # points of a training curve that are reported: each costs a write
_SPAN = FloatDistribution(1e-300, 1e300, log=True)


@dataclass(frozen=True, slots=True)
class Claim:
    """A task that is ours to run, and the trial that says so."""

    task: Task
    trial_id: int
    number: int


@dataclass(slots=True)
class _History:
    """The trials of one task, turn by turn; a turn is taken by its first trial."""

    turns: dict[int, FrozenTrial] = field(default_factory=dict)

    @property
    def trials(self) -> list[FrozenTrial]:
        return list(self.turns.values())

    @property
    def running(self) -> FrozenTrial | None:
        return next((t for t in self.turns.values() if not t.state.is_finished()), None)

    @property
    def completed(self) -> list[FrozenTrial]:
        return [t for t in self.turns.values() if t.state == TrialState.COMPLETE]

    @property
    def deaths(self) -> int:
        """How often its worker vanished; what a worker raised is raised, not counted."""
        ended = [t for t in self.turns.values() if t.state == TrialState.FAIL]
        return sum(not {LOST, ERROR} & set(t.system_attrs) for t in ended)

    @property
    def hopeless(self) -> bool:
        """Whether it is no use to run it once more."""
        missed = sum(LOST in trial.system_attrs for trial in self.turns.values())
        return max(self.deaths, missed, len(self.completed) - 1) >= ATTEMPTS


class Ledger:
    """One sweep on one study, as this process sees it."""

    def __init__(self, study: optuna.Study, search: Search, sweep: str, worker: str) -> None:
        self._study, self._search, self._sweep, self._worker = study, search, sweep, worker
        self._outcomes: dict[str, Outcome] = {}
        self._seen: dict[int, Outcome] = {}  # by trial number: read once
        self._histories: dict[str, _History] = {}
        self._losses: dict[str, list[int]] = {}  # checkpoint -> trials that missed it
        self._producers: dict[str, str] = {}  # checkpoint -> the task that writes it

    # -- reading --------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the study, and let the search learn what is new."""
        self._histories, self._losses = {}, {}
        for trial in trials_of(self._study):
            label = trial.system_attrs.get(TASK)
            if not isinstance(label, dict) or label.get("sweep") != self._sweep:
                continue
            history = self._histories.setdefault(label["task"], _History())
            if label["turn"] in history.turns:
                continue  # it came second
            history.turns[label["turn"]] = trial
            if trial.state == TrialState.COMPLETE and trial.number not in self._seen:
                self._seen[trial.number] = _outcome(trial)
            if key := trial.system_attrs.get(LOST):
                self._losses.setdefault(key, []).append(trial.number)
        for task, history in self._histories.items():
            if history.completed:
                self._outcomes[task] = self._seen[history.completed[0].number]
        self._replay()
        self._search.repeated = self._repeated()

    def _replay(self) -> None:
        """Advance as far as what is known goes; a failed task may open the next round."""
        while True:
            before = len(self._search.tasks)
            self._search.replay(self._outcomes, self._failures())
            tasks = self._search.tasks
            self._producers = {key: task.id for task in tasks.values() for key in task.writes}
            if len(tasks) == before:
                return

    def _failures(self) -> dict[str, list[str]]:
        """Return the tasks of this round that are given up, and why."""
        found = {}
        for task in self._search.round_tasks:
            history = self._histories.get(task.id)
            if history is not None and history.deaths >= ATTEMPTS and not history.running:
                found[task.id] = ["its worker died"] * ATTEMPTS
            for key in task.reads:
                maker = self._histories.get(self._producers.get(key, ""), _History())
                if maker.hopeless and self._misses(maker, [key]):
                    reason = f"checkpoint {key} cannot be read, although it was made again"
                    found[task.id] = [reason] * ATTEMPTS
        return found

    def _repeated(self) -> int:
        """Return the oracle calls of work that does not count: done again, or not finished."""
        calls = 0
        for history in self._histories.values():
            calls += sum(self._seen[trial.number].calls for trial in history.completed[1:])
            failed = [t for t in history.trials if t.state == TrialState.FAIL]
            calls += sum(int(trial.system_attrs.get(CALLS, 0)) for trial in failed)
        return calls

    @property
    def origin(self) -> str | None:
        """The digest of the start point that the others have, None before anyone has said."""
        return next((outcome.origin for outcome in self._outcomes.values()), None)

    def open(self) -> list[Task]:
        """Return the tasks that somebody should run now: first those whose checkpoints are lost."""
        tasks = self._search.tasks
        again = [task for task in tasks.values() if self._must_repeat(task)]
        fresh = [task for task in self._search.round_tasks if task not in again]
        return [task for task in (*again, *fresh) if self._free(task)]

    def _free(self, task: Task) -> bool:
        history = self._histories.get(task.id, _History())
        for key in task.reads:
            if key in self._losses and key not in self._producers:
                raise SearchError(f"checkpoint {key} is needed by {task.id}, and no task makes it")
        makers = {self._producers[key] for key in task.reads if key in self._producers}
        blocked = any(self._must_repeat(self._search.tasks[maker]) for maker in makers)
        return history.running is None and not blocked

    def _must_repeat(self, task: Task) -> bool:
        """Whether a checkpoint was missed after the task's last completed trial wrote it."""
        history = self._histories.get(task.id)
        return (
            history is not None
            and bool(history.completed)
            and not history.hopeless
            and self._misses(history, task.writes)
        )

    def _misses(self, history: _History, keys: Iterable[str]) -> bool:
        last = max((trial.number for trial in history.completed), default=-1)
        return any(number > last for key in keys for number in self._losses.get(key, ()))

    def running(self) -> list[FrozenTrial]:
        """Return the trials that hold a task now."""
        found = [history.running for history in self._histories.values()]
        return [trial for trial in found if trial is not None]

    # -- writing --------------------------------------------------------------------------------

    def claim(self, task: Task) -> Claim | None:
        """Return the claim, None where another process was faster."""
        turn = len(self._histories.get(task.id, _History()).turns)
        label = {"sweep": self._sweep, "task": task.id, "turn": turn, "worker": self._worker}
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            system_attrs={TASK: {**label, "runs": _runs(task)}},
            user_attrs={"task": task.id, "phase": phase_of(task), "budget": task.calls},
            **_parameters(task),
        )
        trial_id = create_trial(self._study, template)
        for trial in trials_of(self._study):
            other = trial.system_attrs.get(TASK)
            if isinstance(other, dict) and all(other.get(k) == label[k] for k in list(label)[:3]):
                if trial._trial_id == trial_id:
                    return Claim(task, trial_id, trial.number)
                break
        end_trial(self._study, trial_id, TrialState.PRUNED)
        return None

    def complete(self, claim: Claim, outcome: Outcome) -> bool:
        """Write the outcome and end the trial; False where it was taken from us meanwhile."""
        study = self._study
        try:
            text = json.dumps(outcome_to_dict(outcome), separators=(",", ":"))
            set_trial_text(study, claim.trial_id, OUTCOME, text)
            for call, loss in _marks(claim.task, outcome):
                study._storage.set_trial_intermediate_value(claim.trial_id, call, loss)
        except RuntimeError:  # UpdateFinishedTrialError: it was thought dead
            logger.warning("%s was given to another worker meanwhile", claim.task.id)
            return False
        return end_trial(study, claim.trial_id, TrialState.COMPLETE, _value(outcome))

    def fail(self, claim: Claim, calls: int, *, lost: str = "", error: str = "") -> None:
        """End the trial without an outcome: a checkpoint was missing, or the worker raised."""
        try:
            set_trial(self._study, claim.trial_id, CALLS, calls)
            if lost:
                set_trial(self._study, claim.trial_id, LOST, lost)
            if error:
                set_trial(self._study, claim.trial_id, ERROR, error[:2000])
        except RuntimeError:
            return
        end_trial(self._study, claim.trial_id, TrialState.FAIL)

    def abandon(self, trial: FrozenTrial) -> None:
        """End a trial whose worker is gone; its task is free again."""
        if end_trial(self._study, trial._trial_id, TrialState.FAIL):
            label = trial.system_attrs[TASK]
            logger.warning("the worker of %s is gone: it is run again", label["task"])


def _outcome(trial: FrozenTrial) -> Outcome:
    try:
        return outcome_from_dict(json.loads(joined(trial.system_attrs, OUTCOME)))
    except (ValueError, GraspError) as error:
        raise SearchError(f"trial {trial.number} has no readable outcome: {error}") from None


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


def _marks(task: Task, outcome: Outcome) -> list[tuple[int, float]]:
    """Return a few points of the training curve of a task of one run."""
    if not isinstance(outcome, TrainOutcome) or len(outcome.segments) > 1:
        return []
    points = [p for p in outcome.segments[0].curve if math.isfinite(p.loss)]
    every = -(-len(points) // MARKS)
    return [(p.call, p.loss) for p in points[::-1][:: max(1, every)][::-1]]


def _value(outcome: Outcome) -> float:
    """Return the number to show for a trial: its best finite loss or score."""
    if isinstance(outcome, ProbeOutcome):
        numbers = [outcome.value]
    elif isinstance(outcome, TrainOutcome):
        numbers = [item.loss for item in outcome.segments if item.finite]
    else:
        numbers = [item.mean for item in outcome.samples]
    return min((number for number in numbers if math.isfinite(number)), default=math.inf)
