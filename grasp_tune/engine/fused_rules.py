"""The paper's base optimizers for many runs at once: state tensors have the runs as first axis.

Each rule is the twin of one optimizer of the registry. Its state comes from the runs' own
optimizers and goes back to them, so a run may be batched for a while and alone after it. Tests hold
the two together step by step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.optimizers.unixgrad import PIECE, move_in_ball

Stack = list[Tensor]  # one tensor a parameter, each (runs, ...)


def _column(values: Tensor, like: Tensor) -> Tensor:
    # What the type cannot hold becomes its largest number, as in the optimizers themselves.
    held = values.clamp(max=torch.finfo(like.dtype).max).to(like.device, like.dtype)
    return held.reshape(-1, *([1] * (like.ndim - 1)))


class Rule:
    """How one oracle call moves all runs; their optimizers have one parameter group.

    `points` are the runs' parameters as stacks, of which the parameters become rows.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._groups = [optimizer.param_groups[0] for optimizer in optimizers]
        columns = zip(*(group["params"] for group in self._groups), strict=True)
        self.points = [torch.stack(list(column)).detach() for column in columns]
        for row, group in enumerate(self._groups):
            for param, stack in zip(group["params"], self.points, strict=True):
                param.data = stack[row]

    def begin(self) -> None:
        """Move `points` to where the first gradient of a step is wanted."""

    def feed(self, gradients: Stack, values: Tensor) -> None:
        """Take in the gradients at `points`, and move them on by steps of these values."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Write the runs' states into their optimizers."""


class SgdRule(Rule):
    """The twin of `torch.optim.SGD`."""

    def feed(self, gradients: Stack, values: Tensor) -> None:
        for point, gradient in zip(self.points, gradients, strict=True):
            point.addcmul_(gradient, _column(values, point), value=-1.0)


class UniXGradRule(Rule):
    """The twin of `UniXGrad`: displacements in units of each run's radius."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(optimizers)
        self.steps = int(self._groups[0]["iteration"])  # the same in all runs
        self._root, self._radius = (
            torch.tensor([float(group[name]) for group in self._groups], dtype=torch.float64)
            for name in ("root", "radius")
        )
        self._ahead: Stack | None = None
        self._stacks: dict[str, Stack] = {
            "origin": [item.clone() for item in self.points],
            "lead": [torch.zeros_like(item) for item in self.points],
            "mean": [torch.zeros_like(item) for item in self.points],
        }
        for name, stack in self._stacks.items() if self.steps else ():
            for row, (owner, group) in enumerate(zip(optimizers, self._groups, strict=True)):
                for item, param in zip(stack, group["params"], strict=True):
                    item[row] = owner.state[param][name]

    def begin(self) -> None:
        lead, mean = self._stacks["lead"], self._stacks["mean"]
        self._set(torch._foreach_lerp(mean, lead, 2.0 / (self.steps + 2)))

    def _set(self, displacement: Sequence[Tensor]) -> None:
        """Move to the origin plus so many radii."""
        origins = self._stacks["origin"]
        for point, origin, item in zip(self.points, origins, displacement, strict=True):
            left = self._radius
            while bool((left > PIECE).any()):  # radii that the type cannot hold
                part = left.clamp(max=PIECE)
                item, left = item * _column(part, item), left / part
            torch.addcmul(origin, item, _column(left, item), out=point)

    def feed(self, gradients: Stack, values: Tensor) -> None:
        # The first call of a step moves to the average, the second completes it.
        weight = self.steps + 1
        reach = 2.0 * weight / self._root
        if self._ahead is None:
            self._ahead = [item.clone() for item in gradients]
            moved = self._moved(gradients, reach)
            torch._foreach_lerp_(self._stacks["mean"], moved, 2.0 / (weight + 1))
            self._set(self._stacks["mean"])
            return
        apart = torch._foreach_sub(self._ahead, gradients)
        self._root = torch.hypot(self._root, weight * run_norms(apart))
        self._stacks["lead"] = self._moved(gradients, reach)
        self._ahead, self.steps = None, weight

    def _moved(self, by: Stack, reach: Tensor) -> Stack:
        """Return Proj(lead - reach * by) onto the unit ball of each run, all parameters jointly."""
        leads = self._stacks["lead"]
        out = [a - b * _column(reach, b) for a, b in zip(leads, by, strict=True)]
        norm = run_norms(out)
        for row in torch.nonzero(~torch.isfinite(norm)).flatten().tolist():
            end, lead, ours = ([item[row] for item in stack] for stack in (out, leads, by))
            move_in_ball(end, lead, ours, float(reach[row]))
            norm[row] = 1.0
        return [item / _column(norm.clamp_min(1.0), item) for item in out]

    def give_back(self) -> None:
        for row, (owner, group) in enumerate(zip(self._optimizers, self._groups, strict=True)):
            group["iteration"], group["root"] = self.steps, float(self._root[row])
            for at, param in enumerate(group["params"]):
                owner.state[param].update({n: x[at][row] for n, x in self._stacks.items()})


def run_norms(stack: Sequence[Tensor]) -> Tensor:
    """Return each run's norm over all parameters, in double precision."""
    wide = torch.float64
    found = [
        torch.linalg.vector_norm(item.reshape(len(item), -1), dim=1, dtype=wide) for item in stack
    ]
    return torch.linalg.vector_norm(torch.stack(found), dim=0).cpu()
