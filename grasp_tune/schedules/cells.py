"""Cells for the user's own training loop: which one is next, and which one won.

The cells come from the paper's plan, or from a step search, which chooses them by earlier results.
There is no probe and no resampling: the user's loop reports the score of each cell.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import NonConvex
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.search import Search
from grasp_tune.core.spec import Round, Rounds, SweepSpec
from grasp_tune.core.tasks import (
    Point,
    ProbeOutcome,
    Segment,
    SegmentOutcome,
    Task,
    TrainOutcome,
    TrainTask,
    ended_runs,
)
from grasp_tune.schedules.paper import paper_segments, train_candidates
from grasp_tune.schedules.step_search import StepSearch


@dataclass(frozen=True, slots=True)
class Cells:
    """A schedule with one task per cell, from a plan or from a step search."""

    plan: Plan | None = None  # the paper's plan
    search: StepSearch | None = None  # chooses cells by the results of earlier ones
    parameter: str = ""  # name of the value in the user's loop
    probe: ProbeOutcome | None = None  # the probe that the plan was made from, if there was one

    name: ClassVar[str] = "cells"
    default_base: ClassVar[str | None] = None  # the user's loop has its own optimizer

    @classmethod
    def of(
        cls, plan: Plan | None, budget: int | None, resume: bool, *, longer: bool = False
    ) -> "Cells":
        """Return the cells of a plan, or of a search with a budget.

        longer: spend the plan's whole budget on training (see `training_only`).
        """
        if (plan is None) == (budget is None):
            raise InputError("give either a plan or a budget: budget=10_000 oracle calls")
        if budget is not None:
            return cls(search=StepSearch(budget, resume))
        if not isinstance(plan, Plan):
            raise InputError(f"plan: got {type(plan).__name__}, expected that of NonConvex().plan")
        if not plan.cells:
            raise InputError("plan: it has no cells to run: x0 is the answer already")
        return cls(training_only(plan) if longer else plan)

    @property
    def source(self) -> Plan | StepSearch:
        """The plan or the step search, whichever was given."""
        found = self.plan or self.search
        if found is None:
            raise InputError("schedule: 'cells' needs a plan or a step search")
        return found

    @property
    def values(self) -> tuple[float, float]:
        """The smallest and the largest value that a cell may have."""
        cells = () if self.plan is None else self.plan.cells
        return (cells[0].value, cells[-1].value) if cells else self.source.range

    def spec(self, seed: int = 0) -> SweepSpec:
        """Return the sweep that runs these cells."""
        spec = SweepSpec(NonConvex(), self.source.budget, self, seed, "window")
        if self.plan is None:
            return spec
        return replace(spec, method=SweepSpec.of_plan(self.plan).method)

    def rounds(self, spec: SweepSpec) -> Rounds:
        """Yield the cells round by round; return the best one."""
        tasks: list[TrainTask] = []
        known: dict[str, Any] = {}
        rounds, last, scores = self._rounds(spec), False, None
        while not last:
            runs, last = rounds.send(scores)
            fresh = tuple(TrainTask(cell_id(run.arm.index), (run,)) for run in runs)
            known |= yield Round(fresh, plan=self.plan, last=last)
            tasks += fresh
            ended = ended_runs(fresh, known)
            scores = {run.arm.index: None if item is None else item.loss for run, item in ended}
        start = Candidate(START, 0, "", math.nan, 0, False, math.nan)
        rows = [start, *train_candidates(tasks, known, "value")]
        won = rows[best([row.score for row in rows])].key
        notes = ("no run reported a finite metric, so x0 is returned",) if won == START else ()
        return Choice(won, "value", "window", tuple(rows), covered=False, notes=notes)

    def _rounds(self, spec: SweepSpec) -> Generator[tuple[list[Segment], bool], Any, None]:
        """Yield (runs, whether they are the last); the caller sends their losses."""
        if isinstance(source := self.source, Plan):
            yield paper_segments(spec, source, source.method.base or "own"), True
        else:
            yield from source.rounds()


def cell_id(index: int) -> str:
    """Return the id of a cell's task."""
    return f"cell{index:03d}"


def cell_of(task: Task) -> Cell:
    """Return the cell that a task runs."""
    assert isinstance(task, TrainTask)
    (part,) = task.segments
    return Cell(part.arm.index, part.arm.value, part.calls)


def cell_outcome(
    index: int, budget: int, score: float, calls: int, curve: tuple[Point, ...] = ()
) -> TrainOutcome:
    """Return the outcome of a cell.

    score: lower is better; NaN if there is none.
    calls: as counted by the user's loop; those beyond the cell's budget are noted, not counted.
    """
    used, finite = min(calls, budget), math.isfinite(score)
    run = SegmentOutcome(index, used, finite, score, score, score, curve)
    more = f"cell {index} made {calls} oracle calls, but its budget was {budget}"
    return TrainOutcome(used, "", (run,), more if calls > budget else "")


class CellSearch(Search):
    """A search over `Cells`, led by the best cell that has ended so far."""

    @property
    def leader(self) -> str:
        """The checkpoint to return if everything stopped now."""
        rows = train_candidates(self.tasks.values(), self.outcomes, "value")
        found = rows[best([row.score for row in rows])]
        return found.key if math.isfinite(found.score) else START


def training_only(plan: Plan) -> Plan:
    """Return the plan with its whole budget spent on training: the same grid, longer cells."""
    spent = plan.training_calls
    if spent in (0, plan.total_calls):  # no training, or nothing but training
        return plan
    cells = tuple(replace(c, budget=c.budget * plan.budget // spent) for c in plan.cells)
    nothing: dict[str, Any] = {"probe_gradients": 0, "probe_values": 0, "samples_per_candidate": 0}
    way: Any = "exact" if plan.ensemble == "exact" else "window"
    return replace(plan, cells=cells, ensemble=way, **nothing)
