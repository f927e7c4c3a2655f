"""The sampler: a search for a step size, or the paper's plan, cell by cell, and then the end."""

import contextlib
import copy
import warnings
from typing import Any

from optuna import Study, Trial, TrialPruned
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.random_streams import words
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.assignments import Assignments
from grasp_tune.executors.optuna import NOTHING
from grasp_tune.executors.study import TASK, end_trial, label_of, show_trial
from grasp_tune.optuna.cells import CellLog, StoredPlan, cell_on, probed_plan, stored_plan
from grasp_tune.runtime.cell_search import CellSearch
from grasp_tune.schedules.step_search import StepSearch

Space = dict[str, BaseDistribution]


class StudySampler(BaseSampler):
    """A sampler that gives each trial a task; what the two kinds of them share.

    others: samples the parameters that are not ours.
    """

    parameter = ""  # ours

    def __init__(self, others: BaseSampler) -> None:
        self._others = others
        self._studies: dict[tuple[int, int], Assignments] = {}  # by storage and study

    def _open(self, study: Study) -> Assignments:
        raise NotImplementedError

    def assignments(self, study: Study) -> Assignments:
        """Return who does what on a study, as this process knows it."""
        key = (id(study._storage), study._study_id)
        if key not in self._studies:
            self._studies.setdefault(key, self._open(study))
        return self._studies[key]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Give the trial its task."""
        try:
            self.assignments(study).take(trial)
        except BaseException:
            end_trial(study, trial._trial_id, TrialState.FAIL)  # not left running for ever
            raise
        self._others.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Space:
        space = self._others.infer_relative_search_space(study, trial)
        return {name: kind for name, kind in space.items() if name != self.parameter}

    def sample_relative(self, study: Study, trial: FrozenTrial, space: Space) -> dict[str, Any]:
        self._raise_error_if_multi_objective(study)
        prune_surplus(trial)
        found = self._others.sample_relative(study, trial, space) if space else {}
        # A sampler may keep a search space of its own (TPE with group=True), with our parameter.
        return {name: value for name, value in found.items() if name in space}

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        self._raise_error_if_multi_objective(study)
        prune_surplus(trial)
        return self._others.sample_independent(study, trial, name, kind)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        """Learn how the trial ended, and end the study's loop when nothing is left to give."""
        self._others.after_trial(study, trial, state, values)
        found, now = self.assignments(study), copy.copy(trial)
        now.state, now.values = state, values  # as it will be on the study
        if found.task(trial.number):
            found.forget(trial.number, found.log.ended(now))
        if found.over(trial.number):
            with contextlib.suppress(RuntimeError):  # with ask and tell there is no loop to end
                study.stop()

    def reseed_rng(self) -> None:
        self._others.reseed_rng()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_studies": {}}  # they are found again from the study


class Addressed(RandomSampler):
    """Random values that are functions of their address, whoever draws them and when.

    each: whether trials differ; otherwise a parameter has the same value in all of them.
    """

    def __init__(self, seed: int, *, each: bool) -> None:
        super().__init__()
        self._seed, self._each = seed, each

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        address = (trial.number, name) if self._each else (name,)
        (word,) = words(self._seed, "independent", *address, count=1).tolist()
        return RandomSampler(seed=word >> 32).sample_independent(study, trial, name, kind)


def prune_surplus(trial: FrozenTrial | Trial) -> None:
    """Raise `TrialPruned` in a trial for which no task was left."""
    if label_of(trial).get("task") == NOTHING:
        raise TrialPruned("every cell or task has been given to a trial")


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
        plan: Plan | StoredPlan | None = None,
        parameter: str = "lr",
        *,
        budget: int | None = None,
        resume: bool = False,
        seed: int = 0,
        independent_sampler: BaseSampler | None = None,
    ) -> None:
        if (plan is None) == (budget is None):
            raise InputError("give either a plan or a budget: GraspSampler(budget=10_000)")
        if plan is not None and not isinstance(plan, Plan | StoredPlan):
            raise InputError(f"plan: got {type(plan).__name__}, expected that of NonConvex().plan")
        if isinstance(plan, Plan) and not plan.cells:
            raise InputError("plan: it has no cells to run: x0 is the answer already")
        if not isinstance(parameter, str) or not parameter:
            raise InputError(f"parameter: got {parameter!r}, expected a name such as 'lr'")
        if not isinstance(plan, StoredPlan):
            search = None if budget is None else StepSearch(budget, resume)
            plan = StoredPlan(plan, search, parameter, seed)
        super().__init__(independent_sampler or Addressed(plan.seed, each=True))
        self.parameter, self.seed, self._stored = plan.parameter, plan.seed, plan

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
        found = None if study is None else stored_plan(study)
        if found is None:
            found = probed_plan(problem, budget, method, parameter, seed)
            found = found if study is None else stored_plan(study, found)
        return cls(found, **options)

    @classmethod
    def from_study(cls, study: Study, **options: Any) -> "GraspSampler":
        """Return the sampler whose plan is written on the study, for a process that joins it."""
        if (found := stored_plan(study)) is None:
            raise InputError(f"study {study.study_name!r} has no plan of a GraspSampler yet")
        return cls(found, **options)

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

    def suggest(self, trial: Trial) -> float:
        """Return the trial's step size or radius; `suggest_float` with the right range."""
        return trial.suggest_float(self.parameter, *self._stored.range, log=True)

    def is_exhausted(self, study: Study) -> bool:
        """Return whether every cell has been given to a trial that has not failed since.

        For loops of `study.ask` and `study.tell`; `study.optimize` ends by itself.
        """
        return self.assignments(study).exhausted()

    def lost_cells(self, study: Study) -> tuple[Cell, ...]:
        """Return the cells whose trials failed too often; they are not issued again."""
        found = self.assignments(study)
        found.learn()
        return tuple(found.search.lost)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        """Return the cell's value for our parameter, the other sampler's for any other."""
        cell = cell_on(trial)
        if name == self.parameter and cell is not None:
            if (value := self._fitting(kind, cell.value)) is not None:
                return value
            low, high = self._stored.range
            self._void(
                study,
                trial,
                f"{kind} does not hold {cell.value!r}, the value of cell {cell.index}, so one was "
                f"drawn that is not in the plan; use suggest_float({name!r}, {low!r}, {high!r}, "
                "log=True)",
            )
        return super().sample_independent(study, trial, name, kind)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        asked = self.parameter in trial.params or state != TrialState.COMPLETE
        if cell_on(trial) is not None and not asked:
            words = "so its cell counts as failed; use sampler.suggest(trial)"
            self._void(study, trial, f"it ended without asking for {self.parameter!r}, {words}")
        super().after_trial(study, trial, state, values)

    def _open(self, study: Study) -> Assignments:
        self._raise_error_if_multi_objective(study)
        found = stored_plan(study, self._stored)
        if found is not None and (words := found.difference(self._stored)):
            raise InputError(
                f"study {study.study_name!r} has another plan: {words}; use a new study, or "
                "GraspSampler.from_study(study)"
            )
        log = CellLog(study, self._stored)
        return Assignments(log, CellSearch(self._stored.source), self.parameter)

    def _void(self, study: Study, trial: FrozenTrial, why: str) -> None:
        """Take the cell from a trial that does not run it: it is issued again."""
        show_trial(study, trial, {TASK: {**trial.user_attrs[TASK], "void": True}})
        warnings.warn(f"trial {trial.number}: {why}", stacklevel=3)

    def _fitting(self, kind: BaseDistribution, value: float) -> float | None:
        """Return the value inside the range that the objective asks for, None where it is not."""
        if not isinstance(kind, FloatDistribution) or kind.step is not None:
            return None
        # The last cell stands at or above the end of the plan's own range: it runs at that end.
        low, high = self._stored.source.range
        if kind.low <= low and high <= kind.high < value:
            return float(kind.high)
        return value if kind.low <= value <= kind.high else None
