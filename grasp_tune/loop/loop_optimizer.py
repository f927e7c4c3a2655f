"""The base class of optimizers for the user's own loop, in which a step is one oracle call."""

import math
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from traceback import walk_stack
from typing import Any, NoReturn, SupportsFloat

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks as _POST_HOOKS
from torch.optim.optimizer import _global_optimizer_pre_hooks as _PRE_HOOKS

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Task, TrainTask
from grasp_tune.engine.checkpoints import Tensors, model_tensors
from grasp_tune.engine.sampling import SamplingRun
from grasp_tune.engine.segment import TrainingRun
from grasp_tune.engine.step_rules import DEFAULTS
from grasp_tune.loop.model_point import ModelPoint

_Told = tuple[Tensor, bool]  # a loss, and whether it is only a part of the step's loss
LOSSES = 4096  # most accumulated losses that are kept; a model in other use gives more
NO_RATE = 1.0  # the lr in `param_groups` while there is no training run
# Torch 2.2 has it under another name.
_compiling: Any = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
NEEDS_LOSS = (
    "step() needs the loss of this minibatch: call opt.step(loss), or opt.step(closure) with a "
    "closure that computes the gradients and returns the loss; with a GradScaler, "
    "scaler.step(opt, loss); where a Trainer calls step(), opt.note_loss(loss) in its compute_loss"
)
MOVED = (
    "the model's parameters were changed since the last step by something else than this "
    "optimizer (load_state_dict, another optimizer, weight clipping?), so its measurements no "
    "longer fit; make a new optimizer, or leave the parameters alone"
)
JOINED = "parameters cannot join later: give all of them to a new optimizer"
GROUP_SET = (
    "the weight_decay or multiplier of a parameter group was changed, which is ignored: runs are "
    "compared under those that were given first; make a new optimizer"
)
COPIED = (
    "a Grasp optimizer cannot be copied or pickled: save opt.state_dict(), and load it into a new "
    "optimizer of the copied model"
)
JOINING = (
    "uneven ranks (model.join()): all ranks must make the same number of steps, since they decide "
    "together; give each the same number of minibatches (DistributedSampler)"
)
SKIPS = 32  # most consecutive overflows of a GradScaler, whose scale starts at 2**16
RATE_SET = (
    "something sets the learning rate of a Grasp optimizer (a learning-rate scheduler?); it has "
    "none, and the value is ignored: remove the scheduler; one that the Hugging Face Trainer makes "
    "by itself is silenced by grasp_tune.loop.transformers.GraspCallback"
)


class LoopOptimizer(Optimizer):
    """The base class of `Grasp` and `TaskOptimizer`, which use a loop's losses and gradients."""

    # A GradScaler then passes on infinite gradients; after divergence, all of them are infinite.
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None  # set by a GradScaler around a step, like the next one
    grad_scale: Tensor | float = 1.0

    def __init__(self, point: ModelPoint) -> None:
        self._point = point
        self.calls = 0  # steps so far that count towards the budget
        self.done = False  # whether the budget is spent; the model then holds the chosen weights
        self._skips = 0  # overflows of a GradScaler since the last step
        self._run: SamplingRun | TrainingRun | None = None
        self._told: set[str] = set()  # warnings that were already given
        self._spare = 0  # steps after the last one that give no warning
        # Losses from the model's output, and losses from `note_loss`.
        self._heard, self._noted = (deque[_Told](maxlen=LOSSES) for _ in range(2))
        super().__init__(point.groups, {"lr": NO_RATE, **DEFAULTS})
        names = ("lr", *DEFAULTS)
        self._shown = [{name: group[name] for name in names} for group in self.param_groups]
        self.defaults["momentum"] = 0.0  # for schedulers that require one; it is ignored
        self.model = point.model  # None if parameters were given
        if not isinstance(point.model, torch.jit.ScriptModule | None):  # these accept no hooks
            self.listen_to(point.model)

    def listen_to(self, model: nn.Module) -> None:
        """Use the loss in this model's output for steps that are called without a loss."""
        # The hook only refers to the list, also in a copy of the model.
        model.register_forward_hook(partial(_hear, self._heard), with_kwargs=True)

    def note_loss(self, loss: Tensor, part: bool = False) -> None:
        """Set the loss of the next `step`, if a framework calls `step` without it.

        With several losses (accumulated gradients) their mean is used. Losses in evaluation,
        without gradients, are ignored.

        part: each loss is only a part of the step's loss, so their sum is used.
        """
        if torch.is_grad_enabled():
            self._noted.append((loss.detach().reshape(()), part))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InputError(COPIED)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise `InputError` if parameters are added later: nothing was measured for them."""
        if len(self.param_groups) == len(self._point.groups):
            raise InputError(JOINED)
        super().add_param_group(param_group)

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """Return `step` with torch's hooks and profiler record only where somebody looks at them.

        They take as long as a small layer. In a compiled training step `step` is left out, because
        its decisions depend on numbers.
        """
        whole: Any = torch._disable_dynamo(Optimizer.profile_hook_step(func))  # type: ignore[attr-defined]

        @wraps(func)
        def step(self: LoopOptimizer, *args: Any, **kwargs: Any) -> Any:
            hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
            profiled = torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
            seen = hooks or _PRE_HOOKS or _POST_HOOKS or profiled or _compiling()
            return (whole if seen else func)(self, *args, **kwargs)

        return step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients, or fill them with zeros."""
        if set_to_none:  # without the profiler record
            for item in self._point.trained:
                item.grad = None
        else:
            super().zero_grad(set_to_none=False)

    @torch.no_grad()
    def step(self, closure: Tensor | float | Callable[[], Any] | None = None) -> Any:
        """Make one step, which is one oracle call, and return the loss.

        closure: the loss of the minibatch, after `loss.backward()`; or a closure that computes the
            gradients and returns the loss; or None if the model's output has it (Hugging Face).
        """
        if self.done:
            self._spare -= 1
            if self._spare < 0:
                self._warn("the budget is spent: this step changes nothing; stop at opt.done")
            return closure() if callable(closure) else closure
        infinite, loss = self._unscaled(), closure
        if callable(closure):
            with torch.enable_grad():
                loss = closure()
        value = self._checked(loss)
        self._skips = self._skips + 1 if infinite and bool(value.isfinite()) else 0
        if not 0 < self._skips < SKIPS:  # else the scale was too large: the step is skipped
            with _interrupts_after() if hasattr(sys, "ps1") else nullcontext():
                self._take(value)
        return loss

    def _unscaled(self) -> bool:
        """Undo the scaling of a GradScaler; return whether it found infinite gradients."""
        if (found := self.found_inf) is None:
            return False
        for item in self._point.trained:
            if item.grad is not None:
                item.grad.mul_(1.0 / self.grad_scale)
        self.found_inf, self.grad_scale = None, 1.0  # only once, even if this step raises
        return bool(found)

    def _take(self, loss: Tensor) -> None:
        raise NotImplementedError

    def _begin(self, task: Task) -> None:
        """Start a task, and move the model to the point of its first call."""
        if self._point.joined:
            raise InputError(f"the model has parameters to train that it did not have; {JOINED}")
        self._run = None  # frees memory before a checkpoint is read
        if isinstance(task, TrainTask):
            (segment,) = task.segments  # `check_spec` refuses batched runs
            self._run = TrainingRun(self._point, task, segment)
            self._run.prepare()
        else:
            self._run = SamplingRun(self._point, task)
        self._point.mark(look=True)  # all samples of a task are taken at this point

    def _feed(self, loss: Tensor) -> bool:
        """Pass a call to the current task; return whether it needs more calls."""
        if self._point.moved:
            raise SearchError(MOVED)
        assert self._run is not None
        self._point.check_gradients()
        more = self._run.feed(loss)
        if isinstance(self._run, TrainingRun):
            self._point.mark()
        self.calls += 1
        return more

    def _checked(self, loss: Any) -> Tensor:
        """Return the loss of this step as a tensor, the mean over all ranks."""
        told = self._noted or self._heard
        # A Trainer that adds up parts passes only the last one.
        if told and (loss is None or (told is self._noted and told[0][1])):
            loss = torch.stack([item.float() for item, _ in told])
            loss = loss.sum() if told[0][1] else loss.mean()
        self._heard.clear()
        self._noted.clear()
        if loss is None:
            raise InputError(NEEDS_LOSS)
        if not isinstance(loss, Tensor | SupportsFloat):
            raise InputError(f"loss: got a {type(loss).__name__}, expected a tensor or a number")
        value = loss.detach() if isinstance(loss, Tensor) else torch.tensor(float(loss))
        if value.numel() != 1 or value.is_complex() or value.is_meta:
            kind = "complex " * value.is_complex() + "meta " * value.is_meta
            got = f"a {kind}tensor of shape {tuple(value.shape)}"
            raise InputError(f"loss: got {got}, expected one real number")
        return self._agreed(value.reshape(()).float())

    def _agreed(self, value: Tensor) -> Tensor:
        """Return the mean of a number over all ranks, so that they make the same decisions."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return value
        if getattr(getattr(self._point.model, "_join_config", None), "enable", False):
            raise InputError(JOINING)
        value = value.to(self._point.trained[0].device, copy=True)
        torch.distributed.all_reduce(value)
        return value / torch.distributed.get_world_size()

    def _tensors(self) -> Tensors:
        """Return the model's current tensors, including frozen ones if the model was given."""
        model = self._point.bare
        return self._point.tensors() if model is None else model_tensors(model)

    def _show_step(self) -> None:
        """Show the current step size in `param_groups`, for loggers; warn if it was changed."""
        size = NO_RATE
        if isinstance(run := self._run, TrainingRun):  # NaN if the optimizer has no step size
            size = float(run.optimizer.param_groups[0].get(run.base.group_entry or "", math.nan))
        for group, shown in zip(self.param_groups, self._shown, strict=True):
            if any(group[name] != shown[name] for name in DEFAULTS):
                self._warn(GROUP_SET)
            # A constant schedule sets the first value again, which is harmless.
            if group["lr"] not in (shown["lr"], NO_RATE):
                self._warn(RATE_SET)
            group["lr"] = shown["lr"] = size * group["multiplier"]

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            frames = enumerate(walk_stack(sys._getframe()), start=1)
            names = ((level, frame.f_globals.get("__name__", "")) for level, (frame, _) in frames)
            own = "grasp_tune.", "torch."  # `step` is decorated; show the line that called it
            level = next((level for level, name in names if not name.startswith(own)), 1)
            warnings.warn(text, stacklevel=level)


def _hear(losses: deque[_Told], module: nn.Module, given: Any, named: Any, output: Any) -> None:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1 and torch.is_grad_enabled():
        # Hugging Face's Trainer divides by the items of all accumulated minibatches.
        part = named.get("num_items_in_batch") is not None
        losses.append((loss.detach().reshape(()), part))


@contextmanager
def _interrupts_after() -> Iterator[None]:
    """Delay Ctrl-C until the block is over, because nothing can continue from half a step.

    Only used in interactive sessions, because it takes as long as a small layer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        # None: the handler was not set from Python and cannot be restored.
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGINT)


def check_spec(spec: SweepSpec, bases: Mapping[str, Any] | None = None) -> None:
    """Raise `InputError` if a sweep needs more than one gradient of one minibatch per step."""
    if spec.method.exact:
        text = "Deterministic needs exact gradients, which a loop over minibatches does not give"
        raise InputError(f"method: {text}; use minimize, or NonConvex() or Convex()")
    if bases or callable(spec.method.base):
        raise InputError("method: a loop runs the named optimizers; give base by its name")
    if spec.width:
        raise InputError("fused: got True, but a loop makes one run after the other; leave it out")
    if len(Search(spec).round_tasks) > 1:
        got = spec.probe_parts
        raise InputError(f"probe_parts: got {got}, but a loop has one probe; give probe_parts=1")
