"""What parameter groups ask for: steps of their own size, and weights that decay."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.registry import BaseOptimizer, gradient_step

DEFAULTS = {"multiplier": 1.0, "weight_decay": 0.0}


class GroupRules:
    """The multipliers and the weight decay of parameter groups, around the steps of any optimizer.

    A parameter $w$ of a group with the multiplier $m$ is seen by the optimizer as $u = w/m$, with
    the gradient $m g$. An optimizer whose steps do not depend on the size of gradients then moves
    $w$ by $m$ times its usual step, and whatever it measures is in the units of each group; plain
    gradient steps are given the root of $m$.

    groups: those of the user, with `multiplier` and `weight_decay` where they are given.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]]) -> None:
        self._groups = [(list(group["params"]), *_numbers(group)) for group in groups]
        self._plain = all(m == 1.0 and decay == 0.0 for _, m, decay in self._groups)

    def step(self, optimizer: Optimizer, base: BaseOptimizer, loss: Tensor) -> None:
        """Let the optimizer make a step with the gradients that the parameters hold."""
        if self._plain:
            optimizer.step(lambda: loss)  # type: ignore[arg-type,return-value]
            return
        self.check(base)
        root = 0.5 if base.from_distance is gradient_step else 1.0
        scaled = [(params, m**root) for params, m, _ in self._groups if m != 1.0]
        for params, unit in scaled:
            torch._foreach_div_(params, unit)
            if found := [item.grad for item in params if item.grad is not None]:
                torch._foreach_mul_(found, unit)
        optimizer.step(lambda: loss)  # type: ignore[arg-type,return-value]
        for params, unit in scaled:
            torch._foreach_mul_(params, unit)
        own = optimizer.param_groups[0]
        if not own.get("seeking"):  # a distance that is only tried is no step size
            size = own["lr"] * own.get("distance", 1.0)
            for params, m, decay in self._groups:
                if decay:
                    torch._foreach_mul_(params, max(0.0, 1.0 - size * m * decay))

    def check(self, base: BaseOptimizer) -> None:
        """Raise where an optimizer has no step that could be multiplied."""
        if not self._plain and (base.calls_per_step > 1 or base.group_entry != "lr"):
            raise InputError(
                f"groups: {base.name} has no step size, so there is nothing for multiplier and "
                "weight_decay to scale; use method=NonConvex(), or leave them out"
            )


def _numbers(group: Mapping[str, Any]) -> tuple[float, float]:
    """Return a group's multiplier and weight decay."""
    multiplier, decay = (group.get(name, usual) for name, usual in DEFAULTS.items())
    if not 0.0 < multiplier < math.inf:
        raise InputError(f"multiplier: got {multiplier!r}, expected a number > 0")
    if not 0.0 <= decay < math.inf:
        raise InputError(f"weight_decay: got {decay!r}, expected a number >= 0")
    return float(multiplier), float(decay)
