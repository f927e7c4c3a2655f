"""Which cell belongs to which trial, agreed by any number of processes without a lock.

A cell that is known from the start belongs to the trial of its rank: cell k to the k-th trial that
was created without a value of its own. Storages number trials without gaps or doubles, so nothing
can be taken twice, and a worker that died before it wrote anything still owns its cell.

Later trials take up what failed, and the cells of later rounds. They decide in the order of their
numbers, each after all before it have decided; one that does not decide within `PATIENCE` is ended
from outside, after which its owner can write nothing more on it. A trial for which there is nothing
yet waits a little for the cells that others run, and ends without one.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.plan import Cell
from grasp_tune.executors.study import (
    CELL,
    end_trial,
    fail_stale,
    heartbeat_interval,
    is_dead,
    trials_of,
)
from grasp_tune.optuna.plans import StoredPlan

logger = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds that a trial may take to say which cell it takes
PAUSE = 0.02  # seconds between two looks, at first
LONGEST_PAUSE = 1.0
WAIT = (1.0, 0.25)  # a trial waits so many seconds, or this share of the wait before it
NEAR = 8  # so many cells before the last, other processes may have taken the rest

_RETRY = "failed_trial"  # Optuna's mark on a trial that its heartbeat callback made
_ENQUEUED = "fixed_params"  # Optuna's mark on a trial that was enqueued
_ENDED_WELL = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(slots=True)
class _Standing:
    """What has become of one cell."""

    live: bool = False  # a trial runs it, or has run it to its end
    failures: int = 0
    loss: float | None = None  # of the first trial that ended well
    ended: bool = False


@dataclass(slots=True)
class _Board:
    """All trials of a study, read at one moment."""

    cells: tuple[Cell, ...] = ()  # known by now
    open: list[Cell] = field(default_factory=list)  # those that somebody should run
    lost: list[Cell] = field(default_factory=list)  # those that failed too often
    grows: bool = False  # further cells follow when those that run have ended
    standing: dict[int, _Standing] = field(default_factory=dict)
    undecided: list[FrozenTrial] = field(default_factory=list)
    queued: bool = False  # a trial with a cell waits in Optuna's queue
    running: list[FrozenTrial] = field(default_factory=list)  # those that own a cell
    dead: list[FrozenTrial] = field(default_factory=list)  # whose process is gone
    at: dict[int, int] = field(default_factory=dict)  # trial number -> index of its cell


class Claims:
    """The cells of one plan, on one study.

    stored: what is to run.
    plan: the mark by which trials of this plan are known.
    attempts: trials of a cell that may fail before it is given up.
    """

    def __init__(self, stored: StoredPlan, plan: str, attempts: int) -> None:
        self._stored, self._parameter = stored, stored.parameter
        self._first = stored.cells({})  # they belong to trials by rank
        self._plan, self._attempts = plan, attempts
        self._ranks = [0]  # of trial n: how many before it take part; never changes
        self._lock = threading.Lock()
        self._idle: float | None = None  # since when this process has found nothing to run
        self._told = False

    def take(self, study: optuna.Study, trial: FrozenTrial) -> tuple[Cell | None, int] | None:
        """Return the cell of a trial that begins now and which attempt it is.

        No cell where nothing is left; None where the trial has a value of its own.
        """
        if _RETRY not in trial.system_attrs:
            if not self._takes_part(trial):
                return None
            if (rank := self._rank(study, trial)) < len(self._first):
                return self._first[rank], 1
        found = self._take_up(study, trial)
        if found[0] is not None:
            self._idle = None
        return found

    def exhausted(self, study: optuna.Study) -> bool:
        """Return whether no cell waits for a trial, now or later."""
        board = self._read(study)
        return not (board.queued or board.open or board.grows)

    def finished(
        self,
        study: optuna.Study,
        ending: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> bool:
        """Return whether nothing is left for this process after a trial that ends like this."""
        if self._ranks[-1] + NEAR < len(self._first):
            return False  # the usual case, without asking the storage
        board = self._read(study, ending, state, values)
        if (
            board.queued
            or board.open
            or board.grows
            or (board.running and heartbeat_interval(study) is not None)
        ):
            return False
        if board.running and not self._told:
            self._told = True
            numbers = [trial.number for trial in board.running]
            logger.warning(
                "trials %s still run cells of the plan; where their workers are dead, call "
                "sampler.release(study) and optimize again, or use a storage with a heartbeat",
                numbers,
            )
        return True

    def lost(self, study: optuna.Study) -> tuple[Cell, ...]:
        """Return the cells that failed too often and are not issued again."""
        return tuple(self._read(study).lost)

    def release(self, study: optuna.Study) -> int:
        """End the trials that hold a cell, since their workers are dead; return how many."""
        board = self._read(study)
        held = [*board.running, *board.dead]
        return sum(end_trial(study, trial._trial_id, TrialState.FAIL) for trial in held)

    # -- inside ---------------------------------------------------------------------------------

    def _takes_part(self, trial: FrozenTrial) -> bool:
        """Whether the trial has a rank. The answer never changes after the trial's creation."""
        attributes = trial.system_attrs
        if _RETRY in attributes:
            return False
        if CELL in trial.user_attrs:
            return True
        if self._parameter in attributes.get(_ENQUEUED, {}) or self._parameter in trial.params:
            return False
        # Ended well without a word from us: added by hand, or run with another sampler.
        return trial.state not in _ENDED_WELL

    def _trials(self, study: optuna.Study) -> list[FrozenTrial]:
        """Return all trials, none of them read while its first attributes were being written.

        Databases are read with several queries, between which others write: a parameter may be
        there and our attribute, which was written before it, not yet. Whoever looks again sees it.
        """
        seen: set[int] = set()
        while True:
            trials = trials_of(study)
            torn = {trial.number for trial in trials if self._has_value_alone(trial)}
            if torn <= seen:  # none, or they were not torn: it is a value of their own
                return trials
            seen |= torn

    def _has_value_alone(self, trial: FrozenTrial) -> bool:
        running = trial.state == TrialState.RUNNING
        return running and self._parameter in trial.params and CELL not in trial.user_attrs

    def _rank(self, study: optuna.Study, trial: FrozenTrial) -> int:
        with self._lock:
            known = len(self._ranks) - 1
            before = self._trials(study)[known : trial.number] if trial.number > known else []
            for item in (*before, *([trial] if trial.number >= known else [])):
                self._ranks.append(self._ranks[-1] + self._takes_part(item))
            return self._ranks[trial.number]

    def _take_up(self, study: optuna.Study, trial: FrozenTrial) -> tuple[Cell | None, int]:
        begun = time.monotonic()
        self._idle = self._idle or begun
        patience = max(WAIT[0], WAIT[1] * (begun - self._idle))
        stuck: dict[int, float] = {}  # trial number -> since when it holds us up
        pause = PAUSE
        while True:
            board = self._read(study)
            for item in board.dead:
                end_trial(study, item._trial_id, TrialState.FAIL)
            waiting = board.open
            if _RETRY in trial.system_attrs:
                own = board.at.get(int(trial.system_attrs[_RETRY]))
                waiting = [cell for cell in waiting if cell.index == own]
            before = [item for item in board.undecided if item.number < trial.number]
            if waiting and not before:
                return waiting[0], board.standing[waiting[0].index].failures + 1
            others = [item for item in board.running if item.number != trial.number]
            now, beating = time.monotonic(), heartbeat_interval(study) is not None
            hopeful = others and (beating or board.grows)
            if not waiting and (board.queued or not hopeful or now - begun > patience):
                return None, 0
            # Silent where something waits to be decided, or from birth: its worker is dead.
            mute = [item for item in others if CELL not in item.user_attrs]
            silent = {item.number: item for item in (*mute, *(before if waiting else ()))}
            stuck = {number: stuck.get(number, now) for number in silent}
            for number, since in stuck.items():
                if now - since > PATIENCE:
                    end_trial(study, silent[number]._trial_id, TrialState.FAIL)
            if not waiting:
                if beating:
                    fail_stale(study)
                pause = min(2 * pause, LONGEST_PAUSE)
            time.sleep(pause)

    def _read(
        self,
        study: optuna.Study,
        ending: FrozenTrial | None = None,
        state: TrialState = TrialState.RUNNING,
        values: Sequence[float] | None = None,
    ) -> _Board:
        """Return the board, on which a trial that is just ending has ended."""
        board = _Board()
        sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
        for trial, index in self._owners(study, board):
            now, said = trial.state, trial.values
            if ending is not None and trial.number == ending.number:
                now, said = state, list(values) if values else None
            value = said[0] if said and now == TrialState.COMPLETE else None
            claim = trial.user_attrs.get(CELL, {})
            cell = board.standing.setdefault(index, _Standing())
            dead = now == TrialState.RUNNING and is_dead(claim.get("worker", ""))
            board.queued = board.queued or now == TrialState.WAITING
            if now == TrialState.FAIL or dead or claim.get("void"):
                cell.failures += 1
            else:
                cell.live = True
            if now in _ENDED_WELL and not cell.ended and not claim.get("void"):
                cell.ended = True
                cell.loss = (
                    sign * value if now == TrialState.COMPLETE and value is not None else None
                )
            if now == TrialState.RUNNING:
                (board.dead if dead else board.running).append(trial)
        losses: dict[int, float | None] = {}
        for index, cell in board.standing.items():
            if cell.ended or (not cell.live and cell.failures >= self._attempts):
                losses[index] = cell.loss
        board.cells, board.grows = self._stored.cells(losses), self._stored.may_grow(losses)
        for item in board.cells:
            cell = board.standing.setdefault(item.index, _Standing())
            if not cell.live:
                (board.open if cell.failures < self._attempts else board.lost).append(item)
        return board

    def _owners(self, study: optuna.Study, board: _Board) -> Iterator[tuple[FrozenTrial, int]]:
        """Yield the trials that own a cell, with its index; note those that may yet."""
        rank = 0
        for trial in self._trials(study):
            takes_part = self._takes_part(trial)
            own_rank, rank = rank, rank + takes_part
            claim = trial.user_attrs.get(CELL)
            index: int | None = None
            # Optuna's retries inherit the attributes of the trial that failed, its number too.
            said = (claim["plan"], claim["trial"]) if isinstance(claim, dict) else None
            if isinstance(claim, dict) and said == (self._plan, trial.number):
                index = claim["index"]
                if not index:
                    continue  # it said that nothing was left
            elif _RETRY in trial.system_attrs:
                if trial.state == TrialState.RUNNING:
                    board.undecided.append(trial)
                    continue
                if trial.state == TrialState.WAITING:  # whoever runs it takes the cell up
                    index = board.at.get(int(trial.system_attrs[_RETRY]))
            elif takes_part:
                if own_rank < len(self._first):
                    index = self._first[own_rank].index
                elif trial.state == TrialState.RUNNING:
                    board.undecided.append(trial)
            if index is not None:
                board.at[trial.number] = index
                yield trial, index
