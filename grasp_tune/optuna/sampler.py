"""The sampler: a search for a step size, or the paper's plan, cell by cell, and then the end."""

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json
from grasp_tune.core.search import ATTEMPTS
from grasp_tune.executors.optuna import StudyLog
from grasp_tune.executors.study import CALLS, CELL
from grasp_tune.optuna.assignments import Assignments, StudySampler, addressed
from grasp_tune.optuna.plans import StoredPlan, agree_on_plan, probed_plan, stored_plan
from grasp_tune.runtime.cell_search import CellOutcome, CellSearch, CellTask
from grasp_tune.runtime.executor import Died
from grasp_tune.schedules.step_search import StepSearch

if TYPE_CHECKING:
    from grasp_tune.engine.problem import TorchProblem


class GraspSampler(StudySampler):
    """Gives each trial a step size and a number of oracle calls, and ends the study by itself.

    `GraspSampler(budget=10_000)` searches: very short trials over eight decades of step sizes
    first, then finer and longer ones around the best, and the last with most of the budget. It
    needs no range and no gradient. `GraspSampler(plan)` runs the cells of the paper's plan.

    plan: what `NonConvex().plan(...)` and the like return, for the paper's grid; `for_problem` and
        `from_study` give one that is stored with its parameter and its seed.
    parameter: the name that the objective passes to `suggest_float`.
    budget: oracle calls over all trials, for the search; not with a plan, which has its own.
    resume: with a budget, for an objective that keeps checkpoints: trials go on from earlier ones,
        as `grasp_budget(trial).parent` says.
    seed: fixes the values of other parameters, and which iterates become candidates.
    independent_sampler: samples the other parameters; by default uniformly, each value a function
        of (seed, trial, name), so that it does not matter how many processes there are.
    attempts: how many trials of one cell may fail before it is given up.

    The value is suggested to `suggest_float(parameter, low, high, log=True)` with any range that
    holds it; `sampler.distribution` is the range that holds all of them.
    """

    def __init__(
        self,
        plan: Plan | StoredPlan | None = None,
        parameter: str = "lr",
        *,
        budget: int | None = None,
        resume: bool = False,
        seed: int = 0,
        independent_sampler: BaseSampler | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        super().__init__()
        if (plan is None) == (budget is None):
            raise InputError("give either a plan or a budget: GraspSampler(budget=10_000)")
        if plan is not None and not isinstance(plan, Plan | StoredPlan):
            raise InputError(
                f"plan: got {type(plan).__name__}, expected what NonConvex().plan(...) returns"
            )
        if isinstance(plan, Plan) and not plan.cells:
            raise InputError("plan: it has no cells to run: x0 is the answer already")
        if not isinstance(parameter, str) or not parameter:
            raise InputError(f"parameter: got {parameter!r}, expected a name such as 'lr'")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise InputError(f"attempts: got {attempts!r}, expected a whole number >= 1")
        if not isinstance(plan, StoredPlan):
            search = None if budget is None else StepSearch(budget, resume)
            plan = StoredPlan(plan, search, parameter, seed)
        self.parameter, self.seed, self._stored = plan.parameter, plan.seed, plan
        self._independent, self._attempts = independent_sampler, attempts

    @classmethod
    def for_problem(
        cls,
        problem: "TorchProblem",
        budget: int,
        method: Method | None = None,
        *,
        parameter: str | None = None,
        seed: int = 0,
        study: optuna.Study | None = None,
        **options: Any,
    ) -> "GraspSampler":
        """Return the sampler of the paper's plan for a problem: probes at x0 and plans.

        With `study`, the plan is written there, and a process that finds one there does not probe:
        that is how further processes join, or a study goes on, without a second probe.

        options: `independent_sampler` and `attempts`.
        """
        found = None if study is None else stored_plan(study)
        if found is None:
            found = probed_plan(problem, budget, method, parameter, seed)
            if study is not None:
                found = agree_on_plan(study, found)
        return cls(found, **options)

    @classmethod
    def from_study(cls, study: optuna.Study, **options: Any) -> "GraspSampler":
        """Return the sampler whose plan is written on the study, for a process that joins it.

        options: `independent_sampler` and `attempts`.
        """
        if (found := stored_plan(study)) is None:
            raise InputError(f"study {study.study_name!r} has no plan of a GraspSampler yet")
        return cls(found, **options)

    # -- what users ask -------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The paper's plan; `InputError` where the sampler searches without one."""
        if self._stored.plan is None:
            raise InputError("plan: this sampler was made with a budget, and searches without one")
        return self._stored.plan

    @property
    def distribution(self) -> FloatDistribution:
        """The range that holds every cell's value, for `suggest_float` or `study.ask`."""
        return FloatDistribution(*self._stored.range, log=True)

    def suggest(self, trial: optuna.Trial) -> float:
        """Return the trial's step size or radius; `suggest_float` with the right range."""
        return trial.suggest_float(self.parameter, *self._stored.range, log=True)

    def is_exhausted(self, study: optuna.Study) -> bool:
        """Return whether every cell has been given to a trial that has not failed since.

        For loops of `study.ask` and `study.tell`; `study.optimize` ends by itself.
        """
        return self.assignments(study).exhausted()

    def lost_cells(self, study: optuna.Study) -> tuple[Cell, ...]:
        """Return the cells whose trials failed too often; they are not issued again."""
        found = self.assignments(study)
        found.learn()
        assert isinstance(found.search, CellSearch)
        return found.search.lost

    # -- what Optuna asks -----------------------------------------------------------------------

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        super().before_trial(study, trial)
        if self._independent is not None:
            self._independent.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        if self._independent is None:
            return {}
        space = self._independent.infer_relative_search_space(study, trial)
        return {name: kind for name, kind in space.items() if name != self.parameter}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self._raise_error_if_multi_objective(study)
        prune_surplus(trial)
        if not search_space or self._independent is None:
            return {}
        found = self._independent.sample_relative(study, trial, search_space)
        # A sampler may keep a search space of its own (TPE with group=True), with our parameter.
        return {name: value for name, value in found.items() if name in search_space}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the cell's value for our parameter, the other sampler's for any other."""
        self._raise_error_if_multi_objective(study)
        prune_surplus(trial)
        cell = cell_on(trial)
        if param_name == self.parameter and cell is not None:
            if (value := self._fitting(param_distribution, cell.value)) is not None:
                return value
            low, high = self._stored.range
            self._void(
                study,
                trial,
                f"{param_distribution} does not hold {cell.value!r}, the value of cell "
                f"{cell.index}, so one was drawn that is not in the plan; use "
                f"suggest_float({param_name!r}, {low!r}, {high!r}, log=True)",
            )
        if self._independent is None:
            where = self.seed, trial.number
            return addressed(study, trial, param_distribution, param_name, *where)
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End the study's loop when nothing is left to give."""
        if self._independent is not None:
            self._independent.after_trial(study, trial, state, values)
        found, cell = self.assignments(study), cell_on(trial)
        if cell is not None and self.parameter not in trial.params and state == TrialState.COMPLETE:
            self._void(
                study,
                trial,
                f"it ended without asking for {self.parameter!r}, so its cell counts as failed; "
                "use sampler.suggest(trial)",
            )
        if cell is not None:
            found.ended(trial.number, _cell_ended(study, trial, state, values))
        if found.over(trial.number):
            with suppress(RuntimeError):  # with ask and tell there is no loop to end
                study.stop()

    def reseed_rng(self) -> None:
        if self._independent is not None:
            self._independent.reseed_rng()

    # -- inside ---------------------------------------------------------------------------------

    def _open(self, study: optuna.Study) -> Assignments:
        self._raise_error_if_multi_objective(study)
        if words := agree_on_plan(study, self._stored).difference(self._stored):
            raise InputError(
                f"study {study.study_name!r} has another plan: {words}; use a new study, or "
                "GraspSampler.from_study(study)"
            )
        search = CellSearch(self._stored.source, self._attempts)
        return Assignments(_CellLog(study, self._stored), search, parameter=self.parameter)

    def _void(self, study: optuna.Study, trial: FrozenTrial, why: str) -> None:
        """Take the cell from a trial that does not run it: it is issued again."""
        _show(study, trial, {**trial.user_attrs[CELL], "void": True})
        warnings.warn(f"trial {trial.number}: {why}", stacklevel=3)

    def _fitting(self, distribution: BaseDistribution, value: float) -> float | None:
        """Return the value inside the range that the objective asks for, None where it is not."""
        if not isinstance(distribution, FloatDistribution) or distribution.step is not None:
            return None
        if distribution.low <= value <= distribution.high:
            return value
        # The last cell stands at or above the end of the plan's own range: it runs at that end.
        low, high = self._stored.source.range
        ours = distribution.low <= low and high <= distribution.high < value
        return float(distribution.high) if ours else None


class _CellLog(StudyLog):
    """The cells of a plan on a study: a trial's value says how its cell went."""

    def __init__(self, study: optuna.Study, stored: StoredPlan) -> None:
        self._stored = stored
        super().__init__(study, stored.mark)

    def show(self, trial: FrozenTrial, label: dict[str, Json], task: Any) -> None:
        label["index"] = 0
        if isinstance(task, CellTask):
            cell = task.cell
            label |= {"index": cell.index, "value": cell.value, "budget": cell.budget}
            label |= {"attempt": label["turn"] + 1, "keep": list(self._stored.kept(cell))}
            if task.parent:
                label |= {"start": getattr(cell, "start", 0), "parent": int(task.parent)}
        _show(self.study, trial, label)

    def ended(self, trial: FrozenTrial) -> Any:
        if not trial.state.is_finished():
            return None
        return _cell_ended(self.study, trial, trial.state, trial.values)


def _show(study: optuna.Study, trial: FrozenTrial, label: dict[str, Json]) -> None:
    study._storage.set_trial_user_attr(trial._trial_id, CELL, label)
    trial.user_attrs[CELL] = label  # Optuna hands that object to the objective


def _cell_ended(
    study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
) -> CellOutcome | Died:
    label, value = trial.user_attrs[CELL], math.nan
    if state == TrialState.FAIL or label.get("void"):
        return Died("its trial failed")
    if state == TrialState.COMPLETE and values:
        value = -values[0] if study.direction == StudyDirection.MAXIMIZE else values[0]
    calls = int(trial.user_attrs.get(CALLS, label["budget"]))
    return CellOutcome(label["index"], str(trial.number), value, calls)


def cell_on(trial: FrozenTrial | optuna.Trial) -> Cell | None:
    """Return the cell that the trial says it runs, None where it says none."""
    label = trial.user_attrs.get(CELL)
    if not isinstance(label, dict) or not label.get("index"):
        return None
    return Cell(int(label["index"]), float(label["value"]), int(label["budget"]))


def prune_surplus(trial: FrozenTrial | optuna.Trial) -> None:
    """Raise `TrialPruned` in a trial for which no cell was left."""
    label = trial.user_attrs.get(CELL)
    if isinstance(label, dict) and label.get("index") == 0:
        raise optuna.TrialPruned("every cell of the plan has been given to a trial")
