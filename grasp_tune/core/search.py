"""The brain: a schedule's generator of rounds as ask and tell.

The state is the outcomes by task id: feeding them to a fresh generator gives the same search again,
so nothing can depend on the order in which tasks end.
"""

import logging
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from typing_extensions import Self

from grasp_tune.core import tasks
from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.choice import Candidate, Choice, best_seen
from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError, whole
from grasp_tune.core.plan import Plan
from grasp_tune.core.records import Json, decode, encode
from grasp_tune.core.spec import Round, SweepSpec
from grasp_tune.core.tasks import Outcome, ProbeOutcome, ProbeTask, Task
from grasp_tune.schedules.extension import all_rounds, prefix

logger = logging.getLogger(__name__)

SPENT = 0.9  # least share of its budget that a search has used if nothing stopped it early
ATTEMPTS = 3  # a task that fails this often is lost, and so are its candidates


class Step(Enum):
    """What `ask` says when it has no task to give."""

    WAIT = "wait"  # other tasks must end first
    DONE = "done"


@dataclass(frozen=True, slots=True)
class _State:
    """What is saved of a search: everything needed to rebuild it."""

    format: int
    spec: dict[str, Json]
    outcomes: dict[str, Outcome]
    failures: dict[str, list[str]]
    repeated: int
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands, in oracle calls."""

    phase: str  # "probe", "train", "score", "done"
    calls: int  # spent by the tasks that have ended
    budget: int
    best: float  # the best mean loss or score seen so far; NaN before any


def check_origin(found: str, known: str | None) -> None:
    """Raise `SearchError` where a worker starts from another point than the others, if known."""
    if known not in (None, found):
        advice = "`model` must build the same model in every process: seed it, or load it"
        words = f"a worker starts from another point (digest {found}) than the others ({known})"
        raise SearchError(f"{words}; {advice}")


class Search:
    """One sweep as ask and tell: `ask` gives a task, `tell` takes what came of it.

    spec: everything that decides the sweep.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self.spec = spec
        self.plan: Plan | None = None
        self.choice: Choice | None = None
        self.repeated = 0  # calls of outcomes that came more than once
        self.notes: list[str] = []  # what whoever runs the tasks has to say to the reader
        self.tasks: dict[str, Task] = {}  # every task issued in any round so far, by id
        self._outcomes: dict[str, Outcome] = {}
        self.failures: dict[str, list[str]] = {}  # task id -> why its attempts failed
        self.rounds: list[tuple[Task, ...]] = []  # the tasks of each round so far
        self._queue = deque[Task]()
        self._missing = set[str]()  # checkpoints that were lost and are made again
        self._losses = Counter[tuple[str, str]]()  # how often a reader did not find a checkpoint
        self._error: GraspError | None = None  # why the schedule cannot go on
        self._discarded: list[str] = []
        self.origin: str | None = None  # digest of all workers' start point
        self._schedule = all_rounds(spec)
        self._enter(next(self._schedule))
        self._advance()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).from_state, (self.state(), self.spec)  # a generator cannot be pickled

    def ask(self) -> Task | Step:
        """Return the next task, or that others must end first, or that the search is done.

        Raises where what was told makes it impossible to go on, such as a start that is not finite.
        """
        if self._error is not None:
            raise self._error
        if self.choice is not None and not self._missing:
            return Step.DONE
        for _ in range(len(self._queue)):
            task = self._queue.popleft()
            if self._known(task) is None:
                continue
            if self._missing.isdisjoint(task.reads):
                return task
            self._queue.append(task)
        return Step.WAIT

    def tell(self, task: Task | str, outcome: Outcome | None, reason: str = "failed") -> bool:
        """Record how a task ended; None means that it failed. Returns whether it was news.

        May come in any order, twice, late or for an unknown id: what is not news changes nothing.
        Raises `InputError` for an outcome that cannot be this task's.
        """
        if (known := self._known(task)) is None:
            return False
        if outcome is None:
            self._fail(known, reason)
            return True
        tasks.check_answer(known, outcome)
        check_origin(outcome.origin, self.origin)
        self.origin = outcome.origin
        if known.id in self._outcomes:
            self._missing.difference_update(known.writes)
            self.repeated += outcome.calls
            if outcome != self._outcomes[known.id]:
                why = "the loss or the hardware is not deterministic"
                self.notes.append(f"repeated: {known.id} came out differently; {why}")
                logger.warning(self.notes[-1])
        else:
            self._outcomes[known.id] = outcome
            self.failures.pop(known.id, None)  # they have passed; a repetition starts afresh
            self._advance()
        return True

    def release(self, task: Task | str) -> None:
        """Give a task back that was asked for and not run: it is issued again."""
        known = self._known(task)
        if known is not None and known not in self._queue:
            self._queue.appendleft(known)

    def lost_checkpoint(self, task: Task | str, key: str) -> None:
        """A task could not read checkpoint `key`: repeat what wrote it, then run the task again."""
        if (known := self._known(task)) is None:
            return
        if key in known.writes:
            self._fail(known, f"it cannot write checkpoint {key}")
        elif not self._repeat(known.id, key):
            self._fail(known, f"checkpoint {key} cannot be read, although it was made again")
        else:
            self.release(known)

    def make_again(self, key: str) -> None:
        """Have the chosen checkpoint made again; `CheckpointError` where that failed too often."""
        if not self._repeat("the result", key):
            raise CheckpointError(f"checkpoint {key} cannot be read, although it was made again")

    @property
    def progress(self) -> Progress:
        phase = "done" if self.choice is not None else self._round.tasks[0].phase
        calls, best = sum(self.calls.values()) - self.repeated, best_seen(self._outcomes.values())
        return Progress(phase, calls, self.spec.budget, best)

    @property
    def calls(self) -> dict[str, int]:
        """Oracle calls answered, by purpose; work done twice is apart."""
        spent = {"probe": 0, "train": 0, "ensemble": 0, "repeated": self.repeated}
        for outcome in self._outcomes.values():
            spent["ensemble" if outcome.phase == "score" else outcome.phase] += outcome.calls
        return spent

    @property
    def depth(self) -> int:
        """Steps on the longest chain: round by round, those of the longest task that has ended."""
        known = self._outcomes
        depths = ([tasks.depth_of(x, known[x.id]) for x in r if x.id in known] for r in self.rounds)
        return sum(max(found, default=0) for found in depths)

    @property
    def growing(self) -> bool:
        """Whether further tasks follow when those of the current round have ended."""
        return self.choice is None and not self._round.last

    @property
    def round_tasks(self) -> tuple[Task, ...]:
        """The tasks of the current round that have not ended."""
        found = () if self.choice is not None else self._round.tasks
        return tuple(task for task in found if not self.settled(task.id))

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """What is known, by task id, in the order in which the schedule issued the tasks."""
        return {key: self._outcomes[key] for key in self.tasks if key in self._outcomes}

    @property
    def begun(self) -> bool:
        """Whether an outcome is known that is not of a budget that it extends."""
        return any(key.startswith(prefix(self.spec)) for key in self._outcomes)

    @property
    def leader(self) -> str:
        """The checkpoint to return if everything stopped now."""
        return self.choice.key if self.choice is not None else self._round.leader

    def partial(self) -> Choice:
        """Return the choice, or the best so far marked partial where the search is not done."""
        if self.choice is not None:
            return self.choice
        known = self._outcomes.values()
        start = next((item for item in known if isinstance(item, ProbeOutcome)), None)
        seen = (start.value, start.values, start.value_square) if start else (math.nan, 0, 0.0)
        rows = [Candidate(START, 0, "", math.nan, 0, False, *seen)]
        for segment, result in tasks.ended_runs(self.tasks.values(), self._outcomes):
            if result is not None:
                loss, note = (result.loss, "") if result.finite else (math.nan, "diverged")
                rows += [Candidate.of(key, segment.arm, loss, note) for key in segment.writes]
        lost = (f"{key} was lost: {reason}" for key, reason in self.lost.items())
        notes = ("stopped before the end: this is the best point so far", *lost)
        return Choice(self.leader, "value", "partial", tuple(rows), partial=True, notes=notes)

    @property
    def lost(self) -> dict[str, str]:
        """Tasks given up after too many failures, and why."""
        return {key: why[-1] for key, why in self.failures.items() if self._given_up(key)}

    def discardable(self) -> tuple[str, ...]:
        """Return, once, the checkpoints that no task will read again."""
        keys, self._discarded = tuple(self._discarded), []
        return keys

    def state(self) -> dict[str, Json]:
        """Return everything needed to rebuild the search, as JSON values."""
        known = self.spec.to_dict(), dict(self.outcomes), self.failures
        return dict(encode(_State(2, *known, self.repeated, self.notes)))

    @classmethod
    def from_state(
        cls, state: Json, spec: SweepSpec | None = None, *, extend: bool = False
    ) -> Self:
        """Return the search that `state` describes; `spec` must agree with it if given.

        extend: where the search has ended and `spec` has more budget, return one that goes on.
        """
        if not isinstance(state, dict) or state.get("format") != 2:
            raise InputError("not a search state of format 2")
        found = decode(_State, state)
        spec = spec or SweepSpec.from_dict(found.spec)
        before = spec.before(found.spec) if extend else spec
        if before.budget < spec.budget:
            if cls.from_state(state, before).choice is None:
                difference = spec.difference(found.spec)
                raise InputError(f"the saved search differs, and has not ended: {difference}")
            before = replace(spec, extends=(*before.extends, before.budget))
        elif difference := before.difference(found.spec):
            raise InputError(f"the saved search differs from this one: {difference}")
        search = cls(before)
        search.replay(found.outcomes, found.failures)
        search.repeated, search.notes = whole("repeated", found.repeated, 0), found.notes
        return search

    def prolonged(self, more: int) -> Self | None:
        """Return a search that goes on with so many more calls, if they can be used.

        None if there are none, or the search has not ended, or it ended before its budget was spent
        (early stopping), or it chose x0, or its schedule cannot go on.
        """
        spent = self.progress.calls >= SPENT * self.spec.budget
        if not (more and spent and self.choice and self.choice.chosen.arm):
            return None
        if not hasattr(self.spec.schedule, "further_run"):
            return None
        spec = replace(self.spec, budget=self.spec.budget + more)
        return type(self).from_state(self.state(), spec, extend=True)

    def replay(
        self, outcomes: Mapping[str, Outcome], failures: Mapping[str, list[str]] | None = None
    ) -> None:
        """Learn many outcomes at once, in any order; ids that never come up are ignored."""
        self.failures.update({key: list(reasons) for key, reasons in (failures or {}).items()})
        self._advance()
        while fresh := [task for task in self.round_tasks if task.id in outcomes]:
            for task in fresh:
                self.tell(task, outcomes[task.id])

    def _given_up(self, key: str) -> bool:
        return len(self.failures.get(key, ())) >= ATTEMPTS

    def settled(self, key: str) -> bool:
        return key in self._outcomes or self._given_up(key)

    def _known(self, task: Task | str) -> Task | None:
        """Return the task of that id, None where there is none, or where its end is no news."""
        known = self.tasks.get(task if isinstance(task, str) else task.id)
        if known and self.settled(known.id) and self._missing.isdisjoint(known.writes):
            return None
        return known

    def _repeat(self, reader: str, key: str) -> bool:
        """Have a checkpoint made again; returns False where that was tried too often."""
        made = (task for task in reversed(self.tasks.values()) if key in task.writes)
        if (producer := next(made, None)) is None:
            raise SearchError(f"checkpoint {key} is needed by {reader}, and no task makes it")
        if news := self._missing.isdisjoint(producer.writes):  # else it is being made already
            self._losses[reader, key] += 1
            if self._losses[reader, key] > ATTEMPTS or self._given_up(producer.id):
                return False
            logger.warning("checkpoint %s cannot be read: %s is repeated", key, producer.id)
        self._missing.add(key)
        if news:
            self.release(producer)
        return True

    def _fail(self, task: Task, reason: str) -> None:
        self.failures.setdefault(task.id, []).append(reason)
        if not self._given_up(task.id):
            self.release(task)
        elif isinstance(task, ProbeTask):
            del self.failures[task.id]  # whoever goes on tries it afresh
            why = f"so nothing can be trained: {reason}"
            raise SearchError(f"the probe failed {ATTEMPTS} times, {why}")
        else:
            logger.warning("%s failed %d times and is lost: %s", task.id, ATTEMPTS, reason)
            self._missing.difference_update(task.writes)
            self._advance()

    def _enter(self, step: Round) -> None:
        self._round = step
        self._open = [task.id for task in step.tasks]
        self.rounds.append(step.tasks)
        asked, left = sum(task.calls for task in step.tasks), self.spec.budget
        left -= sum(outcome.calls for outcome in self._outcomes.values())
        if asked > left:
            raise SearchError(f"the schedule asks for {asked} oracle calls, but {left} are left")
        self.plan = step.plan or self.plan
        self._discarded.extend(step.discard)
        for task in step.tasks:
            if task.id in self.tasks:
                raise SearchError(f"the schedule used the task id {task.id} twice")
            self.tasks[task.id] = task
            self._queue.append(task)

    def _advance(self) -> None:
        while self.choice is None:
            while self._open and self.settled(self._open[-1]):  # each is looked at once
                self._open.pop()
            if self._open:
                return
            known = {task.id: self._outcomes.get(task.id) for task in self._round.tasks}
            try:
                self._enter(self._schedule.send(known))
            except StopIteration as end:
                self.choice = end.value
            except GraspError as error:
                self._error = error
                raise
