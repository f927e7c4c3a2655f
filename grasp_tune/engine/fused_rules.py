"""The base optimizers for many runs at once: each state tensor has the runs as its first axis.

Each rule is the twin of one optimizer of the registry. Its state comes from the runs' own
optimizers and goes back to them, so a run may be batched for a while and alone after it. Tests hold
the two together step by step.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.optimizers.adam import clipped_move, take_in
from grasp_tune.optimizers.preconditioner import multiplier
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

    calls_per_step: ClassVar[int] = 1
    entries: ClassVar[tuple[str, ...]] = ()  # what is remembered of each coordinate, 0 at first
    counter: ClassVar[str | None] = None  # the group's count of steps, the same in all runs

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._groups = [optimizer.param_groups[0] for optimizer in optimizers]
        columns = zip(*(group["params"] for group in self._groups), strict=True)
        self.points = [torch.stack(list(column)).detach() for column in columns]
        for row, group in enumerate(self._groups):
            for param, stack in zip(group["params"], self.points, strict=True):
                param.data = stack[row]
        self.steps = int(self._groups[0][self.counter]) if self.counter else 0
        self.stacks = {name: self._stacked(name) for name in self.entries}

    def begin(self) -> None:
        """Move `points` to where the first gradient of a step is wanted."""

    def feed(self, gradients: Stack, values: Tensor) -> None:
        """Take in the gradients at `points`, and move them on by steps of these values."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Write the runs' states into their optimizers."""
        for row, group in enumerate(self._groups):
            if self.counter:
                group[self.counter] = self.steps
            for at, param in enumerate(group["params"]):
                state = self._optimizers[row].state[param]
                state.update({name: stack[at][row] for name, stack in self.stacks.items()})

    def _stacked(self, name: str, fill: float = 0.0) -> Stack:
        """Return one state entry of all runs; `fill` for those that lack it."""
        rows = [
            [owner.state[p].get(name, torch.full_like(p, fill)) for p in group["params"]]
            for owner, group in zip(self._optimizers, self._groups, strict=True)
        ]
        return [torch.stack(list(column)).detach() for column in zip(*rows, strict=True)]

    def _numbers(self, name: str) -> Tensor:
        return torch.tensor([float(group[name]) for group in self._groups], dtype=torch.float64)


class SgdRule(Rule):
    """The twin of `torch.optim.SGD`."""

    def feed(self, gradients: Stack, values: Tensor) -> None:
        for point, gradient in zip(self.points, gradients, strict=True):
            point.addcmul_(gradient, _column(values, point), value=-1.0)


class MomentumRule(SgdRule):
    """The twin of `torch.optim.SGD` with Nesterov momentum 0.9."""

    entries = ("momentum_buffer",)

    def feed(self, gradients: Stack, values: Tensor) -> None:
        buffers = self.stacks["momentum_buffer"]
        torch._foreach_mul_(buffers, 0.9)
        torch._foreach_add_(buffers, gradients)
        super().feed(list(torch._foreach_add(gradients, buffers, alpha=0.9)), values)


class AdamRule(Rule):
    """The twin of `CoordinateAdam`; the power may differ from run to run."""

    entries = ("mean", "square")
    counter = "steps"

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(optimizers)
        self._power, self._typical = self._numbers("power"), self._numbers("typical")
        if bool(self._power.any()):
            self.stacks["peak"] = self._stacked("peak")

    def feed(self, gradients: Stack, values: Tensor) -> None:
        self.steps += 1
        peaks = self.stacks.get("peak")
        means, squares = self.stacks["mean"], self.stacks["square"]
        for at, point in enumerate(self.points):
            take_in(means[at], squares[at], gradients[at], self.steps)
            move = clipped_move(means[at], squares[at], self.steps)
            if peaks is not None:
                torch.maximum(peaks[at], gradients[at].abs(), out=peaks[at])
                typical, power = _column(self._typical, point), _column(self._power, point)
                move.mul_(multiplier(peaks[at], typical, power))
            point.sub_(move.mul_(_column(values, point)))


class AdaGradRule(Rule):
    """The twin of `DiagonalAdaGrad`."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(optimizers)
        self.stacks["root"] = self._stacked("root", torch.finfo(self.points[0].dtype).tiny)
        if any("scale" in state for owner in optimizers for state in owner.state.values()):
            self.stacks["scale"] = self._stacked("scale", 1.0)

    def feed(self, gradients: Stack, values: Tensor) -> None:
        roots, scales = self.stacks["root"], self.stacks.get("scale")
        for at, (point, gradient) in enumerate(zip(self.points, gradients, strict=True)):
            move = gradient / torch.hypot(roots[at], gradient, out=roots[at])
            if scales is not None:
                move.mul_(scales[at])
            point.sub_(move.mul_(_column(values, point)))


class UniXGradRule(Rule):
    """The twin of `UniXGrad`: displacements in units of each run's radius."""

    calls_per_step = 2
    entries = ("lead", "mean")
    counter = "iteration"

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(optimizers)
        self._root, self._radius = self._numbers("root"), self._numbers("radius")
        self._ahead: Stack | None = None
        begun = [item.clone() for item in self.points]
        self.stacks["origin"] = self._stacked("origin") if self.steps else begun

    def begin(self) -> None:
        lead, mean = self.stacks["lead"], self.stacks["mean"]
        self._set(torch._foreach_lerp(mean, lead, 2.0 / (self.steps + 2)))

    def _set(self, displacement: Sequence[Tensor]) -> None:
        """Move to the origin plus so many radii."""
        origins = self.stacks["origin"]
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
            torch._foreach_lerp_(self.stacks["mean"], moved, 2.0 / (weight + 1))
            self._set(self.stacks["mean"])
            return
        apart = torch._foreach_sub(self._ahead, gradients)
        self._root = torch.hypot(self._root, weight * run_norms(apart))
        self.stacks["lead"] = self._moved(gradients, reach)
        self._ahead, self.steps = None, weight

    def _moved(self, by: Stack, reach: Tensor) -> Stack:
        """Return Proj(lead - reach * by) onto the unit ball of each run, all parameters jointly."""
        leads = self.stacks["lead"]
        out = [a - b * _column(reach, b) for a, b in zip(leads, by, strict=True)]
        norm = run_norms(out)
        for row in torch.nonzero(~torch.isfinite(norm)).flatten().tolist():
            end, lead, ours = ([item[row] for item in stack] for stack in (out, leads, by))
            move_in_ball(end, lead, ours, float(reach[row]))
            norm[row] = 1.0
        return [item / _column(norm.clamp_min(1.0), item) for item in out]

    def give_back(self) -> None:
        super().give_back()
        for group, root in zip(self._groups, self._root.tolist(), strict=True):
            group["root"] = root


def run_norms(stack: Sequence[Tensor]) -> Tensor:
    """Return each run's norm over all parameters, in double precision."""
    wide = torch.float64
    found = [
        torch.linalg.vector_norm(item.reshape(len(item), -1), dim=1, dtype=wide) for item in stack
    ]
    return torch.linalg.vector_norm(torch.stack(found), dim=0).cpu()
