"""The plan as an Optuna sampler: every cell once, by whoever comes, and then the end."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.random_streams import trajectory_indices
from grasp_tune.core.tasks import ProbeOutcome
from grasp_tune.executors.study import (
    CELL,
    cell_on,
    end_trial,
    fingerprint,
    is_surplus,
    show_on_trial,
)
from grasp_tune.optuna.claims import Claim, Claims
from grasp_tune.optuna.independent import AddressedSampler
from grasp_tune.optuna.plans import StoredPlan, agree_on_plan, stored_plan

if TYPE_CHECKING:
    from grasp_tune.engine.problem import TorchProblem

ATTEMPTS = 3  # trials that a cell may fail before it is given up


class GraspSampler(BaseSampler):
    """Gives each trial the next cell of a plan, and ends the study after the last.

    plan: what `NonConvex().plan(...)` and the like return.
    parameter: the name that the objective passes to `suggest_float`.
    seed: fixes the values of other parameters, and which iterates become candidates.
    independent_sampler: samples the other parameters; by default uniformly, each value a function
        of (seed, trial, name), so that it does not matter how many processes there are.
    attempts: how many trials of one cell may fail before it is given up.

    The value is suggested to `suggest_float(parameter, low, high, log=True)` with any range that
    holds it; `sampler.distribution` is the range that holds all of them.
    """

    def __init__(
        self,
        plan: Plan,
        parameter: str,
        *,
        seed: int = 0,
        independent_sampler: BaseSampler | None = None,
        attempts: int = ATTEMPTS,
        probe: ProbeOutcome | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise InputError(
                f"plan: got {type(plan).__name__}, expected what NonConvex().plan(...) returns"
            )
        if not plan.cells:
            raise InputError("plan: it has no cells to run: x0 is the answer already")
        if not isinstance(parameter, str) or not parameter:
            raise InputError(f"parameter: got {parameter!r}, expected a name such as 'lr'")
        if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
            raise InputError(f"attempts: got {attempts!r}, expected a whole number >= 1")
        self.plan, self.parameter, self.seed = plan, parameter, seed
        self._independent = independent_sampler or AddressedSampler(seed)
        self._attempts = attempts
        self._stored = StoredPlan(plan, parameter, seed, probe)
        self._mark = fingerprint(self._stored.to_dict())
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
        independent_sampler: BaseSampler | None = None,
        attempts: int = ATTEMPTS,
    ) -> "GraspSampler":
        """Return the sampler for a problem: probes at x0 and plans.

        With `study`, the plan is written there, and a process that finds one there does not probe:
        that is how further processes join, or a study goes on, without a second probe.
        """
        from grasp_tune.optuna.probing import probed_plan

        found = None if study is None else stored_plan(study)
        if found is None:
            found = probed_plan(problem, budget, method, parameter, seed)
            if study is not None:
                found = agree_on_plan(study, found)
        return cls._of(found, independent_sampler, attempts)

    @classmethod
    def from_study(
        cls,
        study: optuna.Study,
        *,
        independent_sampler: BaseSampler | None = None,
        attempts: int = ATTEMPTS,
    ) -> "GraspSampler":
        """Return the sampler whose plan is written on the study, for a process that joins it."""
        found = stored_plan(study)
        if found is None:
            raise InputError(f"study {study.study_name!r} has no plan of a GraspSampler yet")
        return cls._of(found, independent_sampler, attempts)

    @classmethod
    def _of(
        cls, stored: StoredPlan, independent_sampler: BaseSampler | None, attempts: int
    ) -> "GraspSampler":
        return cls(
            stored.plan,
            stored.parameter,
            seed=stored.seed,
            independent_sampler=independent_sampler,
            attempts=attempts,
            probe=stored.probe,
        )

    # -- what users ask -------------------------------------------------------------------------

    @property
    def distribution(self) -> FloatDistribution:
        """The range that holds every cell's value, for `suggest_float` or `study.ask`."""
        cells = self.plan.cells
        return FloatDistribution(float(cells[0].value), float(cells[-1].value), log=True)

    def suggest(self, trial: optuna.Trial) -> float:
        """Return the trial's step size or radius; `suggest_float` with the right range."""
        span = self.distribution
        return trial.suggest_float(self.parameter, span.low, span.high, log=True)

    def is_exhausted(self, study: optuna.Study) -> bool:
        """Return whether every cell has been given to a trial that has not failed since.

        For loops of `study.ask` and `study.tell`; `study.optimize` ends by itself.
        """
        return self._claims_on(study).exhausted(study)

    def lost_cells(self, study: optuna.Study) -> tuple[Cell, ...]:
        """Return the cells whose trials failed too often; they are not issued again."""
        return self._claims_on(study).lost(study)

    # -- what Optuna asks -----------------------------------------------------------------------

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Give the trial its cell."""
        try:
            claim = self._claims_on(study).take(study, trial)
        except Exception:
            end_trial(study, trial._trial_id, TrialState.FAIL)  # not left running for ever
            raise
        if claim is not None:
            self._announce(study, trial, claim)
        self._independent.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the other sampler's, without our parameter."""
        space = self._independent.infer_relative_search_space(study, trial)
        return {name: kind for name, kind in space.items() if name != self.parameter}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the other sampler's values."""
        self._raise_error_if_multi_objective(study)
        _prune_surplus(trial)
        return self._independent.sample_relative(study, trial, search_space) if search_space else {}

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
            if self._fits(param_distribution, cell.value):
                return cell.value
            span = self.distribution
            warnings.warn(
                f"trial {trial.number}: {param_distribution} does not hold {cell.value!r}, the "
                f"value of cell {cell.index}, so one was drawn that is not in the plan; use "
                f"suggest_float({param_name!r}, {span.low!r}, {span.high!r}, log=True)",
                stacklevel=2,
            )
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End the study's loop when nothing is left to give."""
        self._independent.after_trial(study, trial, state, values)
        if self._claims_on(study).finished(study, trial, state):
            with suppress(RuntimeError):  # with ask and tell there is no loop to end
                study.stop()

    def reseed_rng(self) -> None:
        """Reseed the other sampler; the plan has no randomness."""
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
            found = Claims(self.plan.cells, self.parameter, self._mark, self._attempts)
            found = self._claims.setdefault(key, found)
        return found

    def _announce(self, study: optuna.Study, trial: FrozenTrial, claim: Claim) -> None:
        words = claim.to_dict(self._mark, trial.number)
        if claim.cell is not None:
            words["keep"] = list(self._kept(claim.cell))
        show_on_trial(study, trial, CELL, words)

    def _kept(self, cell: Cell) -> tuple[int, ...]:
        """Return after which calls the iterate is a candidate, as the paper has it."""
        if self.plan.score == "gradient" and self.plan.ensemble == "resample":
            draws = self.plan.candidates_per_cell  # Algorithm 2, line 6
            return tuple(sorted(set(trajectory_indices(self.seed, cell.index, draws, cell.budget))))
        return (cell.budget,)

    def _fits(self, distribution: BaseDistribution, value: float) -> bool:
        """Return whether the objective asked for a range that has the value."""
        if not isinstance(distribution, FloatDistribution) or distribution.step is not None:
            return False
        if distribution.low <= value <= distribution.high:
            return True
        # Whoever asks for the plan's own range means all of its cells: the last one stands at or
        # above the upper end, less than twice as high.
        low, high = self.plan.range
        return distribution.low <= low and high <= distribution.high

    def __getstate__(self) -> dict[str, Any]:
        # Claims are found again from the study; they hold a lock, which cannot be pickled.
        return {**self.__dict__, "_claims": {}}


def _prune_surplus(trial: FrozenTrial) -> None:
    if is_surplus(trial):
        raise optuna.TrialPruned("every cell of the plan has been given to a trial")
