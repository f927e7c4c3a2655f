"""The sampler: a search for a step size, or the paper's plan, cell by cell, and then the end."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.random_streams import words
from grasp_tune.executors.study import (
    CELL,
    cell_on,
    end_trial,
    fingerprint,
    in_optimize,
    is_surplus,
    process_name,
    show_on_trial,
)
from grasp_tune.optuna.claims import Claims
from grasp_tune.optuna.plans import StoredPlan, agree_on_plan, probed_plan, stored_plan
from grasp_tune.schedules.step_search import StepSearch

if TYPE_CHECKING:
    from grasp_tune.engine.problem import TorchProblem

ATTEMPTS = 3  # trials that a cell may fail before it is given up


class GraspSampler(BaseSampler):
    """Gives each trial a step size and a number of oracle calls, and ends the study by itself.

    `GraspSampler(budget=10_000)` searches: very short trials over eight decades of step sizes
    first, then finer and longer ones around the best, and the last with half of the budget. It
    needs no range and no gradient. `GraspSampler(plan)` runs the cells of the paper's plan.

    plan: what `NonConvex().plan(...)` and the like return, for the paper's grid; `for_problem` and
        `from_study` give one that is stored with its parameter and its seed.
    parameter: the name that the objective passes to `suggest_float`.
    budget: oracle calls over all trials, for the search; not with a plan, which has its own.
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
        seed: int = 0,
        independent_sampler: BaseSampler | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
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
            search = StepSearch(budget) if plan is None else plan  # type: ignore[arg-type]
            plan = StoredPlan(search, parameter, seed)
        self.parameter, self.seed, self._stored = plan.parameter, plan.seed, plan
        self._mark = fingerprint(plan.to_dict())
        self._independent = independent_sampler or RandomSampler()
        self._addressed = independent_sampler is None
        self._attempts = attempts
        self._claims: dict[tuple[int, int], Claims] = {}  # by storage and study

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
        if not isinstance(self._stored.plan, Plan):
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
        return self._claims_on(study).exhausted(study)

    def lost_cells(self, study: optuna.Study) -> tuple[Cell, ...]:
        """Return the cells whose trials failed too often; they are not issued again."""
        return self._claims_on(study).lost(study)

    def release(self, study: optuna.Study) -> int:
        """End all trials that still run a cell, so that it is issued again; return how many.

        For workers that are known to be dead, where the storage has no heartbeat. Those that died
        on this machine under `study.optimize` are noticed without it.
        """
        return self._claims_on(study).release(study)

    # -- what Optuna asks -----------------------------------------------------------------------

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        try:
            claim = self._claims_on(study).take(study, trial)
        except BaseException:
            end_trial(study, trial._trial_id, TrialState.FAIL)  # not left running for ever
            raise
        if claim is not None:
            self._announce(study, trial, *claim)
        self._independent.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        space = self._independent.infer_relative_search_space(study, trial)
        return {name: kind for name, kind in space.items() if name != self.parameter}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self._raise_error_if_multi_objective(study)
        _prune_surplus(trial)
        if not search_space:
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
        _prune_surplus(trial)
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
        other = self._independent
        if self._addressed:
            # Of Optuna's own random sampler the values depend on which process came first.
            (word,) = words(self.seed, "independent", trial.number, param_name, count=1).tolist()
            other = RandomSampler(seed=word >> 32)
        return other.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End the study's loop when nothing is left to give."""
        self._independent.after_trial(study, trial, state, values)
        unasked = cell_on(trial) is not None and self.parameter not in trial.params
        if unasked and state == TrialState.COMPLETE:
            self._void(
                study,
                trial,
                f"it ended without asking for {self.parameter!r}, so its cell counts as failed; "
                "use sampler.suggest(trial)",
            )
        if self._claims_on(study).finished(study, trial, state, values):
            with suppress(RuntimeError):  # with ask and tell there is no loop to end
                study.stop()

    def reseed_rng(self) -> None:
        self._independent.reseed_rng()

    # -- inside ---------------------------------------------------------------------------------

    def _claims_on(self, study: optuna.Study) -> Claims:
        key = (id(study._storage), study._study_id)
        found = self._claims.get(key)
        if found is None:
            self._raise_error_if_multi_objective(study)
            agreed = agree_on_plan(study, self._stored)
            if agreed.to_dict() != self._stored.to_dict():
                words = agreed.difference(self._stored)
                raise InputError(
                    f"study {study.study_name!r} has another plan: {words}; use a new study, or "
                    "GraspSampler.from_study(study)"
                )
            claims = Claims(self._stored, self._mark, self._attempts)
            found = self._claims.setdefault(key, claims)
        return found

    def _announce(
        self, study: optuna.Study, trial: FrozenTrial, cell: Cell | None, attempt: int
    ) -> None:
        """Write on the trial which cell it runs, in words that a dashboard can show."""
        words: dict[str, Any] = {"index": 0, "plan": self._mark, "trial": trial.number}
        if cell is not None:
            words |= {"index": cell.index, "value": cell.value, "budget": cell.budget}
            words |= {"attempt": attempt, "keep": list(self._stored.kept(cell))}
            if in_optimize(study):  # else another process may tell what this one has asked for
                words["worker"] = process_name()
        show_on_trial(study, trial, CELL, words)

    def _void(self, study: optuna.Study, trial: FrozenTrial, why: str) -> None:
        """Take the cell from a trial that does not run it: it is issued again."""
        show_on_trial(study, trial, CELL, {**trial.user_attrs[CELL], "void": True})
        warnings.warn(f"trial {trial.number}: {why}", stacklevel=3)

    def _fitting(self, distribution: BaseDistribution, value: float) -> float | None:
        """Return the value inside the range that the objective asks for, None where it is not."""
        if not isinstance(distribution, FloatDistribution) or distribution.step is not None:
            return None
        if distribution.low <= value <= distribution.high:
            return value
        # The last cell stands at or above the end of the plan's own range: it runs at that end.
        low, high = self._stored.plan.range
        ours = distribution.low <= low and high <= distribution.high < value
        return float(distribution.high) if ours else None

    def __getstate__(self) -> dict[str, Any]:
        # Claims are found again from the study; they hold a lock, which cannot be pickled.
        return {**self.__dict__, "_claims": {}}


def _prune_surplus(trial: FrozenTrial) -> None:
    if is_surplus(trial):
        raise optuna.TrialPruned("every cell of the plan has been given to a trial")
