"""The user's loss for many points at once: losses and gradients in one computation.

The loss runs once, under `torch.func.vmap`, with every parameter a stack of that of all runs;
the ordinary backward pass of the sum then gives each run its own gradient. All runs see the same
minibatch, so a linear layer on it is one matrix product for all runs together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from grasp_tune.engine.problem import Batch

NARROW = 32  # outputs of a layer up to which one product beats a batch of them; measured


class BatchedLoss:
    """The loss of one problem at stacks of points."""

    def __init__(
        self, model: nn.Module, loss: Callable[[nn.Module, Batch], Tensor], names: Sequence[str]
    ) -> None:
        module = _LossOf(model, loss)
        self._names = [f"model.{name}" for name in names]

        def at(points: dict[str, Tensor], batch: Batch) -> Tensor:
            found: Tensor = functional_call(module, points, (batch,))
            return found

        self._losses = vmap(at, in_dims=(0, None), randomness="same")

    def __call__(self, points: Sequence[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor]:
        """Return the gradients, stacked like `points`, and the loss of each run."""
        leaves = [item.detach().requires_grad_() for item in points]
        with torch.enable_grad(), _OneProduct():
            losses = self._losses(dict(zip(self._names, leaves, strict=True)), batch)
        found = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
        return list(found), losses.detach()


class _LossOf(nn.Module):
    """The user's loss as a module, so that its parameters can be swapped for others."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = [loss]  # in a list: a loss that is a module must not become a part

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss of one batch."""
        return self._loss[0](self.model, batch).reshape(())


class _OneProduct(TorchFunctionMode):
    """Has narrow linear layers computed by `_Linear`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass every function on, linear layers apart."""
        if (
            func is functional.linear
            and not kwargs
            and args[1].shape[0] <= NARROW
            and not _differs(args[0])
        ):
            return _Linear.apply(*args, *([None] * (3 - len(args))))
        return func(*args, **(kwargs or {}))


def _differs(inputs: Tensor) -> bool:
    """Return whether each run has inputs of its own."""
    # There is no public question for it; a wrong answer would cost speed only.
    return bool(torch._C._functorch.is_batchedtensor(inputs))


class _Linear(torch.autograd.Function):
    """A linear layer; where runs share its input, their weights are stacked into one matrix.

    Without this, the layer of 32 runs is 32 products with a copy of the input for each: half the
    speed for 512 features and 10 classes.
    """

    generate_vmap_rule = False

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output."""
        return functional.linear(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep what the backward pass needs."""
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.biased = inputs[2] is not None

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of input, weight and bias; used where nothing is stacked."""
        inputs, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2) if gradient.ndim > 1 else gradient.unsqueeze(0)
        rows = inputs.flatten(0, -2) if inputs.ndim > 1 else inputs.unsqueeze(0)
        return gradient @ weight, flat.t() @ rows, flat.sum(0) if ctx.biased else None

    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        """Return the outputs of all runs, and the axis that counts them."""
        stacked = bias is None or in_dims[2] == 0
        if in_dims[0] is not None or in_dims[1] != 0 or not stacked:
            return vmap(functional.linear, in_dims=in_dims)(inputs, weight, bias), 0
        runs, outputs, _ = weight.shape
        flat = None if bias is None else bias.reshape(runs * outputs)
        out = functional.linear(inputs, weight.reshape(runs * outputs, -1), flat)
        return out.unflatten(-1, (runs, outputs)), out.ndim - 1
