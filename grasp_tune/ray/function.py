"""A training function of the user's own under `GraspSearcher`: each trial does its task in it."""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from ray import tune

from grasp_tune.core.errors import CheckpointError, GraspError
from grasp_tune.core.tasks import Outcome, Task
from grasp_tune.engine.checkpoints import Store, Tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.in_trial import train_in_trial
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_optimizer import TaskOptimizer
from grasp_tune.ray.trial_config import HEARTBEAT, KEY, report, work_in
from grasp_tune.ray.tune_internals import config_around, sweep_storage
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_sweep import Selection
from grasp_tune.runtime.shared_worker import ended_row, refusal, select_model


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
    return TaskOptimizer(model, _Trial(config_around() if config is None else config))


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
    _report_with_model(found, result)
    return found["loss"]


def _report_with_model(row: dict[str, Any], result: Result) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result.save(folder)
        tune.report(row, checkpoint=tune.Checkpoint.from_directory(folder))


class _Trial:
    """A trial of Tune that runs a function; see `loop.task_optimizer.TaskTrial`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._work = work_in(config)
        metric = config[KEY].get("metric")  # known when the function itself reports it
        self._blank = {} if metric is None else {metric: math.nan}
        with self.faults():
            self._storage = sweep_storage(tune.get_context().get_storage(), self._work.run)
        task, self.seed = self._work.task, self._work.spec.seed
        self.task: Task | None = None if isinstance(task, Selection) else task
        self.store: Store = self._storage.store
        self._count = self._storage.calls.counter()
        self._reported = -math.inf  # the first call is told: where a loop ends early, Tune knows
        if self.task is not None and not self._work.attempt:
            known = self._storage.read_outcome(self.task)
            if known is not None:
                self._last(ended_row(self._storage, known[0]))

    def select(self, place: Callable[[str], Tensors]) -> Result:
        """Leave the chosen model as a checkpoint of Tune; the function goes on."""
        result, row = select_model(self._storage, self._work, place)
        _report_with_model(self._row(row), result)
        return result

    def called(self, calls: int) -> None:
        """Count, and report now and then."""
        self._count(1)
        if time.monotonic() - self._reported > HEARTBEAT:
            self._reported = time.monotonic()
            tune.report(self._row({"status": "running", "oracle_calls": calls}))

    def end(self, outcome: Outcome) -> NoReturn:
        """Write the outcome where the driver finds it, and report."""
        assert self.task is not None
        self._storage.write_outcome(self.task, outcome, 0)
        self._last(ended_row(self._storage, outcome))

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Report what the driver is to know, in place of an error of the trial."""
        task = self._work.task
        try:
            yield
        except CheckpointError as error:
            if error.key not in ((task.key,) if isinstance(task, Selection) else task.reads):
                raise  # a full disk: another try, elsewhere perhaps
            self._last({"status": "lost checkpoint", "checkpoint": error.key})
        except GraspError as error:
            self._last(refusal(error))

    def _last(self, row: Mapping[str, Any]) -> NoReturn:
        """Report, and end the function the way Tune does: it leaves `report` by SystemExit."""
        tune.report({**self._row(row), "done": True})
        raise SystemExit(0)

    def _row(self, found: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._blank, **report(self._work, found)}
