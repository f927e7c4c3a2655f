"""Inside an objective of the user's own: a learning rate is not among what Optuna searches."""

import math
from typing import Any

import optuna

from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.in_trial import train_in_trial


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
