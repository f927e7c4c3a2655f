"""An optimizer that runs one task of a search in the training loop of one trial of many."""

import contextlib
import random
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import InputError
from grasp_tune.core.random_streams import words
from grasp_tune.core.tasks import Outcome, ProbeTask, ScoreTask, Task
from grasp_tune.engine.checkpoints import Store, Tensors
from grasp_tune.loop.loop_optimizer import LoopOptimizer
from grasp_tune.loop.model_point import Groups, ModelPoint
from grasp_tune.runtime.result import Result


class TaskTrial(Protocol):
    """The interface between a task and the trial of a framework that runs it.

    select: returns the result; `place` moves the model to a checkpoint and returns its tensors.
    called: counts one more oracle call; `calls` is the number in this task so far.
    end: reports the task's outcome and ends the trial.
    faults: a context for code that may find a checkpoint lost or the search unable to continue.
    """

    task: Task | None  # None: the search is over, and this trial gets the chosen weights
    seed: int
    store: Store

    def select(self, place: Callable[[str], Tensors]) -> Result: ...
    def called(self, calls: int) -> None: ...
    def end(self, outcome: Outcome) -> NoReturn: ...
    def faults(self) -> contextlib.AbstractContextManager[None]: ...


class TaskOptimizer(LoopOptimizer):
    """The optimizer that `grasp_tune.ray.optimizer` and `grasp_tune.optuna.optimizer` return.

    The `step` that completes the trial's task ends the trial. So the code after the loop only runs
    in the last trial, where `done` is true from the start and the model holds the chosen weights.
    The start point x0 is the model as the first trial built it.

    model: the model, its parameters, or parameter groups.
    trial: the framework's trial.
    """

    def __init__(self, model: Groups, trial: TaskTrial) -> None:
        super().__init__(ModelPoint(model, trial.store))
        self._trial = trial
        self._result: Result | None = None
        with trial.faults():
            if trial.task is None:
                self._result, self.done = trial.select(self._place), True
                return
            if isinstance(trial.task, ProbeTask) and not trial.store.exists(START):
                trial.store.write(START, self._point.tensors(), {})
            self._begin(trial.task)
        _seed(trial.seed, trial.task)

    @torch.no_grad()
    def step(self, closure: Tensor | float | Callable[[], Any] | None = None) -> Any:
        """Make one oracle call and return its loss; the task's last call ends the trial."""
        with self._trial.faults():
            return super().step(closure)

    def _take(self, loss: Tensor) -> None:
        assert self._run is not None
        self._trial.called(self.calls + 1)
        if not self._feed(loss):
            self._trial.end(self._run.outcome())
        self._show_step()

    def finish(self) -> Result:
        """Return the result; the model then holds the chosen weights."""
        with self._trial.faults():
            if (task := self._trial.task) is not None:
                made = f"{self.calls} of the {task.calls} oracle calls of {task.id}"
                raise InputError(f"the loop ended after {made}: let it go on until opt.done")
            assert self._result is not None
            return self._result

    def _place(self, key: str) -> Tensors:
        self._point.place(key)
        return self._tensors()


def _seed(seed: int, task: Task) -> None:
    """Seed the generators that loaders shuffle with, by the task's purpose and first call.

    So fresh samples differ from the training data, whatever the user's function seeds earlier.
    Competing runs see the same minibatches, and a repeated task sees the same ones again.
    """
    if isinstance(task, ProbeTask):
        place: tuple[str, int] = "probe", task.gradients[0]
    elif isinstance(task, ScoreTask):
        place = "ensemble", task.samples[0].start
    else:
        place = "train", task.segments[0].start
    word = int(words(seed, "loop", *place, count=1)[0])
    torch.manual_seed(word >> 1)
    random.seed(word)  # augmentations use this generator and NumPy's
    np.random.seed(word % 2**32)  # noqa: NPY002
