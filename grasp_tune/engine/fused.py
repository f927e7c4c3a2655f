"""Runs of a small model as one batched computation: what makes the paper's grid affordable.

Many small steps cost mostly overhead; one step of all runs together costs little more than one.
All runs see the same minibatches, so a batch is read once. Whether it pays is a rule of the
model's shape, so that every process, and a resumed run, decides alike. A model that cannot be
batched falls back to one run after the other, with a note in the result; that too is a property of
the model, so that it happens in every process. Any other error is the user's, and is raised.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.tasks import SegmentOutcome, TrainTask
from grasp_tune.engine.fused_rules import Rule, run_norms
from grasp_tune.engine.problem import Batch, TorchProblem
from grasp_tune.engine.segment import SegmentRunner

if TYPE_CHECKING:
    from grasp_tune.engine.worker import Worker

logger = logging.getLogger(__name__)

WIDTH = 64  # runs in one batch at most
NARROW = 32  # outputs of a layer up to which one product beats a batch of them; measured
# Parameters. Measured on a CPU core with batches of 8 to 256 rows: 8 runs of such a model gain at
# least a third, 32 a half; at 50,000 little is left, at 100,000 a batch is slower.
LARGEST = 40_000
# Words in the errors that torch raises where a computation cannot be batched.
_LIMITS = ("vmap", "functorch", "Batching rule", "BatchedTensor", "data pointer", "setup_context")
_LAYERS = (nn.Linear, nn.Flatten, nn.Identity, nn.Dropout, nn.LayerNorm, nn.LogSoftmax)
_CURVES = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Softplus)


def fusion_width(
    problem: TorchProblem, method: Method | None, fused: bool | Literal["auto"], seed: int
) -> int:
    """Return how many runs to batch into one computation, 0 for none."""
    if fused not in (True, False, "auto"):
        raise InputError(f"fused: got {fused!r}, expected True, False or 'auto'")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed: got {seed!r}, expected a whole number")
    if not problem.plain_steps:
        if fused is True:
            raise InputError("fused: got True with weight_decay or clip, expected False or 'auto'")
        return 0
    if fused == "auto":
        own = callable(getattr(method, "base", None))  # there is no batched form of it
        fused = not own and pays(problem.build(seed))
    return WIDTH if fused else 0


def pays(model: nn.Module) -> bool:
    """Return whether batching runs of this model is faster than one after the other.

    A rule of the shape: only layers that become one matrix product, no buffers, few parameters.
    """
    leaves = [item for item in model.modules() if not list(item.children())]
    size = sum(item.numel() for item in model.parameters())
    plain = all(item.device.type == "cpu" and item.requires_grad for item in model.parameters())
    known = all(isinstance(item, _LAYERS + _CURVES) for item in leaves)
    return known and plain and size <= LARGEST and not list(model.buffers())


def run_fused(worker: "Worker", task: TrainTask) -> tuple[list[SegmentOutcome], str]:
    """Return the outcome of each segment, all runs advancing together, and a note for people."""
    try:
        return _advance_together(worker, task), ""
    except _CannotBatch as error:
        reason, lost = str(error), error.calls
    if reason not in worker.obstacles:  # one line, not one a task
        worker.obstacles.add(reason)
        logger.info("%s: runs one by one, not batched: %s", task.id, reason)
    # The loss has seen a minibatch for nothing. The first run does without it, so that no more
    # calls are made than the task has, and whoever runs the task loses the same one.
    outcomes = [
        SegmentRunner(worker, segment, task, skip=0 if at else lost).outcome()
        for at, segment in enumerate(task.segments)
    ]
    note = f"the loss cannot be batched ({reason}): pass fused=False to save a call a task"
    return outcomes, note if lost else ""


class _CannotBatch(Exception):
    """The model does things that a batch of models cannot; `calls` were spent to find out."""

    def __init__(self, reason: str, calls: int = 0) -> None:
        super().__init__(reason)
        self.calls = calls


class _Point:
    """One run's parameters, with as much of `nn.Module` as checkpoints need."""

    def __init__(self, model: nn.Module) -> None:
        self._named = [
            (name, nn.Parameter(item.detach().clone(), item.requires_grad))
            for name, item in model.named_parameters()
        ]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._named)

    def parameters(self) -> Iterator[nn.Parameter]:
        return (item for _, item in self._named)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def _advance_together(worker: "Worker", task: TrainTask) -> list[SegmentOutcome]:
    """Advance until every run has had its calls; those that end leave the batch."""
    segments = task.segments
    obstacles = {
        "its runs are at different places": len({run.start for run in segments}) > 1,
        "its runs have different base optimizers": len({run.arm.base for run in segments}) > 1,
        "its steps average several minibatches": any(run.lanes > 1 for run in segments),
        "exact gradients go through the whole data set": task.exact,
        "the model has buffers": bool(list(worker.model.buffers())),
    }
    for reason, holds in obstacles.items():
        if holds:
            raise _CannotBatch(reason)
    everyone = [
        SegmentRunner(worker, segment, task, cast(nn.Module, _Point(worker.model)))
        for segment in segments
    ]
    base, groups = everyone[0].base, [run.optimizer.param_groups[0] for run in everyone]
    make = cast(type[Rule] | None, base.batched_rule())
    if make is None or len({group.get("iteration") for group in groups}) > 1:
        raise _CannotBatch(f"there is no batched {base.name} for runs like these")
    worker.place(START)
    loss = BatchedLoss(worker.model, worker.oracle.problem.loss)
    call, runs, rule = segments[0].start, everyone, None
    while True:
        if rule is None or any(run.over for run in runs):
            if rule is not None:
                rule.give_back()
            for run in runs:
                if run.over:
                    run.finish()
            if not (runs := [run for run in runs if not run.over]):
                return [run.curve.outcome() for run in everyone]
            rule = make([run.optimizer for run in runs])
        for run in runs:
            run.keep_due()
        rule.begin()
        for _ in range(base.calls_per_step):
            _call(worker, task, loss, runs, rule, call)
            call += 1
        for run in runs:
            run.averages.update()


def _call(
    worker: "Worker",
    task: TrainTask,
    loss: "BatchedLoss",
    runs: list[SegmentRunner],
    rule: Rule,
    call: int,
) -> None:
    """Make one oracle call of every run."""
    oracle = worker.oracle
    batch = oracle.stream("train").batch(call)
    oracle.seed_noise("train", call)
    try:
        gradients, losses = loss.gradients(rule.points, batch)
    except (RuntimeError, NotImplementedError) as error:
        if not any(word in str(error) for word in _LIMITS):
            raise
        reason = str(error).splitlines()[0]
        if call > task.segments[0].start:
            raise SearchError(
                f"{task.id}: the loss could be batched before and cannot at call {call} "
                f"({reason}); pass fused=False"
            ) from error
        oracle.count(1)
        raise _CannotBatch(reason, calls=1) from error
    oracle.count(len(runs))
    norms: Any = run_norms(gradients) if task.norms else [math.nan] * len(runs)
    values = [run.segment.arm.value * run.segment.step_share(call) for run in runs]
    for run, value, norm in zip(runs, losses.tolist(), norms, strict=True):
        run.record(value, float(norm))
    with torch.no_grad():
        rule.feed(gradients, torch.tensor(values, dtype=torch.float64))


class BatchedLoss(nn.Module):
    """The user's loss for many points at once, as a module whose parameters can be swapped.

    The loss runs once, under `torch.func.vmap`, with every parameter a stack of that of all runs;
    the ordinary backward pass of the sum then gives each run its own gradient.
    """

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = [loss]  # in a list: a loss that is a module must not become a part
        self._names = [f"model.{n}" for n, item in model.named_parameters() if item.requires_grad]

    def forward(self, batch: Batch) -> Tensor:
        return self._loss[0](self.model, batch).reshape(())

    def gradients(self, points: Sequence[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor]:
        """Return the gradients, stacked like `points`, and the loss of each run."""
        leaves = [item.detach().requires_grad_() for item in points]
        named = dict(zip(self._names, leaves, strict=True))
        swapped: Any = partial(functional_call, self)
        with torch.enable_grad(), _OneProduct():
            losses: Tensor = vmap(swapped, in_dims=(0, None), randomness="same")(named, (batch,))
        found = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
        return list(found), losses.detach()


class _OneProduct(TorchFunctionMode):
    """Has narrow linear layers whose runs share their input computed by `_Linear`.

    Without it, the layer of 32 runs is 32 products with a copy of the input for each: half the
    speed for 512 features and 10 classes.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stacked = torch._C._functorch.is_batchedtensor  # there is no public question for it
        if (
            func is functional.linear
            and not kwargs
            and args[1].shape[0] <= NARROW
            and not stacked(args[0])
            and all(stacked(item) for item in args[1:] if item is not None)
        ):
            return _Linear.apply(*args, *([None] * (3 - len(args))))
        return func(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """A linear layer whose weights, of all runs, are stacked into one matrix."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(inputs, weight, bias)  # never called: weights are always stacked

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass  # the backward pass is that of the one product

    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        runs, outputs, _ = weight.shape
        flat = None if bias is None else bias.reshape(runs * outputs)
        out = functional.linear(inputs, weight.reshape(runs * outputs, -1), flat)
        return out.unflatten(-1, (runs, outputs)), out.ndim - 1
