r"""Weighted averages of a run's iterates: candidates that cost no oracle call."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.checkpoints import Tensors
from grasp_tune.engine.tensor_file import Meta

AverageState = tuple[Sequence[Tensor], int]  # the average, empty at first, and the iterates seen


class PolynomialAverage:
    r"""The running average in which the s-th of t iterates weighs about $(s/t)^\gamma$.

    $\bar x \leftarrow \bar x + \frac{1+\gamma}{t+\gamma}(x - \bar x)$; `gamma` 0 is the plain
    mean, a larger one forgets the beginning sooner. The average is kept in float32 or wider, since
    in half precision late iterates would be rounded away.
    """

    def __init__(self, gamma: float, state: AverageState = ((), 0)) -> None:
        if not 0.0 <= gamma < math.inf:
            raise InputError(f"gamma is {gamma}, but must be a finite number, at least 0")
        self.gamma = float(gamma)
        self.steps = state[1]  # iterates that it has seen
        self.tensors = [tensor.clone() for tensor in state[0]]  # the average itself

    @torch.no_grad()
    def update(self, tensors: Sequence[Tensor]) -> None:
        """Take in the next iterate: the same floating-point tensors in the same order each time."""
        if not self.steps:
            self.tensors = [_start(tensor) for tensor in tensors]
        if len(tensors) != len(self.tensors):
            raise InputError(f"got {len(tensors)} tensors, but the average has {len(self.tensors)}")
        self.steps += 1
        share = (1.0 + self.gamma) / (self.steps + self.gamma)
        wide = [x.to(mean.dtype) for x, mean in zip(tensors, self.tensors, strict=True)]
        torch._foreach_lerp_(self.tensors, wide, share)

    def state(self) -> AverageState:
        """A copy of all that `PolynomialAverage(gamma, state)` needs to go on."""
        return [mean.clone() for mean in self.tensors], self.steps


def _start(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise InputError(f"a tensor has dtype {tensor.dtype}, which has no average; leave it out")
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(wide, copy=True)


class Averages:
    """The running averages of one run, over its parameters and its floating-point buffers."""

    def __init__(self, model: nn.Module, gammas: Sequence[float]) -> None:
        # Not detached: whoever moves a parameter to other memory moves it here too.
        everything = {f"param.{name}": item for name, item in model.named_parameters()}
        everything |= {f"buffer.{name}": item for name, item in model.named_buffers()}  # type: ignore[misc]
        averaged = {name for name, item in everything.items() if item.is_floating_point()}
        self._live: Tensors = {n: item for n, item in everything.items() if n in averaged}
        self._rest: Tensors = {n: item for n, item in everything.items() if n not in averaged}
        self._averages = {gamma: PolynomialAverage(gamma) for gamma in gammas}

    def update(self) -> None:
        """Take in the model as it stands."""
        for average in self._averages.values():
            average.update(list(self._live.values()))

    def candidate(self, gamma: float) -> Tensors:
        """Return the average as a model's tensors; whole numbers are those of the last iterate."""
        average = self._averages[gamma]
        means = average.tensors if average.steps else self._live.values()
        pairs = zip(self._live.items(), means, strict=True)
        found = {name: mean.detach().to(live.dtype) for (name, live), mean in pairs}
        return found | {name: item.detach() for name, item in self._rest.items()}

    def save(self, tensors: Tensors, meta: Meta) -> None:
        """Add all that is needed to go on later."""
        for gamma, average in self._averages.items():
            meta[f"average.{gamma:g}"] = average.steps
            if average.steps:
                for name, mean in zip(self._live, average.tensors, strict=True):
                    tensors[f"average.{gamma:g}.{name}"] = mean

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], key: str) -> None:
        """Go on from what `save` added."""
        for gamma in self._averages:
            if f"average.{gamma:g}" not in meta:
                continue  # the run did not carry it so far: it begins here
            try:
                steps = int(meta[f"average.{gamma:g}"])
                live = self._live.items() if steps else ()
                found = [tensors[f"average.{gamma:g}.{n}"].to(x.device) for n, x in live]
                state = found, steps
            except (KeyError, ValueError, TypeError):
                raise CheckpointError(f"checkpoint {key} lacks the average {gamma:g}") from None
            self._averages[gamma] = PolynomialAverage(gamma, state)
