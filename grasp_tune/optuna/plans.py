"""What the trials of a study are to run: written once, read by every process that joins."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import optuna

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.random_streams import trajectory_indices
from grasp_tune.core.records import Json, decode, encode
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask
from grasp_tune.executors.study import PLAN, set_study_json, study_json
from grasp_tune.schedules.step_search import StepSearch

if TYPE_CHECKING:
    from grasp_tune.engine.problem import TorchProblem

_NAMES = {"step size": "lr", "radius": "radius"}


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The cells of a study: those of the paper's plan, or of a step search that goes on."""

    plan: Plan | StepSearch
    parameter: str
    seed: int
    probe: ProbeOutcome | None = None  # what the plan was made from, where we probed

    def cells(self, losses: Mapping[int, float | None]) -> tuple[Cell, ...]:
        """Return the cells that are known after how earlier ones ended."""
        return self.plan.cells if isinstance(self.plan, Plan) else self.plan.cells(losses)

    def may_grow(self, losses: Mapping[int, float | None]) -> bool:
        """Return whether further cells follow when those that run have ended."""
        return isinstance(self.plan, StepSearch) and not self.plan.done(losses)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest range that holds every cell's value."""
        if isinstance(self.plan, StepSearch):
            return self.plan.range
        return float(self.plan.cells[0].value), float(self.plan.cells[-1].value)

    def kept(self, cell: Cell) -> tuple[int, ...]:
        """Return after which calls of a cell the iterate is a candidate, as the paper has it."""
        plan = self.plan
        if isinstance(plan, Plan) and (plan.score, plan.ensemble) == ("gradient", "resample"):
            draws = plan.candidates_per_cell  # Algorithm 2, line 6
            return tuple(sorted(set(trajectory_indices(self.seed, cell.index, draws, cell.budget))))
        return (cell.budget,)

    def to_dict(self) -> dict[str, Json]:
        plan = self.plan
        return {
            "plan": plan.to_dict() if isinstance(plan, Plan) else {"search": encode(plan)},
            "parameter": self.parameter,
            "seed": self.seed,
            "probe": None if self.probe is None else encode(self.probe),
        }

    @classmethod
    def from_dict(cls, data: Json) -> "StoredPlan":
        if not isinstance(data, dict) or set(data) != {"plan", "parameter", "seed", "probe"}:
            raise InputError("not a plan of a GraspSampler")
        plan, probe = data["plan"], data["probe"]
        return cls(
            decode(StepSearch, plan["search"]) if "search" in plan else Plan.from_dict(plan),
            str(data["parameter"]),
            int(data["seed"]),
            None if probe is None else decode(ProbeOutcome, probe),
        )

    def difference(self, other: "StoredPlan") -> str:
        """Return in what two differ, with both values."""
        flat = [{**data, **data["plan"]} for data in (self.to_dict(), other.to_dict())]
        found = [
            f"{name} {flat[0][name]!r} there, {flat[1].get(name)!r} here"
            for name in flat[0]
            if name not in ("plan", "probe", "cells") and flat[0][name] != flat[1].get(name)
        ]
        return "; ".join(found) or "its cells differ"


def stored_plan(study: optuna.Study) -> StoredPlan | None:
    """Return the plan on the study, None where there is none."""
    data = study_json(study, PLAN)
    return None if data is None else StoredPlan.from_dict(data)


def agree_on_plan(study: optuna.Study, wanted: StoredPlan) -> StoredPlan:
    """Return the plan on the study, after writing `wanted` where there is none.

    Of two processes that write at the same time one wins, for both: what is there in the end is
    read again. Later writers do not exist, because they find a plan.
    """
    if (found := stored_plan(study)) is None:
        set_study_json(study, PLAN, wanted.to_dict())
        found = stored_plan(study)
        assert found is not None
    return found


def probed_plan(
    problem: "TorchProblem", budget: int, method: Method | None, parameter: str | None, seed: int
) -> StoredPlan:
    """Return the paper's plan for the problem, made from the probe that the paper asks for."""
    from grasp_tune.engine.problem import checked_problem
    from grasp_tune.engine.worker import Worker
    from grasp_tune.runtime.store import MemoryStore

    spec, _ = SweepSpec.assemble(method, budget, "paper", seed)
    search, worker = Search(spec), Worker(checked_problem(problem), seed, MemoryStore())
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
    return StoredPlan(search.plan, parameter or _NAMES[search.plan.quantity], seed, outcome)
