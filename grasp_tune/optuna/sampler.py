"""Step sizes for the user's own objective: the sampler, a trial's budget, and the choice.

Each trial runs one cell of a step size search, or of the paper's plan. Trials can upload
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
from grasp_tune.core.errors import InputError, expect, whole
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
    """The log of a sweep over cells on a study; a trial's value is the score of its cell."""

    def shown(self, task: Any) -> dict[str, Json]:
        label = super().shown(task)[TASK]
        if task is None:
            return {TASK: {**label, "index": 0}}
        (part,) = task.segments
        keep = [call - part.start for call in part.keep]  # counted from the start of the trial
        parent = self.last_trial(cell_id(place_of(part.origin)[0])).number if part.origin else None
        own = {"keep": keep, "attempt": label["turn"] + 1, "start": part.start, "parent": parent}
        return {TASK: {**label, **encode(cell_of(task)), **own}}

    def ended(self, trial: FrozenTrial) -> Any:
        label, sign = label_of(trial), -1 if self.study.direction == StudyDirection.MAXIMIZE else 1
        if not trial.state.is_finished():
            return None
        if trial.state == TrialState.FAIL or label.get("void"):
            return Died("its trial failed")
        scored = trial.state == TrialState.COMPLETE and trial.value is not None
        calls = int(trial.user_attrs.get(CALLS, label["budget"]))
        marks = sorted(trial.intermediate_values.items())
        curve = tuple(Point(call, float(loss), math.nan) for call, loss in marks)
        value = sign * trial.value if scored else math.nan  # type: ignore[operator]
        return cell_outcome(label["index"], label["budget"], value, calls, curve)


class GraspSampler(StudySampler):
    """A sampler that gives each trial a step size and a number of oracle calls, and ends the study.

    `GraspSampler(budget=10_000)` searches without a range or a gradient: first very short trials
    over eight decades of step sizes, then finer and longer ones around the best, and last a trial
    with most of the budget. `GraspSampler(plan)` runs the cells of the paper's plan.

    plan: the return value of `NonConvex().plan(...)` or of another method's `plan`.
    parameter: the name that the objective passes to `suggest_float`, with any range that contains
        the value; `sampler.distribution` contains all of them.
    budget: the oracle calls of all trials; not with a plan, which has its own budget.
    resume: with a budget, for an objective that saves checkpoints: trials continue from earlier
        ones, see `grasp_budget(trial).parent`.
    seed: fixes the values of other parameters, and which iterates become candidates.
    independent_sampler: samples the other parameters; by default uniformly, from (seed, cell,
        name) alone, so that the number of processes does not matter.
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
        named = isinstance(parameter, str) and parameter != ""
        expect(named, "parameter", repr(parameter), "a name such as 'lr'")
        if not isinstance(plan, SweepSpec):  # a SweepSpec was read from a study
            plan = replace(Cells.of(plan, budget, resume), parameter=parameter).spec(seed)
        if not isinstance(plan.schedule, Cells):
            raise InputError("the study has a sweep, but no plan of a GraspSampler: use a new one")
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
        """Return a sampler that runs the paper's plan for a problem; it probes at x0 first.

        problem, budget, method, seed: as in `grasp_tune.minimize`.
        parameter: as in the class; by default `lr`, or `radius` if the method searches a radius.
        study: holds the plan; if it has one already, no second probe is needed.
        options: `independent_sampler`.
        """
        if study is None:
            return cls(probed_cells(problem, budget, method, parameter, seed), **options)
        if on_study.spec_on(study) is None:
            on_study.spec_on(study, probed_cells(problem, budget, method, parameter, seed))
        return cls.from_study(study, **options)

    @classmethod
    def from_study(cls, study: Study, **options: Any) -> "GraspSampler":
        """Return a sampler for the plan on the study, so that another process can join it."""
        if (found := on_study.spec_on(study)) is None:
            raise InputError(f"study {study.study_name!r} has no plan of a GraspSampler yet")
        return cls(found, **options)

    @property
    def plan(self) -> Plan:
        """The paper's plan; raises `InputError` if the sampler searches without one."""
        if self.cells.plan is None:
            raise InputError("plan: this sampler was made with a budget, and searches without one")
        return self.cells.plan

    @property
    def distribution(self) -> FloatDistribution:
        """A range that contains every cell's value, for `suggest_float` or `study.ask`."""
        return FloatDistribution(*self.cells.values, log=True)

    def suggest(self, trial: Trial) -> float:
        """Return the trial's step size or radius, by `suggest_float` with the right range."""
        kind = self.distribution
        return trial.suggest_float(self.parameter, kind.low, kind.high, log=True)

    def is_exhausted(self, study: Study) -> bool:
        """Return whether no cell is left, unless a running one fails; for `study.ask` loops."""
        return self.assignments(study).exhausted()

    def lost_cells(self, study: Study) -> tuple[Cell, ...]:
        """Return the cells whose trials failed too often; they are not tried again."""
        found = self.assignments(study).learn()
        return tuple(cell_of(found.search.tasks[key]) for key in found.search.lost)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, kind: Any) -> Any:
        """Return the cell's value for our parameter; the other sampler draws all others."""
        label = label_of(trial)
        if name == self.parameter and label.get("index"):
            value, (low, high), wide = label["value"], self.cells.source.range, self.distribution
            if isinstance(kind, FloatDistribution) and kind.step is None:
                # The last cell may lie above the plan's range; then it runs at the range's end.
                if kind.low <= low and high <= kind.high < value:
                    return float(kind.high)
                if kind.low <= value <= kind.high:
                    return value
            words = f"{kind} does not hold {value!r}, the value of cell {label['index']}"
            advice = f"use suggest_float({name!r}, {wide.low!r}, {wide.high!r}, log=True)"
            self._void(study, trial, f"{words}, so another value was drawn; {advice}")
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
        """Take the cell from a trial that does not run it, so that another trial gets it."""
        on_study.show_trial(study, trial, {TASK: {**trial.user_attrs[TASK], "void": True}})
        warnings.warn(f"trial {trial.number}: {why}", stacklevel=3)


class Budget:
    """An iterable of a trial's oracle calls: 0, 1, 2, ..., until its budget is spent.

    With `GraspSampler(..., resume=True)` a trial may continue an earlier one. `parent` is then the
    number of the trial whose checkpoint the objective loads, and calls are counted from `start`.
    `parent` is None if the trial starts at x0.

    trial, per_step, calls: see `grasp_budget`.
    """

    def __init__(self, trial: Trial, *, per_step: int = 1, calls: int | None = None) -> None:
        prune_surplus(trial)
        self._trial, self._label = trial, label_of(trial)
        self._step = whole("per_step", per_step)
        if not self._label.get("index") and calls is None:
            why = "its study has no GraspSampler, or its value was enqueued"
            advice = "say its budget: grasp_budget(trial, calls=...)"
            raise InputError(f"trial {trial.number} has no cell: {why}; {advice}")
        self.total: int = self._label.get("budget", calls or 0)
        self.keep: tuple[int, ...] = tuple(self._label.get("keep", ()))
        self.start: int = self._label.get("start", 0)
        self.parent: int | None = self._label.get("parent")
        self.spent = 0  # oracle calls of this trial, including the current step
        self.done = 0  # oracle calls of the completed steps
        self._kept = set[int]()

    def __iter__(self) -> Iterator[int]:
        while self.spent + self._step <= self.total:
            self.done, self.spent = self.spent, self.spent + self._step
            yield self.start + self.done
        self.done = self.spent
        self.close()

    def close(self) -> None:
        """Save the calls that the trial used; the loop does this at its end, but not on `break`."""
        self._trial.set_user_attr(CALLS, self.spent)

    def offer(self, model: nn.Module, artifact_store: ArtifactStore) -> bool:
        """Return whether the plan wants this iterate as a candidate, after uploading it if so.

        Call it at the beginning of each step, and once after the loop.
        """
        reached = self.total if self.done + self._step > self.total else self.done
        due = {call for call in self.keep if call <= reached} - self._kept
        for call in due:
            store = ArtifactCheckpoints(artifact_store, self._label["sweep"])
            store.write(iterate_key(self._label["index"], call), model_tensors(model), {})
        self._kept |= due
        return bool(due)


def grasp_budget(trial: Trial, *, per_step: int = 1, calls: int | None = None) -> Budget:
    """Return the trial's oracle calls to loop over; the loop ends when they are spent.

    trial: the argument of the objective. If no cell was left for it, `TrialPruned` is raised.
    per_step: oracle calls per optimizer step; 2 for UniXGrad.
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

    The choice and its certificate are written on the study. This costs the calls that the plan
    reserves for it, and a probe at x0 if `GraspSampler.for_problem` did not make the plan.

    study: the study, after the trials of its plan have ended.
    problem: the same model, loss and data as the objective's.
    artifact_store: where the trials uploaded their candidates.
    by: `loss` compares losses on `validation`, or on fresh training minibatches if the problem has
        none. `gradient` is the paper's rule for a plan of `NonConvex`: the norm of the mean
        gradient, which is also small if a network is dead.
    method: only needed if the plan's method has a base optimizer of your own.
    """
    expect(by in ("loss", "gradient"), "by", repr(by), "'loss' or 'gradient'")
    sampler, name = GraspSampler.from_study(study), study.study_name
    if sampler.cells.plan is None:
        words = "searched a step without a plan, which leaves no calls for fresh samples"
        advice = "its longest trial, study.best_trial as a rule, is the choice"
        raise InputError(f"study {name!r} {words}: {advice}")
    trained = sampler.assignments(study).learn()
    trained.settle(trained.log.calls)
    cells, store = trained.search, ArtifactCheckpoints(artifact_store, trained.log.sweep)
    if not any(store.exists(key) for task in cells.tasks.values() for key in task.writes):
        words = (
            "budget.offer(model, artifact_store) in each step of grasp_budget and after the last"
        )
        raise InputError(f"study {name!r} has no candidates: let the objective call {words}")
    result = choose_candidate(problem, cells, store, method, by_loss=by == "loss")
    for note in result.notes:
        if "dead network" in note:
            warnings.warn(f"{note}; here: by='loss'", stacklevel=2)
    chosen = result.choice.chosen
    number = trained.log.last_trial(cell_id(chosen.arm)).number if chosen.arm else None
    write_choice(study, result, trial=number, artifact=store.name(chosen.key))
    return result
