"""A step size for an objective of the user's own: the sampler, a trial's budget, and the choice.

A trial is one cell of a search for the step size, or of the paper's plan. Trials may upload
candidates as artifacts; `select` returns the best of them.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from optuna import Study, Trial
from optuna.artifacts._protocol import ArtifactStore
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from torch import nn

from grasp_tune.core.checkpoint_keys import iterate_key, place_of
from grasp_tune.core.errors import InputError, whole
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json, encode
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Point
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors import study as on_study
from grasp_tune.executors.optuna import ArtifactCheckpoints, write_choice
from grasp_tune.executors.study import CALLS, TASK, StudyLog, label_of
from grasp_tune.optuna.study_sampler import Addressed, Assignments, StudySampler, prune_surplus
from grasp_tune.runtime.cell_sweep import choose_candidate, probed_cells
from grasp_tune.runtime.executor import Died
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.cells import Cells, CellSearch, cell_id, cell_of, cell_outcome


class CellLog(StudyLog):
    """The cells of a sweep on a study: a trial's value is the score of its cell."""

    def shown(self, task: Any) -> dict[str, Json]:
        label = super().shown(task)[TASK]
        if task is None:
            return {TASK: {**label, "index": 0}}
        (part,) = task.segments
        keep = [call - part.start for call in part.keep]  # in the trial's own calls
        parent = self.last_trial(cell_id(place_of(part.origin)[0])).number if part.origin else None
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
        of (seed, cell, name), so that it does not matter how many processes there are.
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
        if not isinstance(plan.schedule, Cells):
            raise InputError(
                "plan: that on the study is no plan of a GraspSampler; use a new study"
            )
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
        found = None if study is None else on_study.spec_on(study)
        if found is None:
            found = probed_cells(problem, budget, method, parameter, seed)
            found = found if study is None else on_study.spec_on(study, found)
        return cls(found, **options)

    @classmethod
    def from_study(cls, study: Study, **options: Any) -> "GraspSampler":
        """Return the sampler whose plan is written on the study, for a process that joins it."""
        if (found := on_study.spec_on(study)) is None:
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
        """Return whether every cell has a trial that has not failed, for loops of `study.ask`."""
        return self.assignments(study).exhausted()

    def lost_cells(self, study: Study) -> tuple[Cell, ...]:
        """Return the cells whose trials failed too often; they are not issued again."""
        found = self.assignments(study).learn()
        return tuple(cell_of(found.search.tasks[key]) for key in found.search.lost)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        """Return the cell's value for our parameter, the other sampler's for any other."""
        label = label_of(trial)
        if name == self.parameter and label.get("index"):
            value, (low, high), wide = label["value"], self.cells.source.range, self.distribution
            if isinstance(kind, FloatDistribution) and kind.step is None:
                # The last cell stands at or above the end of the plan's own range: it runs there.
                if kind.low <= low and high <= kind.high < value:
                    return float(kind.high)
                if kind.low <= value <= kind.high:
                    return value
            words = f"the value of cell {label['index']}, so one was drawn that is not in the plan"
            words += f"; use suggest_float({name!r}, {wide.low!r}, {wide.high!r}, log=True)"
            self._void(study, trial, f"{kind} does not hold {value!r}, {words}")
        return super().sample_independent(study, trial, name, kind)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        asked = self.parameter in trial.params or state != TrialState.COMPLETE
        if label_of(trial).get("index") and not asked:
            words = "so its cell counts as failed; use sampler.suggest(trial)"
            self._void(study, trial, f"it ended without asking for {self.parameter!r}, {words}")
        super().after_trial(study, trial, state, values)

    def _open(self, study: Study) -> Assignments:
        self._raise_error_if_multi_objective(study)
        return Assignments(CellLog(study, self._spec), CellSearch(self._spec), self.parameter)

    def _void(self, study: Study, trial: FrozenTrial, why: str) -> None:
        """Take the cell from a trial that does not run it: it is issued again."""
        on_study.show_trial(study, trial, {TASK: {**trial.user_attrs[TASK], "void": True}})
        warnings.warn(f"trial {trial.number}: {why}", stacklevel=3)


class Budget:
    """Iterates over a trial's oracle calls, 0, 1, 2, ..., and ends normally, so that it completes.

    With `GraspSampler(..., resume=True)` a trial may go on from an earlier one: `parent` is the
    number of the trial whose checkpoint the objective loads, and the calls are counted from
    `start`; `parent` is None where the trial begins at x0.

    trial: what the objective was given.
    per_step: oracle calls of one optimizer step; 2 for UniXGrad.
    calls: the budget of a trial that has no cell because its value was enqueued.

    Raises `TrialPruned` in a trial for which no cell was left.
    """

    def __init__(self, trial: Trial, *, per_step: int = 1, calls: int | None = None) -> None:
        prune_surplus(trial)
        self._trial, self._label = trial, label_of(trial)
        self._step = whole("per_step", per_step)
        if not self._label.get("index") and calls is None:
            raise InputError(
                f"trial {trial.number} has no cell: its study has no GraspSampler, or its value "
                "was enqueued; say its budget: grasp_budget(trial, calls=...)"
            )
        self.total: int = self._label.get("budget", calls or 0)
        self.keep: tuple[int, ...] = tuple(self._label.get("keep", ()))
        self.start: int = self._label.get("start", 0)
        self.parent: int | None = self._label.get("parent")
        self.spent = 0  # oracle calls of this trial, those of the step under way included
        self.done = 0  # oracle calls of the steps that are behind us
        self._kept = set[int]()

    def __iter__(self) -> Iterator[int]:
        while self.spent + self._step <= self.total:
            self.done, self.spent = self.spent, self.spent + self._step
            yield self.start + self.done
        self.done = self.spent
        self.close()

    def close(self) -> None:
        """Write on the trial what it used; the loop does so at its end, a `break` does not."""
        self._trial.set_user_attr(CALLS, self.spent)

    def offer(self, model: nn.Module, artifact_store: ArtifactStore) -> bool:
        """Upload the model where its iterate is one that the plan wants; return whether it was.

        Call it first thing in each step, and once after the loop.
        """
        at_end = self.done + self._step > self.total
        due = {call for call in self.keep if call <= self.done or at_end} - self._kept
        for call in due:
            key = iterate_key(self._label["index"], call)
            store = ArtifactCheckpoints(artifact_store, self._label["sweep"])
            store.write(key, model_tensors(model), {})
        self._kept |= due
        return bool(due)


def grasp_budget(trial: Trial, *, per_step: int = 1, calls: int | None = None) -> Budget:
    """Return the trial's oracle calls to loop over; the loop ends when they are spent.

    trial: what the objective was given.
    per_step: oracle calls of one optimizer step; 2 for UniXGrad.
    calls: the budget of a trial that has no cell because its value was enqueued.
    """
    return Budget(trial, per_step=per_step, calls=calls)


def select(
    study: Study,
    problem: TorchProblem,
    artifact_store: ArtifactStore,
    *,
    by: Literal["loss", "gradient"] = "loss",
    method: Method | None = None,
) -> Result:
    """Return the best of the candidates that the trials uploaded, scored on fresh samples.

    The choice and its certificate are written on the study. Costs what the plan sets aside for the
    choice, and the probe at x0 where the plan was not made by `GraspSampler.for_problem`.

    study: where the trials of a plan have ended.
    problem: the same model, loss and data as the objective's.
    artifact_store: where the trials uploaded their candidates.
    by: `loss` compares losses: of `validation` where the problem has it, else of fresh training
        minibatches. `gradient` is the paper's rule for a plan of `NonConvex`: the norm of the mean
        gradient, which is also small where a network is dead.
    method: needed only where the plan's method has a base optimizer of the user's own.
    """
    if by not in ("loss", "gradient"):
        raise InputError(f"by: got {by!r}, expected 'loss' or 'gradient'")
    sampler, name = GraspSampler.from_study(study), study.study_name
    if sampler.cells.plan is None:
        raise InputError(
            f"study {name!r} searched a step without a plan, which leaves no calls for fresh "
            "samples: its longest trial, study.best_trial as a rule, is the choice"
        )
    trained = sampler.assignments(study).learn()
    trained.settle(trained.log.calls)
    cells, store = trained.search, ArtifactCheckpoints(artifact_store, trained.log.sweep)
    if not any(store.exists(key) for task in cells.tasks.values() for key in task.writes):
        raise InputError(
            f"study {name!r} has no candidates: let the objective call "
            "budget.offer(model, artifact_store) in each step of grasp_budget and after the last"
        )
    result = choose_candidate(problem, cells, store, method, by_loss=by == "loss")
    for note in result.notes:
        if "dead network" in note:
            warnings.warn(f"{note}; here: by='loss'", stacklevel=2)
    chosen = result.choice.chosen
    number = trained.log.last_trial(cell_id(chosen.arm)).number if chosen.arm else None
    write_choice(study, result, trial=number, artifact=store.name(chosen.key))
    return result
