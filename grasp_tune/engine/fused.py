"""Runs of a small model as one task, on one thread: rules of the model's shape, alike everywhere.

A trial or a message for each short run would cost more than the run. The runs of a task follow each
other, with the same bits as tasks of their own; one batched computation (`torch.func.vmap`) gains
nothing for eight runs or fewer. Sums that are cut among threads differ in their last bits, so the
number of threads is a part of what fixes a result, like the seed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

LARGEST = 40_000  # parameters: some 100 us an oracle call of one CPU core
_LAYERS = (nn.Linear, nn.Flatten, nn.Identity, nn.Dropout, nn.LayerNorm, nn.LogSoftmax)
_CURVES = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Softplus)
_ONE_THREAD = 100_000  # parameters of dense layers to which a second thread brings little
_HEAVY = (_ConvNd, nn.RNNBase, nn.MultiheadAttention)  # use each parameter many times a row


def pays(model: nn.Module) -> bool:
    """Return whether a run is so short that several should be one task: few dense layers."""
    leaves = [item for item in model.modules() if not list(item.children())]
    plain = all(item.device.type == "cpu" and item.requires_grad for item in model.parameters())
    known = all(isinstance(item, _LAYERS + _CURVES) for item in leaves)
    small = sum(item.numel() for item in model.parameters()) <= LARGEST
    return known and plain and small and not list(model.buffers())


@contextmanager
def task_threads(model: nn.Module) -> Iterator[None]:
    """Run the block with one thread where the model is light, and with the user's number else."""
    before, heavy = torch.get_num_threads(), any(isinstance(x, _HEAVY) for x in model.modules())
    if not heavy and sum(item.numel() for item in model.parameters()) <= _ONE_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
