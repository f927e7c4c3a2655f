"""Training functions of the user's own: a task of the search in each trial, or a whole sweep."""

import math
from collections.abc import Mapping
from typing import Any

from ray import tune

from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.in_trial import train_in_trial
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_optimizer import TaskOptimizer
from grasp_tune.ray.trial import TuneTrial, report_model
from grasp_tune.ray.tune_internals import config_around


def optimizer(model: Groups, config: Mapping[str, Any] | None = None) -> TaskOptimizer:
    """Return the optimizer of this trial, in a function that Tune runs with `GraspSearcher`.

        def train(config):
            model = ...
            opt = grasp_tune.ray.optimizer(model)
            while not opt.done:
                ...  # one step of any training loop: zero_grad(), loss.backward(), opt.step(loss)
            tune.report({"accuracy": ...})  # reached in the last trial, with the chosen weights

        tune.run(train, search_alg=GraspSearcher(budget=10_000))

    model: the model, its parameters, or parameter groups; on its device, with its first weights.
    config: what the function was given; needed only where another thread calls this.
    """
    trial = TuneTrial(config_around() if config is None else config)
    return TaskOptimizer(model, trial.in_function())


def train(problem: TorchProblem, budget: int, **how: Any) -> float:
    """Train a problem without a learning rate in this trial, and return its loss.

        def trial(config):
            grasp_tune.ray.train(make_problem(config["width"]), budget=1_000)

        tune.run(trial, config={"width": tune.choice([8, 64, 512])}, num_samples=20,
                 metric="loss", mode="min", scheduler=ASHAScheduler())

    Reports the best `loss` after each part of the training, so that schedulers work, and at last
    the loss of fresh minibatches (or of `validation`) with `oracle_calls`, the chosen `step` and
    the model as a checkpoint, which `Result.load` reads.

    problem: what the trial's config makes of model, loss and data.
    budget: T, the oracle calls of this trial.
    how: method, schedule, seed and ensemble, as `grasp_tune.minimize` takes them.
    """
    blank = {"oracle_calls": 0, "step": math.nan}
    result, found = train_in_trial(
        problem, budget, lambda part, best: tune.report({"loss": best, **blank}), **how
    )
    report_model(found, result)
    return found["loss"]
