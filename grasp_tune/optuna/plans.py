"""What the trials of a study are to run: written once, read by every process that joins."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import optuna

from grasp_tune.core.errors import SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.random_streams import trajectory_indices
from grasp_tune.core.records import decode, encode
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask
from grasp_tune.executors.study import PLAN, agreed_json, fingerprint, study_json
from grasp_tune.schedules.step_search import StepSearch

if TYPE_CHECKING:
    from grasp_tune.engine.problem import TorchProblem

_NAMES = {"step size": "lr", "radius": "radius"}


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The cells of a study: those of the paper's plan, or of a step search that goes on."""

    plan: Plan | None
    search: StepSearch | None
    parameter: str
    seed: int
    probe: ProbeOutcome | None = None  # what the plan was made from, where we probed

    @property
    def source(self) -> Plan | StepSearch:
        """Whichever of the two it is."""
        found = self.plan or self.search
        assert found is not None
        return found

    @property
    def mark(self) -> str:
        """A name by which the trials of this plan are known."""
        return fingerprint(encode(self))

    @property
    def range(self) -> tuple[float, float]:
        """The smallest range that holds every cell's value."""
        if self.plan is None:
            return self.source.range
        return float(self.plan.cells[0].value), float(self.plan.cells[-1].value)

    def kept(self, cell: Cell) -> tuple[int, ...]:
        """Return after which calls of a cell the iterate is a candidate, as the paper has it."""
        plan = self.plan
        if plan is not None and (plan.score, plan.ensemble) == ("gradient", "resample"):
            draws = plan.candidates_per_cell  # Algorithm 2, line 6
            return tuple(sorted(set(trajectory_indices(self.seed, cell.index, draws, cell.budget))))
        return (cell.budget,)

    def difference(self, other: "StoredPlan") -> str:
        """Return in what two differ, with both values; empty where they do not."""
        if (one := encode(self)) == (two := encode(other)):
            return ""
        flat = [{**item, **(item["plan"] or item["search"])} for item in (one, two)]
        found = [
            f"{name} {flat[0][name]!r} there, {flat[1].get(name)!r} here"
            for name in flat[0]
            if name not in ("plan", "search", "probe", "cells")
            and flat[0][name] != flat[1].get(name)
        ]
        return "; ".join(found) or "its cells differ"


def stored_plan(study: optuna.Study) -> StoredPlan | None:
    """Return the plan on the study, None where there is none."""
    data = study_json(study, PLAN)
    return None if data is None else decode(StoredPlan, data)


def agree_on_plan(study: optuna.Study, wanted: StoredPlan) -> StoredPlan:
    """Return the plan on the study, after writing `wanted` where there is none."""
    return decode(StoredPlan, agreed_json(study, PLAN, encode(wanted)))


def probed_plan(
    problem: "TorchProblem", budget: int, method: Method | None, parameter: str | None, seed: int
) -> StoredPlan:
    """Return the paper's plan for the problem, made from the probe that the paper asks for."""
    from grasp_tune.engine.problem import checked_problem
    from grasp_tune.engine.worker import Worker
    from grasp_tune.runtime.store import TemporaryStore

    spec, _ = SweepSpec.assemble(method, budget, "paper", seed)
    search, worker = Search(spec), Worker(checked_problem(problem), seed, TemporaryStore())
    outcome = None
    while isinstance(task := search.ask(), ProbeTask):  # its parts, and what puts them together
        outcome = worker.run(task)
        search.tell(task, outcome)
    if search.plan is None or search.plan.stationary:
        raise SearchError(
            "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary and "
            "there is nothing to search"
        )
    assert isinstance(outcome, ProbeOutcome)
    outcome = replace(outcome, calls=search.calls["probe"])
    name = parameter or _NAMES[search.plan.quantity]
    return StoredPlan(search.plan, None, name, seed, outcome)
