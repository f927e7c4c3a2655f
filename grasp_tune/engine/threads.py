"""How many threads torch may use for a task: a part of what fixes a result, like the seed.

Sums that are cut among threads differ in their last bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

LARGEST = 100_000  # parameters of a model of dense layers to which a second thread brings little
_HEAVY = (_ConvNd, nn.RNNBase, nn.MultiheadAttention)  # use each parameter many times a row


@contextmanager
def task_threads(model: nn.Module) -> Iterator[None]:
    """Run the block with one thread where the model is light, and with the user's number else.

    A light model then gives the same bits with any number of workers, on any machine of a kind.
    """
    before, size = torch.get_num_threads(), sum(item.numel() for item in model.parameters())
    if size <= LARGEST and not any(isinstance(item, _HEAVY) for item in model.modules()):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
