"""Sweeps whose cells the user's own training loop runs: probe, ledger, result and choice."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from grasp_tune.core import tasks
from grasp_tune.core.errors import CheckpointError, InputError, SearchError, whole
from grasp_tune.core.methods import Method
from grasp_tune.core.records import Json
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.engine.checkpoints import Store
from grasp_tune.engine.problem import TorchProblem, checked_problem
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.store import TemporaryStore
from grasp_tune.schedules.cells import Cells, CellSearch, cell_id, cell_of, cell_outcome
from grasp_tune.schedules.paper import Paper


def probed_cells(
    problem: TorchProblem, budget: int, method: Method | None, parameter: str | None, seed: int
) -> SweepSpec:
    """Return the specification of a sweep over the paper's cells, after a probe at x0."""
    spec, _ = SweepSpec.assemble(method, budget, "paper", seed)
    search, worker = Search(spec), Worker(checked_problem(problem), seed, TemporaryStore())
    while isinstance(task := search.ask(), tasks.ProbeTask):  # the parts, then their sum
        outcome: Any = worker.run(task)
        search.tell(task, outcome)
    if (plan := search.plan) is None or plan.stationary:
        words = "as far as the probe can see, x0 is stationary and there is nothing to search"
        raise SearchError(f"the mean gradient at x0 is zero: {words}")
    name = parameter or ("lr" if plan.quantity == "step size" else "radius")
    return Cells(plan, None, name, replace(outcome, calls=search.calls["probe"])).spec(seed)


class BestCell(NamedTuple):
    """The best cell so far."""

    cell: int  # its index
    trial: str  # the trial that ran it
    score: float  # smaller is better
    calls: int  # oracle calls as counted by its trial


class CellSweep(Ledger):
    """The ledger of a sweep over cells; a score is the mean of an owner's last `window` reports."""

    search: CellSearch

    def __init__(self, spec: SweepSpec, window: int) -> None:
        super().__init__(CellSearch(spec))
        self._window = whole("window", window)
        self._reports: dict[str, list[list[float]]] = {}  # by owner: last (step, score) pairs
        self.trials: dict[str, str] = {}  # task id -> the owner that ran it, for ended tasks

    def hear(self, owner: str, step: int, score: float) -> None:
        """Record a score; the last may come twice, and a restarted owner begins at step 1 again."""
        kept = [item for item in self._reports.get(owner, []) if item[0] < step]
        self._reports[owner] = [*kept, [step, score]][-self._window :]

    def done(self, owner: str, index: object, calls: int) -> None:
        """Record that an owner has completed a cell: the one with `index`, or its own if None."""
        key = cell_id(index) if isinstance(index, int) else self.task_of(owner)
        scores = [score for _, score in self._reports.pop(owner, [])] or [math.nan]
        if key in self.search.tasks and not self.search.settled(key):
            cell, self.trials[key] = cell_of(self.search.tasks[key]), owner
            self.ended(key, cell_outcome(cell.index, cell.budget, sum(scores) / len(scores), calls))

    def gone(self, owner: str, reason: str) -> None:
        self._reports.pop(owner, None)
        super().gone(owner, reason)

    @property
    def best(self) -> BestCell:
        """The best cell so far, with its trial and score; raises an error if there is none."""
        row, ended = cell_result(self.search).choice.chosen, self.search.outcomes
        if not row.arm:
            raise SearchError(f"none of the {len(ended)} cells that ended has a finite score")
        key = cell_id(row.arm)
        return BestCell(row.arm, self.trials[key], row.score, ended[key].calls)

    def state(self) -> dict[str, Json]:
        known = {"reports": self._reports, "trials": self.trials, "running": self.running}
        return {**known, "cells": self.search.state()}

    def load(self, state: Json) -> None:
        """Continue from `state`; raise an error if it belongs to another sweep."""
        if not isinstance(state, dict) or not isinstance(state.get("cells"), dict):
            raise InputError("not a state of cells; where an earlier version wrote it, begin anew")
        if self.search.spec.difference(state["cells"]["spec"]):
            raise InputError("the saved sweep has another plan than this one")
        self.search = CellSearch.from_state(state["cells"], self.search.spec)
        self._reports, self.trials = state["reports"], state["trials"]
        self.running = state["running"]


def cell_result(cells: Search) -> Result:
    """Return the result of a search over cells: the best reported score, without a model."""
    if not cells.outcomes:
        raise SearchError("there is no result yet: no cell has been run to its end")
    found = Result.of(cells, {})
    return replace(found, spec={**found.spec, "schedule": Cells.name})  # the result has the plan


def choose_candidate(
    problem: TorchProblem, cells: Search, store: Store, method: Method | None, *, by_loss: bool
) -> Result:
    """Return the best of the candidates that the cells of a plan left, scored on fresh samples.

    x0 is probed unless `probed_cells` has done so. `method`: see `grasp_tune.optuna.select`.
    """
    plan, seed, probe = cells.plan, cells.spec.seed, getattr(cells.spec.schedule, "probe", None)
    assert plan is not None
    spec = SweepSpec.of_plan(plan, seed, method=method)
    search = Search(replace(spec, schedule=Paper(by_loss=by_loss), probe_parts=1))
    worker = Worker(checked_problem(problem), seed, store)
    while not isinstance(task := search.ask(), Step):
        outcome: tasks.Outcome | None
        if isinstance(task, tasks.TrainTask):
            outcome = cells.outcomes.get(cell_id(task.segments[0].arm.index))
            outcome = None if outcome is None else replace(outcome, origin=worker.origin)
        elif isinstance(task, tasks.ScoreTask):
            outcome = _scored(task, worker)
        else:
            start: Any = probe or worker.run(task)
            given = {"gradient_norm": plan.grad_norm, "value": plan.value}  # give the same cells
            known = {name: value for name, value in given.items() if value is not None}
            outcome = replace(start, **known)
        search.tell(task, outcome, "none of its trials has ended well")
    if lost := sum(not row.note and math.isnan(row.score) for row in search.partial().candidates):
        why = "their artifacts cannot be read, or their loss is not finite"
        search.notes.append(f"{lost} candidates are lost: {why}")
    search.repeated = cells.repeated
    # Only the user knows whether the loop ran the paper's base optimizer.
    search.choice = replace(search.partial(), covered=False)
    tensors = worker.tensors_at(search.choice.key)
    return Result.of(search, tensors, lambda: problem.build(seed))


def _scored(task: tasks.ScoreTask, worker: Worker) -> tasks.ScoreOutcome:
    """Return the scores; a candidate with an incomplete or missing upload gets NaN."""
    calls, samples = 0, list[tasks.SampleOutcome]()
    for sample in task.samples:
        try:
            part: Any = worker.run(replace(task, samples=(sample,)))
            calls, samples = calls + part.calls, [*samples, *part.samples]
        except CheckpointError as error:
            if error.key is None:
                raise
            samples.append(tasks.SampleOutcome(sample.key, 0, math.nan, math.nan))
    return tasks.ScoreOutcome(calls, worker.origin, tuple(samples))
