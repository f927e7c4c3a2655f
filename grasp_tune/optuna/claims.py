"""Which cell belongs to which trial, agreed by any number of processes without a lock.

A cell belongs to the trial of its rank: cell k to the k-th trial that was created without a value
of its own. Storages number trials without gaps or doubles, so nothing can be taken twice, and a
worker that died before it wrote anything still owns its cell.

Trials after the last cell take up what failed. They decide in the order of their numbers, each
after all before it have decided; one that does not decide within `PATIENCE` is ended from outside,
after which its owner can write nothing more on it. Where the storage has a heartbeat, such a trial
also waits for the cells that others run, and takes up those whose workers have died.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.plan import Cell
from grasp_tune.core.records import Json
from grasp_tune.executors.study import CELL, end_trial, fail_stale, has_heartbeat, trials_of

PATIENCE = 30.0  # seconds that a trial may take to say which cell it takes
PAUSE = 0.02  # seconds between two looks, at first
LONGEST_PAUSE = 1.0
NEAR = 8  # so many cells before the last, other processes may have taken the rest

_RETRY = "failed_trial"  # Optuna's mark on a trial that its heartbeat callback made
_ENQUEUED = "fixed_params"  # Optuna's mark on a trial that was enqueued
_ENDED_WELL = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True, slots=True)
class Claim:
    """The cell that a trial runs; None where nothing is left to run."""

    cell: Cell | None
    attempt: int  # from 1

    def to_dict(self, plan: str, number: int) -> dict[str, Json]:
        """Return the attribute that says so, in words that a dashboard can show."""
        if self.cell is None:
            return {"index": 0, "plan": plan, "trial": number}
        return {
            "index": self.cell.index,
            "value": self.cell.value,
            "budget": self.cell.budget,
            "attempt": self.attempt,
            "plan": plan,
            "trial": number,
        }


@dataclass(slots=True)
class _Standing:
    """What has become of one cell."""

    live: bool = False  # a trial runs it, or has run it to its end
    failures: int = 0


@dataclass(slots=True)
class _Board:
    """All trials of a study, read at one moment."""

    cells: list[_Standing]
    undecided: list[FrozenTrial] = field(default_factory=list)
    queued: bool = False  # a trial with a cell waits in Optuna's queue
    running: list[FrozenTrial] = field(default_factory=list)  # those that own a cell
    at: dict[int, int] = field(default_factory=dict)  # trial number -> position of its cell

    def open(self, attempts: int) -> list[int]:
        """Positions of the cells that somebody should run."""
        return [
            at for at, cell in enumerate(self.cells) if not cell.live and cell.failures < attempts
        ]


class Claims:
    """The cells of one plan, on one study."""

    def __init__(self, cells: Sequence[Cell], parameter: str, plan: str, attempts: int) -> None:
        self._cells, self._parameter = tuple(cells), parameter
        self._plan, self._attempts = plan, attempts
        self._ranks: list[int] = []  # of trial n: how many before it take part; never changes
        self._taking: list[bool] = []
        self._lock = threading.Lock()

    def take(self, study: optuna.Study, trial: FrozenTrial) -> Claim | None:
        """Return what a trial that begins now runs; None where it has a value of its own."""
        if _RETRY in trial.system_attrs:
            return self._take_up(study, trial)
        if not self._takes_part(trial):
            return None
        rank = self._rank(study, trial)
        if rank < len(self._cells):
            return Claim(self._cells[rank], 1)
        return self._take_up(study, trial)

    def exhausted(self, study: optuna.Study) -> bool:
        """Return whether no cell waits for a trial."""
        board = self._read(study)
        return not board.queued and not board.open(self._attempts)

    def finished(self, study: optuna.Study, ending: FrozenTrial, state: TrialState) -> bool:
        """Return whether nothing is left for this process after a trial that ends in `state`."""
        with self._lock:
            known = self._ranks[-1] + self._taking[-1] if self._ranks else 0
        if known + NEAR < len(self._cells):
            return False  # the usual case, without asking the storage
        board = self._read(study, ending, state)
        if board.queued or board.open(self._attempts):
            return False
        return not (board.running and has_heartbeat(study))

    def lost(self, study: optuna.Study) -> tuple[Cell, ...]:
        """Return the cells that failed too often and are not issued again."""
        board = self._read(study)
        pairs = zip(self._cells, board.cells, strict=True)
        return tuple(c for c, s in pairs if not s.live and s.failures >= self._attempts)

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
            if trial.number < len(self._ranks):
                return self._ranks[trial.number]
            if trial.number == len(self._ranks):
                self._learn(trial)
            else:
                for other in self._trials(study)[len(self._ranks) : trial.number]:
                    self._learn(other)
                self._learn(trial)
            return self._ranks[trial.number]

    def _learn(self, trial: FrozenTrial) -> None:
        before = self._ranks[-1] + self._taking[-1] if self._ranks else 0
        self._ranks.append(before)
        self._taking.append(self._takes_part(trial))

    def _take_up(self, study: optuna.Study, trial: FrozenTrial) -> Claim:
        beating = has_heartbeat(study)
        stuck: dict[int, float] = {}  # trial number -> since when it holds us up
        pause = PAUSE
        while True:
            board = self._read(study)
            waiting = board.open(self._attempts)
            if _RETRY in trial.system_attrs:
                own = board.at.get(int(trial.system_attrs[_RETRY]))
                waiting = [at for at in waiting if at == own]
            before = [item for item in board.undecided if item.number < trial.number]
            if waiting and not before:
                at = waiting[0]
                return Claim(self._cells[at], board.cells[at].failures + 1)
            others = [item for item in board.running if item.number != trial.number]
            if not waiting and (board.queued or not beating or not others):
                return Claim(None, 0)
            # Silent where something waits to be decided, or from birth: its worker is dead.
            mute = [item for item in others if CELL not in item.user_attrs]
            now = time.monotonic()
            silent = {item.number: item for item in (*mute, *(before if waiting else ()))}
            stuck = {number: stuck.get(number, now) for number in silent}
            for number, since in stuck.items():
                if now - since > PATIENCE:
                    end_trial(study, silent[number]._trial_id, TrialState.FAIL)
            if beating and not waiting:
                fail_stale(study)
                pause = min(2 * pause, LONGEST_PAUSE)
            time.sleep(pause)

    def _read(
        self,
        study: optuna.Study,
        ending: FrozenTrial | None = None,
        state: TrialState = TrialState.RUNNING,
    ) -> _Board:
        board = _Board([_Standing() for _ in self._cells])
        for trial, at in self._owners(study, board):
            now = state if ending is not None and trial.number == ending.number else trial.state
            board.queued = board.queued or now == TrialState.WAITING
            if now == TrialState.FAIL:
                board.cells[at].failures += 1
            else:
                board.cells[at].live = True
            if now == TrialState.RUNNING:
                board.running.append(trial)
        return board

    def _owners(self, study: optuna.Study, board: _Board) -> Iterator[tuple[FrozenTrial, int]]:
        """Yield the trials that own a cell, with its position; note those that may yet."""
        rank = 0
        places = {cell.index: at for at, cell in enumerate(self._cells)}
        for trial in self._trials(study):
            takes_part = self._takes_part(trial)
            own_rank, rank = rank, rank + takes_part
            claim = trial.user_attrs.get(CELL)
            at: int | None = None
            # Optuna's retries inherit the attributes of the trial that failed, its number too.
            said = (claim["plan"], claim["trial"]) if isinstance(claim, dict) else None
            if isinstance(claim, dict) and said == (self._plan, trial.number):
                at = places.get(claim["index"])
                if at is None:
                    continue  # it said that nothing was left
            if at is None and _RETRY in trial.system_attrs:
                if trial.state == TrialState.RUNNING:
                    board.undecided.append(trial)
                    continue
                if trial.state == TrialState.WAITING:  # whoever runs it takes the cell up
                    at = board.at.get(int(trial.system_attrs[_RETRY]))
            elif at is None and takes_part:
                if own_rank < len(self._cells):
                    at = own_rank
                elif trial.state == TrialState.RUNNING:
                    board.undecided.append(trial)
            if at is not None:
                board.at[trial.number] = at
                yield trial, at
