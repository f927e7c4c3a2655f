"""Runs of a small model as one task: a trial or a message for each would cost more than they do.

Whether they are is a rule of the model's shape, so that every process, and a resumed run, decides
alike. The runs of a task follow each other, and give the same bits as tasks of their own. One
batched computation (`torch.func.vmap`) was tried: it gains nothing for the eight runs or fewer of
the default schedule, and half the time for the 32 or more cells of the paper's.
"""

from typing import Literal

from torch import nn

from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method
from grasp_tune.engine.problem import TorchProblem

WIDTH = 8  # runs of one task; more would leave other workers without any
LARGEST = 40_000  # parameters: some 100 us an oracle call of one CPU core
_LAYERS = (nn.Linear, nn.Flatten, nn.Identity, nn.Dropout, nn.LayerNorm, nn.LogSoftmax)
_CURVES = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Softplus)


def fusion_width(
    problem: TorchProblem, method: Method | None, fused: bool | Literal["auto"], seed: int
) -> int:
    """Return how many runs make one task, 0 for one each."""
    if fused not in (True, False, "auto"):
        raise InputError(f"fused: got {fused!r}, expected True, False or 'auto'")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed: got {seed!r}, expected a whole number")
    if fused == "auto":
        own = callable(getattr(method, "base", None))
        fused = not own and pays(problem.build(seed))
    return WIDTH if fused else 0


def pays(model: nn.Module) -> bool:
    """Return whether a run of this model is so short that several should be one task.

    A rule of the shape: dense layers, no buffers, few parameters.
    """
    leaves = [item for item in model.modules() if not list(item.children())]
    size = sum(item.numel() for item in model.parameters())
    plain = all(item.device.type == "cpu" and item.requires_grad for item in model.parameters())
    known = all(isinstance(item, _LAYERS + _CURVES) for item in leaves)
    return known and plain and size <= LARGEST and not list(model.buffers())
