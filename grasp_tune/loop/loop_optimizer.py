"""What every optimizer does that a loop of the user's own drives: one oracle call a step."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.loop.group_rules import DEFAULTS
from grasp_tune.loop.model_point import Groups, ModelPoint
from grasp_tune.loop.task_runs import TaskRun, TrainRun

NO_RATE = 1.0  # what `param_groups` show as lr while no run is under way
NEEDS_LOSS = (
    "step() needs the loss of this minibatch: call opt.step(loss), or opt.step(closure) with a "
    "closure that computes the gradients and returns the loss"
)
MOVED = (
    "the model's parameters were changed since the last step by something else than this "
    "optimizer (load_state_dict, another optimizer, weight clipping?), so its measurements no "
    "longer fit; make a new optimizer, or leave the parameters alone"
)


class LoopOptimizer(Optimizer):
    """Takes the losses and gradients of a loop; what they are for is said by those derived from it.

    model: the model, its parameters, or parameter groups.
    """

    def __init__(self, model: Groups) -> None:
        self._point = ModelPoint(model)
        self._run: TaskRun | None = None
        self._calls = 0
        self._heard: list[Tensor] = []  # losses that the model's own output has told
        self._told: set[str] = set()  # warnings that were given
        super().__init__(self._point.groups, {"lr": NO_RATE, "shown": NO_RATE, **DEFAULTS})
        if self._point.model is not None:
            self._point.model.register_forward_hook(self._hear)

    @property
    def done(self) -> bool:
        """Whether the budget is spent; the model then holds the chosen weights."""
        raise NotImplementedError

    @property
    def calls(self) -> int:
        """Steps made so far that count against the budget."""
        return self._calls

    @torch.no_grad()
    def step(self, closure: Tensor | float | Callable[[], Any] | None = None) -> Any:
        """Hand over one oracle call; returns the loss.

        closure: the loss of this minibatch, whose gradients are in the parameters; or a closure
            that computes them and returns it. Models whose output has a `loss` (Hugging Face) need
            neither.
        """
        if self.done:
            self._warn("done", "the budget is spent: this step changes nothing; stop at opt.done")
            return closure() if callable(closure) else closure
        loss = closure
        if callable(closure):
            with torch.enable_grad():
                loss = closure()
        self._take(self._checked(loss))
        return loss

    def _take(self, loss: Tensor) -> None:
        """Use one oracle call."""
        raise NotImplementedError

    def _feed(self, loss: Tensor) -> None:
        """Hand it to the task under way."""
        if self._point.moved:
            raise SearchError(MOVED)
        assert self._run is not None
        self._point.dense_gradients()
        self._run.feed(loss)
        self._calls += 1

    def _checked(self, loss: Any) -> Tensor:
        """Return the loss of this step as a tensor, the mean over all ranks."""
        heard, self._heard = self._heard, []
        if loss is None and heard:
            loss = torch.stack([item.float() for item in heard]).mean()
        if loss is None:
            raise InputError(NEEDS_LOSS)
        value = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss))
        if value.numel() != 1:
            shape = tuple(value.shape)
            raise InputError(f"loss: got a tensor of shape {shape}, expected one number")
        value = value.reshape(()).float()
        if (world := _world()) > 1:
            value = value.clone()
            torch.distributed.all_reduce(value)  # so that all ranks decide alike
            value /= world
        return value

    def _hear(self, module: nn.Module, given: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1 and torch.is_grad_enabled():
            self._heard.append(loss.detach().reshape(()))

    def _show_step(self) -> None:
        """Let `param_groups` say the present step, as loggers expect; warn where it was set."""
        run = self._run
        segment = run.segment if isinstance(run, TrainRun) else None
        size = NO_RATE if segment is None else segment.step_size
        for group in self.param_groups:
            # A schedule that is constant sets what it found first, which does no harm.
            if group["lr"] not in (group["shown"], NO_RATE):
                self._warn(
                    "scheduler",
                    "something sets the learning rate of a Grasp optimizer (a learning-rate "
                    "scheduler?); it has none, and the value is ignored: remove the scheduler",
                )
            group["lr"] = group["shown"] = size * group["multiplier"]

    def _warn(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            warnings.warn(text, stacklevel=4)


def check_spec(spec: SweepSpec, bases: Mapping[str, Any] | None = None) -> None:
    """Raise where a sweep needs more than a loop gives: one gradient of one minibatch a step.

    bases: optimizers of the user's own.
    """
    if getattr(spec.method, "exact", False):
        raise InputError(
            "method: Deterministic needs exact gradients, which a loop over minibatches does "
            "not give; use minimize, or NonConvex() or Convex()"
        )
    if bases or callable(spec.method.base):
        raise InputError("method: a loop runs the named optimizers; give base by its name")
    if len(Search(spec).round_tasks) > 1:
        got = spec.probe_parts
        raise InputError(f"probe_parts: got {got}, but a loop has one probe; give probe_parts=1")


def _world() -> int:
    """Return how many processes train together."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1
