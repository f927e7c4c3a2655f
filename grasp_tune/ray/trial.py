"""Inside a trial: the task that it is given, what it reports, and functions of the user's own.

Work is known by what stands in the config, never by the id of a trial: a trial that Tune restarts
gets another id, and does the same work.
"""

import contextlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from ray import tune
from ray.tune.experiment import Trial

from grasp_tune.core.errors import CheckpointError, GraspError, InputError
from grasp_tune.core.tasks import Outcome, Task, TrainTask
from grasp_tune.engine.checkpoints import Store, Tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.executors.in_trial import train_in_trial
from grasp_tune.loop.model_point import Groups
from grasp_tune.loop.task_optimizer import TaskOptimizer
from grasp_tune.ray.tune_internals import config_around, sweep_storage
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_sweep import SELECT, Selection, Work
from grasp_tune.runtime.shared_worker import ended_row, refusal, select_model

KEY = "grasp"  # the one key in a trial's config that is ours
HEARTBEAT = 30.0  # seconds between two reports of a task under way


def to_config(work: Work, metric: str | None = None) -> dict[str, Any]:
    """Return the config of the trial that does this work.

    metric: what a function of the user's own reports; Tune wants it in every row.
    """
    words = {**_describe(work.task), "run": work.run, "attempt": work.attempt, "work": work}
    return {KEY: words if metric is None else {**words, "metric": metric}}


def work_in(config: Mapping[str, Any]) -> Work:
    """Return the work that `to_config` wrote."""
    own = config.get(KEY)
    if not isinstance(own, Mapping) or not isinstance(own.get("work"), Work):
        raise InputError(
            f"config: there is no {KEY!r} in it; run this trainable with "
            "search_alg=GraspSearcher(...)"
        )
    return own["work"]


def _describe(task: Task | Selection) -> dict[str, Any]:
    """Return what a person wants to know of a task: phase, cell, value, budget."""
    if isinstance(task, Selection):
        return {"task": task.id, "phase": SELECT, "budget": 0}
    words: dict[str, Any] = {"task": task.id, "phase": task.phase, "budget": task.calls}
    if isinstance(task, TrainTask):
        arms = [segment.arm for segment in task.segments]
        words["base"] = "+".join(dict.fromkeys(arm.base.rpartition(".")[2] for arm in arms))
        words["cell"] = _span([arm.index for arm in arms], "d")
        words["value"] = _span([arm.value for arm in arms], ".3g")
    return words


def _span(values: list[Any], form: str) -> str:
    low, high = min(values), max(values)
    return f"{low:{form}}" if low == high else f"{low:{form}}to{high:{form}}"


def trial_name(trial: Trial) -> str:
    """Return what Tune calls a trial and its folder: `train-run007_sgd_0.012_120calls_2b9c1f04`."""
    words = trial.config.get(KEY)
    if not isinstance(words, Mapping):
        return f"{trial.trainable_name}_{trial.trial_id}"
    calls = f"{words['budget']}calls" if words.get("budget") else None
    parts = [words.get("task"), words.get("base"), words.get("value"), calls, trial.trial_id]
    return folder_name("_".join(str(part) for part in parts if part))


def folder_name(name: str) -> str:
    """Return a name that a folder may have; an optimizer of the user's may be called anything."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", name)[:200]


def report_model(row: dict[str, Any], result: Result) -> None:
    """Report to Tune, with the chosen model as a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        result.save(folder)
        tune.report(row, checkpoint=tune.Checkpoint.from_directory(folder))


class TuneTrial:
    """The trial of Tune in which this process works; see `loop.task_optimizer.TaskTrial`.

    config: what Tune gave it.
    heartbeat: seconds between two reports of a task under way.
    """

    def __init__(self, config: Mapping[str, Any], heartbeat: float = HEARTBEAT) -> None:
        self.work, self._heartbeat = work_in(config), heartbeat
        metric = config[KEY].get("metric")  # known when the function itself reports it
        self._blank = {} if metric is None else {metric: math.nan}
        with self.faults():
            self.storage = sweep_storage(tune.get_context().get_storage(), self.work.run)
        task, self.seed = self.work.task, self.work.spec.seed
        self.task: Task | None = None if isinstance(task, Selection) else task
        self.store: Store = self.storage.store
        self._reported = time.monotonic()

    def in_function(self) -> "TuneTrial":
        """Return this trial for a loop of the user's own, which is ended where nothing is left."""
        self._count = self.storage.calls.counter()
        self._reported = -math.inf  # the first call is told: where a loop ends early, Tune knows
        fresh = self.task if not self.work.attempt else None
        known = None if fresh is None else self.storage.read_outcome(fresh)
        if known is not None:
            self.last(ended_row(self.storage, known[0]))
        return self

    def select(self, place: Callable[[str], Tensors]) -> Result:
        """Leave the chosen model as a checkpoint of Tune; the function goes on."""
        result, row = select_model(self.storage, self.work, place)
        report_model(self._row(row), result)
        return result

    def called(self, calls: int) -> None:
        """Count, and report now and then."""
        self._count(1)
        self.beat(calls)

    def beat(self, calls: int) -> None:
        """Report now and then how many calls were made."""
        if time.monotonic() - self._reported > self._heartbeat:
            self._reported = time.monotonic()
            tune.report(self._row({"status": "running", "oracle_calls": calls}))

    def end(self, outcome: Outcome) -> NoReturn:
        """Write the outcome where the driver finds it, and report."""
        assert self.task is not None
        self.storage.write_outcome(self.task, outcome, 0)
        self.last(ended_row(self.storage, outcome))

    @contextlib.contextmanager
    def faults(self) -> Iterator[None]:
        """Report what the driver is to know, in place of an error of the trial."""
        try:
            yield
        except CheckpointError as error:
            if error.key not in self.work.reads:
                raise  # a full disk: another try, elsewhere perhaps
            self.last({"status": "lost checkpoint", "checkpoint": error.key})
        except GraspError as error:
            self.last(refusal(error))

    def last(self, row: Mapping[str, Any], result: Result | None = None) -> NoReturn:
        """Report, and end the function the way Tune does: it leaves `report` by SystemExit."""
        found = {**self._row(row), "done": True}
        if result is None:
            tune.report(found)
        else:
            report_model(found, result)
        raise SystemExit(0)

    def _row(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result row as Tune wants it: every row has every column.

        `score` and `loss` are numbers in the last trial only, so that whoever asks Tune for the
        best trial by either of them is given the chosen model, never a training run.
        """
        work, words = self.work, _describe(self.work.task)
        columns = dict.fromkeys(("score", "loss", "train_loss", "gradient_norm"), math.nan)
        names = {"task": words["task"], "phase": words["phase"], "oracle_calls": 0}
        own = {"run": work.run, "attempt": work.attempt}
        return {**self._blank, **names, **columns, **own, **found}


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
