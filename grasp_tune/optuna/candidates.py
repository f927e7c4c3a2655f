"""The budget of a trial as a loop, the candidates that it leaves as artifacts, and their ensemble.

For studies whose objective is the user's own.
"""

import warnings
from collections.abc import Iterator
from typing import Literal

from optuna import Study, Trial
from optuna.artifacts._protocol import ArtifactStore
from torch import nn

from grasp_tune.core.checkpoint_keys import iterate_key
from grasp_tune.core.errors import InputError, whole
from grasp_tune.core.methods import Method
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.optuna import ArtifactCheckpoints, write_choice
from grasp_tune.executors.study import CALLS, label_of
from grasp_tune.optuna.sampler import GraspSampler
from grasp_tune.optuna.study_sampler import prune_surplus
from grasp_tune.runtime.cell_sweep import choose_candidate
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.cells import cell_id


class Budget:
    """Iterates over the oracle calls of one trial: 0, 1, 2, ... or every `per_step`-th.

    With `GraspSampler(..., resume=True)` a trial may go on from an earlier one: `parent` is the
    number of the trial whose checkpoint the objective loads, and the calls are counted from
    `start`; `parent` is None where the trial begins at x0.
    """

    def __init__(self, trial: Trial, total: int, step: int) -> None:
        self._trial, self._step, self._label = trial, step, label_of(trial)
        self.total: int = self._label.get("budget", total)
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
    """Return the trial's oracle calls as an iterator that ends normally, so that it completes.

    trial: what the objective was given.
    per_step: oracle calls of one optimizer step; 2 for UniXGrad.
    calls: the budget of a trial that has no cell because its value was enqueued.

    Raises `TrialPruned` in a trial for which no cell was left.
    """
    whole("per_step", per_step)
    prune_surplus(trial)
    if not label_of(trial).get("index") and calls is None:
        raise InputError(
            f"trial {trial.number} has no cell: its study has no GraspSampler, or its value was "
            "enqueued; say its budget: grasp_budget(trial, calls=...)"
        )
    return Budget(trial, calls or 0, per_step)


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
    trained = sampler.assignments(study)
    trained.learn()
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
