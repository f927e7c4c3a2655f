"""One task of a search that many trials share, through the training loop of each of them."""

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
    """What a framework's trial does around its task.

    select: makes the result; `place` puts the model at a checkpoint and returns its tensors.
    called: counts one more oracle call; `calls` of the task so far.
    end: hands in how the task went, and ends the trial.
    faults: around whatever may find that a checkpoint is lost, or that the search cannot go on.
    """

    task: Task | None  # None: the search is over, and this trial has the choice
    seed: int
    store: Store

    def select(self, place: Callable[[str], Tensors]) -> Result: ...
    def called(self, calls: int) -> None: ...
    def end(self, outcome: Outcome) -> NoReturn: ...
    def faults(self) -> contextlib.AbstractContextManager[None]: ...


class TaskOptimizer(LoopOptimizer):
    """The optimizer of one trial; made by `grasp_tune.ray.optimizer` and its Optuna twin.

    The `step` that completes the trial's task ends the trial. So the code behind the loop runs in
    the last trial only, in which `done` is true from the start and the model holds the chosen
    weights. x0 is the model as the first trial built it.

    model: the model, its parameters, or parameter groups.
    trial: the trial around it.
    """

    def __init__(self, model: Groups, trial: TaskTrial) -> None:
        super().__init__(ModelPoint(model, trial.store))
        self._trial = trial
        self._result: Result | None = None
        with trial.faults():
            if trial.task is None:
                self._result, self._done = trial.select(self._place), True
                return
            if isinstance(trial.task, ProbeTask) and not trial.store.exists(START):
                trial.store.write(START, self._point.tensors(), {})
            self._begin(trial.task)
        _seed(trial.seed, trial.task)

    @torch.no_grad()
    def step(self, closure: Tensor | float | Callable[[], Any] | None = None) -> Any:
        """Hand over one oracle call; returns the loss. The task's last one ends the trial."""
        with self._trial.faults():
            return super().step(closure)

    def _take(self, loss: Tensor) -> None:
        assert self._run is not None
        self._trial.called(self._calls + 1)
        if not self._feed(loss):
            self._trial.end(self._run.outcome())
        self._show_step()

    def finish(self) -> Result:
        """Return the result; the model holds the chosen weights."""
        with self._trial.faults():
            if (task := self._trial.task) is not None:
                made = f"{self._calls} of the {task.calls} oracle calls of {task.id}"
                raise InputError(f"the loop ended after {made}: let it go on until opt.done")
            assert self._result is not None
            return self._result

    def _place(self, key: str) -> Tensors:
        self._point.place(key)
        return self._tensors()


def _seed(seed: int, task: Task) -> None:
    """Seed what loaders shuffle with, by the task's purpose and its first call.

    So fresh samples are other ones than those trained on, whatever the function seeds before;
    runs that compete see the same; and a task that is done again is the same again.
    """
    if isinstance(task, ProbeTask):
        place: tuple[str, int] = "probe", task.gradients[0]
    elif isinstance(task, ScoreTask):
        place = "ensemble", task.samples[0].start
    else:
        place = "train", task.segments[0].start
    word = int(words(seed, "loop", *place, count=1)[0])
    torch.manual_seed(word >> 1)
    random.seed(word)  # augmentations draw from this one and the next
    np.random.seed(word % 2**32)  # noqa: NPY002
