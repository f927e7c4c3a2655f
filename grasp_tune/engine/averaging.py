r"""A weighted average of a run's iterates: a candidate that costs no oracle call."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grasp_tune.core.errors import InputError


@dataclass(frozen=True, slots=True)
class AverageState:
    """What an average must keep to go on later."""

    tensors: tuple[Tensor, ...]  # the average, empty before the first update
    steps: int  # iterates seen


class PolynomialAverage:
    r"""The running average in which the s-th of t iterates weighs about $(s/t)^\gamma$.

    $\bar x \leftarrow \bar x + \frac{1+\gamma}{t+\gamma}(x - \bar x)$; `gamma` 0 is the plain
    mean, a larger one forgets the beginning sooner. The average is kept in float32 or wider, since
    in half precision late iterates would be rounded away.
    """

    def __init__(self, gamma: float, state: AverageState | None = None) -> None:
        if not 0.0 <= gamma < math.inf:
            raise InputError(f"gamma is {gamma}, but must be a finite number, at least 0")
        self.gamma = float(gamma)
        self._steps = 0 if state is None else state.steps
        self._mean = [] if state is None else [tensor.clone() for tensor in state.tensors]

    @property
    def steps(self) -> int:
        """How many iterates the average has seen."""
        return self._steps

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The average itself, not a copy: the next update changes it."""
        return tuple(self._mean)

    @torch.no_grad()
    def update(self, tensors: Sequence[Tensor]) -> None:
        """Take in the next iterate: the same floating-point tensors in the same order each time."""
        if not self._steps:
            self._mean = [_start(tensor) for tensor in tensors]
        if len(tensors) != len(self._mean):
            raise InputError(f"got {len(tensors)} tensors, but the average has {len(self._mean)}")
        self._steps += 1
        share = (1.0 + self.gamma) / (self._steps + self.gamma)
        wide = [x.to(mean.dtype) for x, mean in zip(tensors, self._mean, strict=True)]
        torch._foreach_lerp_(self._mean, wide, share)

    def state(self) -> AverageState:
        """A copy of all that `PolynomialAverage(gamma, state)` needs to go on."""
        return AverageState(tuple(mean.clone() for mean in self._mean), self._steps)


def _start(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise InputError(f"a tensor has dtype {tensor.dtype}, which has no average; leave it out")
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(wide, copy=True)
