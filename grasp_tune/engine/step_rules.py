"""What is done to gradients and weights around an optimizer's own step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.errors import InputError, expect
from grasp_tune.optimizers.coordinatewise import OwnState
from grasp_tune.optimizers.registry import BaseOptimizer, gradient_step

DEFAULTS = {"multiplier": 1.0, "weight_decay": 0.0}


class StepRules:
    """Multipliers and weight decay of parameter groups, and clipping, around any optimizer.

    A parameter $w$ of a group with the multiplier $m$ is seen by the optimizer as $u = w/m$, with
    the gradient $m g$. An optimizer whose steps do not depend on the size of gradients then moves
    $w$ by $m$ times its usual step, and whatever it measures is in the units of each group; plain
    gradient steps are given the root of $m$. Weight decay multiplies $w$ by 1 - step size * decay;
    an optimizer without a step size gets it as a term of the gradient.

    groups: `params`, and `multiplier` and `weight_decay` where they are given; with `weights_only`
        neither biases nor the scales of a normalization decay.
    clip: the largest norm of a step's gradient over all parameters, None for any.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], clip: float | None = None) -> None:
        expect(clip is None or clip > 0.0, "clip", repr(clip), "a number > 0")
        self._clip, self._params = clip, list[Tensor]()
        self._decayed: list[tuple[list[Tensor], float, float]] = []  # params, multiplier, decay
        self._scaled: list[tuple[list[Tensor], float]] = []
        for group in groups:
            params = list(group["params"])
            m, decay = (float(group.get(name, usual)) for name, usual in DEFAULTS.items())
            expect(0.0 < m < math.inf, "multiplier", repr(m), "a number > 0")
            expect(0.0 <= decay < math.inf, "weight_decay", repr(decay), "a number >= 0")
            self._params += params
            if m != 1.0:
                self._scaled.append((params, m))
            if group.get("weights_only"):
                params = [item for item in params if item.ndim > 1]
            if decay:
                self._decayed.append((params, m, decay))

    def step(self, optimizer: Optimizer, base: BaseOptimizer, closure: Callable[[], Any]) -> bool:
        """Hand the gradients that the parameters hold to the optimizer; True: a step is made.

        closure: gives their loss; if it is called again, further gradients and theirs.
        """
        if base.calls_per_step > 1:
            return bool(optimizer.feed())  # type: ignore[attr-defined]
        root = 0.5 if base.from_distance is gradient_step else 1.0
        for params, m in self._scaled:
            torch._foreach_div_(params, m**root)
            if found := [item.grad for item in params if item.grad is not None]:
                torch._foreach_mul_(found, m**root)
        if isinstance(optimizer, OwnState):
            optimizer.move()
        else:
            optimizer.step(closure)
        for params, m in self._scaled:
            torch._foreach_mul_(params, m**root)
        self.after(optimizer)
        return True

    def before(self, optimizer: Optimizer) -> None:
        """Change the gradients that a step is about to use."""
        for params, _, decay in self._decayed if _step_size(optimizer) is None else ():
            for item in params:
                if item.grad is not None:
                    item.grad.add_(item.detach(), alpha=decay)
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._params, self._clip)

    def after(self, optimizer: Optimizer) -> None:
        """Let the weights decay by the size of the step that was made."""
        if not self._decayed or (size := _step_size(optimizer)) is None:
            return
        with torch.no_grad():
            for params, m, decay in self._decayed:
                if found := [item for item in params if item.grad is not None]:
                    torch._foreach_mul_(found, max(0.0, 1.0 - size * m * decay))

    def check(self, base: BaseOptimizer) -> None:
        """Raise where an optimizer has no step that could be multiplied."""
        if self._scaled and (base.calls_per_step > 1 or base.group_entry != "lr"):
            text = f"{base.name} has no step size, so there is nothing for a multiplier to scale"
            raise InputError(f"groups: {text}; use method=NonConvex(), or leave it out")


def _step_size(optimizer: Optimizer) -> float | None:
    group = optimizer.param_groups[0]
    return float(group["lr"]) if "lr" in group else None
