"""What runs inside a Tune trial: its task, its reports, and the user's own training functions."""

import math
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.trainable import FunctionTrainable

from grasp_tune.core.errors import InputError, expect, misfit
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.executors.in_trial import train_in_trial
from grasp_tune.executors.ray import load_compiler, run_with_companions
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_optimizer import TaskOptimizer
from grasp_tune.ray.tune_internals import config_around, sweep_storage
from grasp_tune.runtime.lane_sharing import LaneSharing
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_sweep import SharedTrial, Work

KEY = "grasp"  # our only key in a trial's config


def to_config(work: Work, metric: str | None = None) -> dict[str, Any]:
    """Return a trial's config, readable in tables; `metric` is a column of all its reports."""
    # In a list, because Tune's TensorBoard logger warns in each trial about any other object.
    return {KEY: {**work.words, "run": work.run, "work": [work], "metric": metric}}


def work_in(config: Mapping[str, Any]) -> Work:
    (work,) = config.get(KEY, {}).get("work", [None])
    if not isinstance(work, Work):
        raise InputError(f"config: it has no {KEY!r}; run it with search_alg=GraspSearcher(...)")
    return work


def trial_name(trial: Trial) -> str:
    """Return the name of a trial and its folder: `train-run007_sgd_0.012_120calls_2b9c1f04`."""
    words = trial.config[KEY]
    calls = f"{words['budget']}calls" if words["budget"] else None
    parts = [words["task"], words.get("base"), words.get("value"), calls, trial.trial_id]
    # The user's optimizer may have any name.
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", "_".join(filter(None, parts)))[:200]


def report(row: dict[str, Any], result: Result | None = None) -> None:
    """Report a row to Tune; if there is a result, with the chosen model as a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        if result is not None:
            result.save(folder)
        kept = None if result is None else tune.Checkpoint.from_directory(folder)
        tune.report(row, checkpoint=kept)


def tune_trial(config: Mapping[str, Any], silence: float = 0.0) -> SharedTrial:
    """Return the Tune trial of this process; for `silence` see `SharedTrial`."""
    work, context = work_in(config), tune.get_context().get_storage()
    storage = partial(sweep_storage, context, work.run)
    return SharedTrial(work, storage, report, config[KEY]["metric"], silence)


_SHARING = LaneSharing()  # measured speeds, kept for all tasks of this process


class GraspTrainable(FunctionTrainable):
    """A Tune trainable that runs one task of a sweep; created by `grasp_trainable`."""

    make_problem: ClassVar[Callable[..., TorchProblem]]
    kept: ClassVar[tuple[Any, Worker | None]] = None, None  # reused by this process's next trial

    @classmethod
    def problem(cls, constants: Mapping[str, Any], given: Mapping[str, Any]) -> TorchProblem:
        """Return a new problem; `given` are the parameters of `tune.with_parameters`."""
        arguments = [dict(constants)] if misfit(cls.make_problem, **given) else []
        if wrong := misfit(cls.make_problem, *arguments, **given):
            names = ", ".join(given) or "nothing"
            raise InputError(f"make_problem: {wrong}; tune.with_parameters gives {names}")
        problem = cls.make_problem(*arguments, **given)
        got = f"returned {type(problem).__name__}"
        expect(isinstance(problem, TorchProblem), "make_problem", got, "a TorchProblem")
        return problem

    @classmethod
    def worker(
        cls, work: Work, context: Any, constants: Any, given: Any, uncounted: object = None
    ) -> Worker:
        """Return a worker for this process, which may be the trial's or a companion's."""
        storage, problem = sweep_storage(context, work.run), cls.problem(constants, given)
        count = storage.calls.counter()
        return Worker(problem, work.seed, storage.store, work.bases, count)

    def setup(self, config: dict[str, Any], **given: Any) -> None:
        self._given = given  # from `tune.with_parameters`
        load_compiler()
        super().setup(config)

    def _trainable_func(self, config: dict[str, Any]) -> None:
        trial, reserved = tune_trial(config), self.trial_resources
        constants = {key: value for key, value in config.items() if key != KEY}
        needs = reserved.bundles[0] if reserved is not None and reserved.bundles else {"CPU": 1.0}
        torch.set_num_threads(max(1, int(needs.get("CPU", 1))))
        key, context = (constants, trial.storage.path, trial.seed), tune.get_context().get_storage()
        make = partial(self.worker, trial.work, context, constants, self._given)
        known, worker = self.kept
        type(self).kept = None, None  # an interrupted worker leaves its model at an unknown point
        with trial.faults():
            worker = worker if worker is not None and known == key else make()
            worker.oracle.count = trial.count
            if trial.task is None:
                trial.select(worker.tensors_at, done=True)
                return
            outcome = run_with_companions(_SHARING, worker, trial.task, needs, make)
        type(self).kept = key, worker
        trial.end(outcome, worker)


def grasp_trainable(
    make_problem: Callable[..., TorchProblem], *, cpus: float = 1.0, gpus: float = 0.0
) -> type[GraspTrainable]:
    """Return a trainable for `GraspSearcher` that trains the problem from `make_problem`.

    make_problem: called once in each worker process, without arguments, or with the constants of
        the config if it takes an argument. Load large data in it, or share them with `ray.put` or
        `tune.with_parameters(grasp_trainable(make_problem), data=...)`.
    cpus, gpus: what a task reserves; fractions let tasks share. For needs that depend on the phase,
        pass `tune.with_resources` a function of `config["grasp"]["phase"]`.
    """
    fine = callable(make_problem) and not isinstance(make_problem, TorchProblem)
    wanted = "a function that returns the problem"
    expect(fine, "make_problem", type(make_problem).__name__, wanted)
    own = {"make_problem": staticmethod(make_problem), "__module__": __name__}
    trainable = type("grasp", (GraspTrainable,), own)
    needs = {"cpu": cpus, "gpu": gpus}
    return trainable if (cpus, gpus) == (1, 0) else tune.with_resources(trainable, needs)


def optimizer(model: Groups, config: Mapping[str, Any] | None = None) -> TaskOptimizer:
    """Return an optimizer that runs this trial's task, for your own function with `GraspSearcher`.

        def train(config):
            model = ...
            opt = grasp_tune.ray.optimizer(model)
            while not opt.done:
                ...  # one step of any training loop: zero_grad(), loss.backward(), opt.step(loss)
            tune.report({"accuracy": ...})  # reached in the last trial, with the chosen weights

        tune.run(train, search_alg=GraspSearcher(budget=10_000))

    model: the model, its parameters, or parameter groups; on its device, with initial weights.
    config: the argument of your function; only needed if you call this from another thread.
    """
    # The first call is reported, so that Tune has a result if the loop ends early.
    trial = tune_trial(config_around() if config is None else config, silence=math.inf)
    return TaskOptimizer(model, trial)


def train(problem: TorchProblem, budget: int, **how: Any) -> float:
    """Train a problem without a learning rate in this trial, and return its loss.

    It reports the best `loss` after each part of the training, so that schedulers work. The last
    report has the loss over all rows of `validation` (or of the data), `oracle_calls`, the chosen
    `step`, and the model as a checkpoint for `Result.load`.

    problem: the model, loss and data for this trial's config.
    budget: T, the oracle calls of this trial.
    how: method, schedule, seed and ensemble, as in `grasp_tune.minimize`.
    """

    def told(part: int, best: float, calls: int) -> None:
        report({"loss": best, "oracle_calls": calls, "step": math.nan})

    result, found = train_in_trial(problem, budget, told, **how)
    report(found, result)
    return found["loss"]
