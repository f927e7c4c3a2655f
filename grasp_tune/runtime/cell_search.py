"""Cells for a training loop of the user's own: which one is next, and which won.

The cells are those of the paper's plan, or of a step search, which goes on by how earlier ones
ended. Asked and told like a search, so that a `Ledger` knows who runs which cell.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from grasp_tune.core.checkpoint_keys import START, iterate_key
from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json, decode, encode, record
from grasp_tune.core.search import ATTEMPTS, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.runtime.result import Result, Run
from grasp_tune.schedules.step_search import StepSearch


def cell_id(index: int) -> str:
    """Return the name of a cell's task."""
    return f"cell{index:03d}"


class CellTask(NamedTuple):
    """One cell to be trained."""

    id: str
    cell: Cell
    parent: str = ""  # the trial whose checkpoint it goes on from; empty: it begins at x0


@record
class CellOutcome:
    """How one cell went."""

    cell: int
    trial: str
    score: float  # the smaller the better; NaN where there was none
    calls: int  # as the trainable counted them


def training_only(plan: Plan) -> Plan:
    """Return the plan with its whole budget for training: the same grid, every cell longer."""
    spent = plan.training_calls
    if spent in (0, plan.total_calls):  # nothing is set aside for anything else
        return plan
    cells = tuple(replace(c, budget=c.budget * plan.budget // spent) for c in plan.cells)
    way: Literal["exact", "window"] = "exact" if plan.ensemble == "exact" else "window"
    nothing: dict[str, Any] = {"probe_gradients": 0, "probe_values": 0, "samples_per_candidate": 0}
    return replace(plan, cells=cells, ensemble=way, **nothing)


class CellSearch:
    """The cells of a plan or a step search, what is known of each, and the best of them."""

    def __init__(self, source: Plan | StepSearch) -> None:
        self.source = source
        self.outcomes: dict[str, CellOutcome] = {}
        self._failures: Counter[str] = Counter()
        self._issued: set[str] = set()
        self.cells: dict[str, Cell] = {}  # known by now
        self.grows = False  # whether further ones follow when these have ended
        self._extend()

    def _extend(self) -> None:
        """Learn which cells are known, after how others ended."""
        known = -1
        while known < len(self.cells):  # once more: cells that are lost may end a round, too
            known = len(self.cells)
            if isinstance(self.source, Plan):
                found: tuple[Cell, ...] = self.source.cells
            else:
                over = {cell.index: key for key, cell in self.cells.items() if self.settled(key)}
                scores = {at: getattr(self.outcomes.get(over[at]), "score", None) for at in over}
                found, last = self.source.trials(scores)
                self.grows = not last
            self.cells.update((cell_id(cell.index), cell) for cell in found)

    def settled(self, key: str) -> bool:
        """Return whether a cell has ended, or has failed too often."""
        return key in self.outcomes or self._failures[key] >= ATTEMPTS

    @property
    def lost(self) -> tuple[Cell, ...]:
        """The cells that failed too often."""
        return tuple(cell for key, cell in self.cells.items() if self._failures[key] >= ATTEMPTS)

    def ask(self) -> CellTask | Step:
        """Return the next cell, or that others must end first, or that all have ended."""
        for key, cell in self.cells.items():
            if key not in self._issued and not self.settled(key):
                self._issued.add(key)
                parent = self.outcomes.get(cell_id(getattr(cell, "parent", 0)))
                return CellTask(key, cell, "" if parent is None else parent.trial)
        return Step.DONE if all(map(self.settled, self.cells)) else Step.WAIT

    def tell(self, task: CellTask | str, outcome: CellOutcome | None, reason: str = "") -> bool:
        """Record how a cell ended; None means that it failed. Returns whether it was news."""
        key = task if isinstance(task, str) else task.id
        if key not in self.cells or self.settled(key):
            return False
        if outcome is not None:
            self.outcomes[key] = outcome
        else:
            self._failures[key] += 1
            self.release(key)
        self._extend()
        return True

    def release(self, task: CellTask | str) -> None:
        """Give a cell back that was asked for and not run: it is issued again."""
        self._issued.discard(task if isinstance(task, str) else task.id)

    @property
    def best(self) -> CellOutcome:
        """The best cell so far; raises where none has a finite score."""
        outcomes = self._ended()
        found = outcomes[best([item.score for item in outcomes])]
        if not math.isfinite(found.score):
            raise SearchError(f"none of the {len(outcomes)} cells that ended has a finite score")
        return found

    def _ended(self) -> list[CellOutcome]:
        if not self.outcomes:
            raise SearchError("there is no result yet: no cell has been run to its end")
        return [self.outcomes[key] for key in self.cells if key in self.outcomes]

    def result(self) -> Result:
        """Return the result without a model: that is in the trial called `best.trial`."""
        calls = {"probe": 0, "train": sum(item.calls for item in self._ended())}
        plan = self.source if isinstance(self.source, Plan) else None
        spec, base = SweepSpec(NonConvex(), self.source.budget, "paper", ensemble="window"), "own"
        if plan is not None:
            spec, base = SweepSpec.of_plan(plan, ensemble="window"), plan.method.base or base
        rows, runs = [Candidate(START, 0, "", math.nan, 0, False, math.nan)], []
        for key, cell in self.cells.items():
            found = self.outcomes.get(key, CellOutcome(cell.index, "", math.nan, 0))
            note = "diverged" if key in self.outcomes else "lost"
            note = "" if math.isfinite(found.score) else note
            at, end = (cell.index, base, cell.value), cell.budget
            point = str(iterate_key(cell.index, end))
            rows.append(Candidate(point, *at, end, False, found.score, note=note))
            whole, losses = ((0, end),), (found.score,)
            runs.append(Run(*at, 0.0, found.calls, not note, whole, curve=(), losses=losses))
        won = min(rows[1:], key=lambda row: (bool(row.note), row.score))
        choice = Choice(
            START if won.note else won.key,
            "value",
            "window",
            tuple(rows),
            covered=False,
            partial=self.grows or not all(map(self.settled, self.cells)),
            notes=("no run reported a finite metric, so x0 is returned",) if won.note else (),
        )
        return Result(
            spec=spec.to_dict(),
            choice=choice,
            plan=plan,
            certificate=None,
            calls={**calls, "ensemble": 0, "repeated": 0},
            runs=tuple(runs),
            tensors={},
        )

    def state(self) -> dict[str, Json]:
        outcomes, failures = encode(tuple(self.outcomes.values())), dict(self._failures)
        return {"plan": encode(self.source), "outcomes": outcomes, "failures": failures}

    @classmethod
    def from_state(
        cls, state: Mapping[str, Json], source: Plan | StepSearch | None = None
    ) -> "CellSearch":
        """Return what `state` wrote; raises where `source`, if given, is another one."""
        plan = state["plan"]
        saved = Plan.from_dict(plan) if "cells" in plan else decode(StepSearch, plan)
        if source is not None and saved != source:
            raise InputError("the saved sweep has another plan than this one")
        found = cls(saved)
        found._failures.update(state["failures"])
        known = [decode(CellOutcome, item) for item in state["outcomes"]]
        found.outcomes = {cell_id(item.cell): item for item in known}
        found._extend()
        return found
