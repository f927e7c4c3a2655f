"""Weighted averages of a run's iterates: candidates that cost no oracle call."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.checkpoints import Tensors
from grasp_tune.engine.tensor_file import Meta


class Averages:
    r"""Running averages of a model's parameters and floating-point buffers.

    In the one with the exponent $\gamma$ the s-th of t iterates weighs about $(s/t)^\gamma$:
    $\bar x \leftarrow \bar x + \frac{1+\gamma}{t+\gamma}(x - \bar x)$. 0 is the plain mean, a
    larger one forgets the beginning sooner. They are kept in float32 or wider, since in half
    precision late iterates would be rounded away.
    """

    def __init__(self, model: nn.Module, gammas: Sequence[float]) -> None:
        if not all(0.0 <= gamma < math.inf for gamma in gammas):
            raise InputError(f"gammas are {gammas}, but must be finite numbers, at least 0")
        # Not detached: whoever moves a parameter to other memory moves it here too.
        everything: Tensors = {f"param.{name}": item for name, item in model.named_parameters()}
        everything |= {f"buffer.{name}": item for name, item in model.named_buffers()}
        self._live = {name: x for name, x in everything.items() if x.is_floating_point()}
        self._rest = {name: x for name, x in everything.items() if name not in self._live}
        self._means: dict[float, list[Tensor]] = {float(gamma): [] for gamma in gammas}
        self._steps = dict.fromkeys(self._means, 0)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model as it stands."""
        for gamma, means in self._means.items():
            self._steps[gamma] += 1
            live = self._live.values()
            now = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in live]
            if not means:
                means += [x.clone() for x in now]
            torch._foreach_lerp_(means, now, (1.0 + gamma) / (self._steps[gamma] + gamma))

    def candidate(self, gamma: float) -> Tensors:
        """Return the average as a model's tensors; whole numbers are those of the last iterate."""
        means = self._means[gamma] or self._live.values()
        pairs = zip(self._live.items(), means, strict=True)
        found = {name: mean.detach().to(live.dtype) for (name, live), mean in pairs}
        return found | {name: item.detach() for name, item in self._rest.items()}

    def save(self, tensors: Tensors, meta: Meta) -> None:
        """Add all that is needed to go on later."""
        for gamma, means in self._means.items():
            meta[f"average.{gamma:g}"] = self._steps[gamma]
            pairs = zip(self._live, means, strict=False)
            tensors |= {f"average.{gamma:g}.{name}": mean for name, mean in pairs}

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], key: str) -> None:
        """Go on from what `save` added; the tensors are then its own."""
        for gamma in self._means:
            if (name := f"average.{gamma:g}") not in meta:
                continue  # the run did not carry it so far: it begins here
            self._steps[gamma] = int(meta[name])
            live = self._live.items() if self._steps[gamma] else ()
            try:
                self._means[gamma] = [tensors[f"{name}.{n}"].to(x.device) for n, x in live]
            except KeyError:
                raise CheckpointError(f"checkpoint {key} lacks the average {gamma:g}") from None
