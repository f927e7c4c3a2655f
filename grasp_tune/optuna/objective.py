"""Inside an objective of the user's own: the whole method, task by task, or all of it at once."""

import math
from typing import Any

import optuna

from grasp_tune.core.errors import InputError
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.in_trial import train_in_trial
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_optimizer import TaskOptimizer
from grasp_tune.optuna.task_sampler import TaskSampler


def optimizer(trial: optuna.Trial, model: Groups) -> TaskOptimizer:
    """Return the optimizer of this trial, in an objective of a study with a `TaskSampler`.

        def objective(trial):
            model = ...
            opt = grasp_tune.optuna.optimizer(trial, model)
            while not opt.done:
                ...  # one step of any training loop: zero_grad(), loss.backward(), opt.step(loss)
            return evaluate(model)  # reached in the last trial, with the chosen weights

        study = optuna.create_study(sampler=TaskSampler(budget=10_000))
        study.optimize(objective)  # ends by itself

    trial: what the objective was given.
    model: the model, its parameters, or parameter groups; on its device, with its first weights.
    """
    sampler = trial.study.sampler
    if not isinstance(sampler, TaskSampler):
        raise InputError(
            f"the study's sampler is a {type(sampler).__name__}, which hands out no tasks; make "
            "the study with sampler=grasp_tune.optuna.TaskSampler(budget=10_000)"
        )
    return TaskOptimizer(model, sampler.task_of(trial))


def train(trial: optuna.Trial, problem: TorchProblem, budget: int, **how: Any) -> float:
    """Train a problem without a learning rate, and return its loss: an objective in one line.

        def objective(trial):
            width = trial.suggest_int("width", 8, 512, log=True)
            return grasp_tune.optuna.train(trial, make_problem(width), budget=1_000)

    trial: is reported the best loss after each part of the training, so that pruners work, and
        holds `oracle_calls` and the chosen `step` as user attributes.
    problem: what the trial's other parameters make of model, loss and data.
    budget: T, the oracle calls of this trial.
    how: method, schedule, seed and ensemble, as `grasp_tune.minimize` takes them.

    The loss is that of fresh minibatches, or of `validation` where the problem has it.
    """

    def report(part: int, best: float) -> None:
        trial.report(best, part)
        if trial.should_prune():
            raise optuna.TrialPruned(f"after part {part} of its training")

    _, found = train_in_trial(problem, budget, report, **how)
    loss = found.pop("loss")
    for name, value in found.items():
        trial.set_user_attr(name, value)
    return loss if math.isfinite(loss) else math.inf  # Optuna takes NaN for a failure
