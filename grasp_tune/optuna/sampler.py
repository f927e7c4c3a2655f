"""The sampler: a search for a step size, or the paper's plan, cell by cell, and then the end."""

import math
import warnings
from dataclasses import replace
from typing import Any

from optuna import Study, Trial
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json, encode
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Point
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors import study as storage
from grasp_tune.executors.study import CALLS, NOTHING, PLAN, TASK, StudyLog, label_of
from grasp_tune.optuna.study_sampler import Addressed, Assignments, StudySampler
from grasp_tune.runtime.cell_sweep import probed_cells
from grasp_tune.runtime.executor import Died
from grasp_tune.schedules.cells import Cells, CellSearch, cell_id, cell_of, cell_outcome


def cells_on(study: Study, wanted: SweepSpec | None = None) -> SweepSpec | None:
    """Return the sweep of a `GraspSampler` on a study, None without; `wanted` is written then."""
    data = storage.study_json(study, PLAN, None if wanted is None else wanted.to_dict())
    return None if data is None else SweepSpec.from_dict(data)


class CellLog(StudyLog):
    """The cells of a plan on a study: a trial's value says how its cell went."""

    def shown(self, task: Any) -> dict[str, Json]:
        label = self.label(task)
        if task is NOTHING:
            return {TASK: {**label, "index": 0}}
        (part,) = task.segments
        keep = [call - part.start for call in part.keep]  # in the trial's own calls
        parent = self.last_trial(cell_id(part.origin.run)).number if part.origin else None
        own = {"keep": keep, "attempt": label["turn"] + 1, "start": part.start, "parent": parent}
        return {TASK: {**label, **encode(cell_of(task)), **own}}

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
        marks = sorted(trial.intermediate_values.items())
        curve = tuple(Point(call, float(loss), math.nan) for call, loss in marks)
        return cell_outcome(label["index"], label["budget"], value, calls, curve)


class GraspSampler(StudySampler):
    """Gives each trial a step size and a number of oracle calls, and ends the study by itself.

    `GraspSampler(budget=10_000)` searches: very short trials over eight decades of step sizes
    first, then finer and longer ones around the best, and the last with most of the budget. It
    needs no range and no gradient. `GraspSampler(plan)` runs the cells of the paper's plan.

    plan: what `NonConvex().plan(...)` and the like return, for the paper's grid.
    parameter: the name that the objective passes to `suggest_float`, with any range that holds the
        value; `sampler.distribution` is the range that holds all of them.
    budget: oracle calls over all trials, for the search; not with a plan, which has its own.
    resume: with a budget, for an objective that keeps checkpoints: trials go on from earlier ones,
        as `grasp_budget(trial).parent` says.
    seed: fixes the values of other parameters, and which iterates become candidates.
    independent_sampler: samples the other parameters; by default uniformly, each value a function
        of (seed, trial, name), so that it does not matter how many processes there are.
    """

    def __init__(
        self,
        plan: Plan | SweepSpec | None = None,
        parameter: str = "lr",
        *,
        budget: int | None = None,
        resume: bool = False,
        seed: int = 0,
        independent_sampler: BaseSampler | None = None,
    ) -> None:
        if not isinstance(parameter, str) or not parameter:
            raise InputError(f"parameter: got {parameter!r}, expected a name such as 'lr'")
        if not isinstance(plan, SweepSpec):  # which is that of a study
            plan = replace(Cells.of(plan, budget, resume), parameter=parameter).spec(seed)
        assert isinstance(plan.schedule, Cells)
        super().__init__(independent_sampler or Addressed(plan.seed, each=True))
        self._spec, self.cells = plan, plan.schedule
        self.parameter, self.seed = plan.schedule.parameter, plan.seed

    @classmethod
    def for_problem(
        cls,
        problem: TorchProblem,
        budget: int,
        method: Method | None = None,
        *,
        parameter: str | None = None,
        seed: int = 0,
        study: Study | None = None,
        **options: Any,
    ) -> "GraspSampler":
        """Return the sampler of the paper's plan for a problem: probes at x0 and plans.

        study: the plan is written there, and a process that finds one there does not probe: that
            is how further processes join, or a study goes on, without a second probe.
        options: `independent_sampler`.
        """
        found = None if study is None else cells_on(study)
        if found is None:
            found = probed_cells(problem, budget, method, parameter, seed)
            found = found if study is None else cells_on(study, found)
        return cls(found, **options)

    @classmethod
    def from_study(cls, study: Study, **options: Any) -> "GraspSampler":
        """Return the sampler whose plan is written on the study, for a process that joins it."""
        if (found := cells_on(study)) is None:
            raise InputError(f"study {study.study_name!r} has no plan of a GraspSampler yet")
        return cls(found, **options)

    @property
    def plan(self) -> Plan:
        """The paper's plan; `InputError` where the sampler searches without one."""
        if self.cells.plan is None:
            raise InputError("plan: this sampler was made with a budget, and searches without one")
        return self.cells.plan

    @property
    def distribution(self) -> FloatDistribution:
        """The range that holds every cell's value, for `suggest_float` or `study.ask`."""
        return FloatDistribution(*self.cells.values, log=True)

    def suggest(self, trial: Trial) -> float:
        """Return the trial's step size or radius; `suggest_float` with the right range."""
        kind = self.distribution
        return trial.suggest_float(self.parameter, kind.low, kind.high, log=True)

    def is_exhausted(self, study: Study) -> bool:
        """Return whether every cell has been given to a trial that has not failed since.

        For loops of `study.ask` and `study.tell`; `study.optimize` ends by itself.
        """
        return self.assignments(study).exhausted()

    def lost_cells(self, study: Study) -> tuple[Cell, ...]:
        """Return the cells whose trials failed too often; they are not issued again."""
        found = self.assignments(study)
        found.learn()
        return tuple(cell_of(found.search.tasks[key]) for key in found.search.lost)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        """Return the cell's value for our parameter, the other sampler's for any other."""
        label = label_of(trial)
        if name == self.parameter and label.get("index"):
            if (value := self._fitting(kind, label["value"])) is not None:
                return value
            wide = self.distribution
            words = f"the value of cell {label['index']}, so one was drawn that is not in the plan"
            words += f"; use suggest_float({name!r}, {wide.low!r}, {wide.high!r}, log=True)"
            self._void(study, trial, f"{kind} does not hold {label['value']!r}, {words}")
        return super().sample_independent(study, trial, name, kind)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        asked = self.parameter in trial.params or state != TrialState.COMPLETE
        if label_of(trial).get("index") and not asked:
            words = "so its cell counts as failed; use sampler.suggest(trial)"
            self._void(study, trial, f"it ended without asking for {self.parameter!r}, {words}")
        super().after_trial(study, trial, state, values)

    def _open(self, study: Study) -> Assignments:
        self._raise_error_if_multi_objective(study)
        log = CellLog(study, storage.agreed_sweep(study, self._spec, PLAN))
        return Assignments(log, CellSearch(self._spec), self.parameter)

    def _void(self, study: Study, trial: FrozenTrial, why: str) -> None:
        """Take the cell from a trial that does not run it: it is issued again."""
        storage.show_trial(study, trial, {TASK: {**trial.user_attrs[TASK], "void": True}})
        warnings.warn(f"trial {trial.number}: {why}", stacklevel=3)

    def _fitting(self, kind: BaseDistribution, value: float) -> float | None:
        """Return the value inside the range that the objective asks for, None where it is not."""
        if not isinstance(kind, FloatDistribution) or kind.step is not None:
            return None
        # The last cell stands at or above the end of the plan's own range: it runs at that end.
        low, high = self.cells.source.range
        if kind.low <= low and high <= kind.high < value:
            return float(kind.high)
        return value if kind.low <= value <= kind.high else None
