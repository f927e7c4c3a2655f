"""The cells of a study's trials: what they are to run, who holds which, and how they went."""

import math
from dataclasses import dataclass, replace
from typing import Any

from optuna import Study, Trial
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json, decode, encode
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask
from grasp_tune.engine.problem import TorchProblem, checked_problem
from grasp_tune.engine.worker import Worker
from grasp_tune.executors import study as storage
from grasp_tune.executors.optuna import NOTHING, StudyLog
from grasp_tune.executors.study import CALLS, PLAN, TASK, label_of
from grasp_tune.runtime.cell_search import CellOutcome, CellTask
from grasp_tune.runtime.executor import Died
from grasp_tune.runtime.store import TemporaryStore
from grasp_tune.schedules.paper import paper_segments
from grasp_tune.schedules.step_search import StepSearch


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """What the trials of a study are to run: written there once, read by every process."""

    plan: Plan | None  # the paper's, or
    search: StepSearch | None  # one that goes on by how earlier cells ended
    parameter: str
    seed: int
    probe: ProbeOutcome | None = None  # what the plan was made from, where we probed

    @property
    def source(self) -> Any:
        """Whichever of the two it is."""
        return self.plan or self.search

    @property
    def mark(self) -> str:
        """A name by which the trials of this plan are known."""
        return storage.fingerprint(encode(self))

    @property
    def range(self) -> tuple[float, float]:
        """The smallest range that holds every cell's value."""
        cells = () if self.plan is None else self.plan.cells
        return (cells[0].value, cells[-1].value) if cells else self.source.range

    def kept(self) -> dict[int, tuple[int, ...]]:
        """Return after which calls of a cell the iterate is a candidate, as the paper has it."""
        if self.plan is None:
            return {}
        runs = paper_segments(SweepSpec.of_plan(self.plan, self.seed), self.plan, "sgd")
        return {run.arm.index: run.keep for run in runs}

    def difference(self, other: "StoredPlan") -> str:
        """Return in what two differ, with both values; empty where they do not."""
        one, two = ({**encode(item), **encode(item.source)} for item in (self, other))
        plain = [name for name in one if name not in ("plan", "search", "probe", "cells")]
        pairs = [(name, one[name], two.get(name)) for name in plain]
        found = [f"{name} {a!r} there, {b!r} here" for name, a, b in pairs if a != b]
        return "; ".join(found) or ("" if one == two else "its cells differ")


def stored_plan(study: Study, wanted: StoredPlan | None = None) -> StoredPlan | None:
    """Return the plan on the study, None where there is none; `wanted` is written there then."""
    data = storage.study_json(study, PLAN, None if wanted is None else encode(wanted))
    return None if data is None else decode(StoredPlan, data)


def probed_plan(
    problem: TorchProblem, budget: int, method: Method | None, parameter: str | None, seed: int
) -> StoredPlan:
    """Return the paper's plan for the problem, made from the probe that the paper asks for."""
    spec, _ = SweepSpec.assemble(method, budget, "paper", seed)
    search, worker = Search(spec), Worker(checked_problem(problem), seed, TemporaryStore())
    while isinstance(task := search.ask(), ProbeTask):  # its parts, and what puts them together
        outcome = worker.run(task)
        search.tell(task, outcome)
    if (plan := search.plan) is None or plan.stationary:
        raise SearchError(
            "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary and "
            "there is nothing to search"
        )
    assert isinstance(outcome, ProbeOutcome)
    outcome = replace(outcome, calls=search.calls["probe"])
    name = parameter or ("lr" if plan.quantity == "step size" else "radius")
    return StoredPlan(plan, None, name, seed, outcome)


class CellLog(StudyLog):
    """The cells of a plan on a study: a trial's value says how its cell went."""

    def __init__(self, study: Study, stored: StoredPlan) -> None:
        super().__init__(study, stored.mark)
        self._kept = stored.kept()

    def label(self, task: Any, turn: int) -> dict[str, Json]:
        label = super().label(NOTHING, turn)[TASK]
        if not isinstance(task, CellTask):
            return {TASK: {**label, "index": 0}}
        cell = encode(task.cell)  # its value and its budget, and where it begins
        keep = self._kept.get(task.cell.index, (task.cell.budget,))
        own = {"attempt": turn + 1, "parent": int(task.parent) if task.parent else None}
        return {TASK: {**label, "task": task.id, **cell, "keep": keep, **own}}

    def ended(self, trial: FrozenTrial) -> Any:
        label, value = label_of(trial), math.nan
        if not trial.state.is_finished():
            return None
        if trial.state == TrialState.FAIL or label.get("void"):
            return Died("its trial failed")
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            maximize = self.study.direction == StudyDirection.MAXIMIZE
            value = -trial.value if maximize else trial.value
        calls = int(trial.user_attrs.get(CALLS, label["budget"]))
        return CellOutcome(label["index"], str(trial.number), value, calls)


def cell_on(trial: FrozenTrial | Trial) -> Cell | None:
    """Return the cell that the trial says it runs, None where it says none."""
    label = label_of(trial)
    if label.get("index"):
        return Cell(int(label["index"]), float(label["value"]), int(label["budget"]))
    return None
