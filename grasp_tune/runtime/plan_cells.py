"""The cells of a plan for a training loop of the user's own: which one is next, and which won.

Asked and told like a search, so that a `Ledger` knows who runs which cell. Nothing is sampled at
the start point and no candidate is scored again, so the whole budget goes to training.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from grasp_tune.core.checkpoint_keys import START, iterate_key
from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json, decode, encode, record
from grasp_tune.core.search import ATTEMPTS, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.runtime.result import Result, Run


@dataclass(frozen=True, slots=True)
class CellTask:
    """One cell to be trained."""

    cell: Cell

    @property
    def id(self) -> str:
        return cell_id(self.cell.index)


@record
class CellOutcome:
    """How one cell went."""

    cell: int
    trial: str
    score: float  # the smaller the better; NaN where there was none
    calls: int  # as the trainable counted them


def cell_id(index: int) -> str:
    """Return the name of a cell's task."""
    return f"cell{index:03d}"


def training_only(plan: Plan) -> Plan:
    """Return the plan with its whole budget for training: the same grid, every cell longer."""
    spent = plan.training_calls
    if spent in (0, plan.total_calls):  # nothing is set aside for anything else
        return plan
    cells = tuple(replace(c, budget=c.budget * plan.budget // spent) for c in plan.cells)
    return replace(
        plan,
        cells=cells,
        probe_gradients=0,
        probe_values=0,
        samples_per_candidate=0,
        ensemble="exact" if plan.ensemble == "exact" else "window",
    )


class PlanCells:
    """The cells, what is known of each, and the best of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = training_only(plan)
        self.cells = {cell_id(cell.index): cell for cell in self.plan.cells}
        self.outcomes: dict[str, CellOutcome] = {}
        self._failures: dict[str, int] = {}
        self._queue = deque(self.cells)

    def settled(self, key: str) -> bool:
        """Return whether a cell has ended, or has failed too often."""
        return key in self.outcomes or self._failures.get(key, 0) >= ATTEMPTS

    # -- ask and tell ---------------------------------------------------------------------------

    def ask(self) -> CellTask | Step:
        """Return the next cell, or that others must end first, or that all have ended."""
        while self._queue:
            if not self.settled(key := self._queue.popleft()):
                return CellTask(self.cells[key])
        return Step.DONE if all(map(self.settled, self.cells)) else Step.WAIT

    def tell(self, task: CellTask | str, outcome: CellOutcome | None, reason: str = "") -> bool:
        """Record how a cell ended; None means that it failed. Returns whether it was news."""
        key = task if isinstance(task, str) else task.id
        if key not in self.cells or self.settled(key):
            return False
        if outcome is not None:
            self.outcomes[key] = outcome
        else:
            self._failures[key] = self._failures.get(key, 0) + 1
            self.release(key)
        return True

    def release(self, task: CellTask | str) -> None:
        """Give a cell back that was asked for and not run: it is issued again."""
        key = task if isinstance(task, str) else task.id
        if key in self.cells and not self.settled(key) and key not in self._queue:
            self._queue.appendleft(key)

    # -- what users ask -------------------------------------------------------------------------

    @property
    def best(self) -> CellOutcome:
        """The best cell so far; raises where none has a finite score."""
        outcomes = list(self.outcomes.values())
        if not outcomes:
            raise SearchError("there is no result yet: no cell has been run to its end")
        found = outcomes[best([item.score for item in outcomes])]
        if not math.isfinite(found.score):
            raise SearchError(f"none of the {len(outcomes)} cells that ended has a finite score")
        return found

    def result(self) -> Result:
        """Return the result without a model: that is in the trial called `best.trial`."""
        won = any(math.isfinite(item.score) for item in self.outcomes.values())
        if not self.outcomes:
            raise SearchError("there is no result yet: no cell has been run to its end")
        rows = [Candidate(START, 0, "", math.nan, 0, False, math.nan)]
        runs, base = [], self.plan.method.base or "own"
        for key, cell in self.cells.items():
            outcome = self.outcomes.get(key)
            score = math.nan if outcome is None else outcome.score
            note = "" if math.isfinite(score) else ("diverged" if outcome else "lost")
            point, index = str(iterate_key(cell.index, cell.budget)), cell.index
            rows.append(
                Candidate(
                    point, index, base, cell.value, cell.budget, False, score, 0, math.nan, note
                )
            )
            calls, whole = 0 if outcome is None else outcome.calls, ((0, cell.budget),)
            runs.append(
                Run(index, base, cell.value, 0.0, calls, not note, whole, curve=(), losses=(score,))
            )
        chosen = self.cells[cell_id(self.best.cell)] if won else None
        choice = Choice(
            START if chosen is None else str(iterate_key(chosen.index, chosen.budget)),
            "value",
            "window",
            tuple(rows),
            covered=False,
            partial=not all(map(self.settled, self.cells)),
            notes=() if won else ("no run reported a finite metric, so x0 is returned",),
        )
        spent = sum(run.calls for run in runs)
        return Result(
            spec=SweepSpec.of_plan(self.plan, ensemble="window").to_dict(),
            choice=choice,
            plan=self.plan,
            certificate=None,
            calls={"probe": 0, "train": spent, "ensemble": 0, "repeated": 0},
            runs=tuple(runs),
            tensors={},
        )

    # -- state ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Json]:
        return {
            "plan": self.plan.to_dict(),
            "outcomes": encode(tuple(self.outcomes.values())),
            "failures": dict(self._failures),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Json], plan: Plan | None = None) -> "PlanCells":
        """Return what `state` wrote; raises where `plan`, if given, is another one."""
        saved = Plan.from_dict(state["plan"])
        if plan is not None and saved != plan:
            raise InputError("the saved sweep has another plan than this one")
        cells = cls(saved)
        for item in state["outcomes"]:
            outcome = decode(CellOutcome, item)
            cells.outcomes[cell_id(outcome.cell)] = outcome
        cells._failures = {key: int(count) for key, count in state["failures"].items()}
        return cells
