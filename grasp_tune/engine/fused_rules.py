"""The base optimizers for many runs at once: each state tensor has the runs as its first axis.

Each rule is the twin of one optimizer of the registry, and its state goes in and out through that
optimizer, so a run may be batched in one stretch and alone in the next. Tests hold the two
together step by step.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.optimizers.adam import FIRST, TINY, fresh_share
from grasp_tune.optimizers.preconditioner import multiplier
from grasp_tune.optimizers.registry import BaseOptimizer
from grasp_tune.optimizers.unixgrad import PIECE, move_in_ball

Stack = list[Tensor]  # one tensor a parameter, each (runs, ...)


class Rule(Protocol):
    """How one oracle call moves all runs."""

    calls_per_step: int

    def begin(self, points: Stack) -> None:
        """Move `points` to where the first gradient of a step is wanted."""

    def feed(self, points: Stack, gradients: Stack, share: Tensor) -> bool:
        """Take in the gradients at `points`, move them on; returns whether a step is complete."""

    def select(self, rows: Tensor) -> None:
        """Keep these runs only."""

    def export(self, row: int, optimizer: Optimizer) -> None:
        """Write one run's state into a fresh optimizer of its kind."""


def rule_for(base: BaseOptimizer, values: Tensor, optimizers: Sequence[Optimizer]) -> Rule | None:
    """Return the rule for `base` at the optimizers' states, None where there is none.

    Counters are shared by all runs, so runs that have made different numbers of steps have none.
    """
    make = base.batched_rule()
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    counts = {(group.get("steps"), group.get("iteration")) for group in groups}
    return None if make is None or len(counts) > 1 else make(values, optimizers)


def _column(values: Tensor, like: Tensor) -> Tensor:
    # What the type cannot hold becomes its largest number, as in the optimizers themselves.
    held = values.clamp(max=torch.finfo(like.dtype).max).to(like.device, like.dtype)
    return held.reshape(-1, *([1] * (like.ndim - 1)))


def _gather(optimizers: Sequence[Optimizer], name: str) -> Stack | None:
    """Return one state entry of all optimizers, stacked by parameter; None before it exists."""
    params = [[p for g in o.param_groups for p in g["params"]] for o in optimizers]
    if name not in optimizers[0].state.get(params[0][0], {}):
        return None
    entries = [[o.state[p][name] for p in own] for o, own in zip(optimizers, params, strict=True)]
    return [torch.stack(list(column)) for column in zip(*entries, strict=True)]


def _filled(optimizers: Sequence[Optimizer], name: str, fill: float) -> Stack:
    """Return one state entry of all optimizers, stacked; `fill` for those that lack it."""
    rows = []
    for optimizer in optimizers:
        points = [point for group in optimizer.param_groups for point in group["params"]]
        states = [(point, optimizer.state.get(point, {})) for point in points]
        rows.append([state.get(name, torch.full_like(point, fill)) for point, state in states])
    return [torch.stack(list(column)).detach() for column in zip(*rows, strict=True)]


def _give(optimizer: Optimizer, entries: Mapping[str, Stack], row: int) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for name, stack in entries.items():
        for param, item in zip(params, stack, strict=True):
            optimizer.state[param][name] = item[row].clone()


class _Entries:
    """State entries by name: what most rules have to keep."""

    calls_per_step = 1

    def __init__(self, values: Tensor, optimizers: Sequence[Optimizer], *names: str) -> None:
        self._values = values
        found = {name: _gather(optimizers, name) for name in names}
        self._entries: dict[str, Stack] = {n: s for n, s in found.items() if s is not None}

    def begin(self, points: Stack) -> None:
        """Gradients are wanted where the points are."""

    def select(self, rows: Tensor) -> None:
        """Keep these runs only."""
        self._values = self._values[rows]
        self._entries = {n: [item[rows] for item in s] for n, s in self._entries.items()}

    def export(self, row: int, optimizer: Optimizer) -> None:
        """Write one run's state into a fresh optimizer of its kind."""
        _give(optimizer, self._entries, row)

    def _entry(self, name: str, points: Stack, fill: float = 0.0) -> Stack:
        if name not in self._entries:
            self._entries[name] = [torch.full_like(item, fill) for item in points]
        return self._entries[name]


class SgdRule(_Entries):
    """The twin of `torch.optim.SGD`, with or without Nesterov momentum 0.9."""

    _momentum = 0.0

    def __init__(self, values: Tensor, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(values, optimizers, *(["momentum_buffer"] if self._momentum else []))

    def feed(self, points: Stack, gradients: Stack, share: Tensor) -> bool:
        """One step."""
        if self._momentum:
            buffers = self._entry("momentum_buffer", points)
            torch._foreach_mul_(buffers, self._momentum)
            torch._foreach_add_(buffers, gradients)
            gradients = list(torch._foreach_add(gradients, buffers, alpha=self._momentum))
        for point, gradient in zip(points, gradients, strict=True):
            point.addcmul_(gradient, _column(self._values * share, point), value=-1.0)
        return True


class MomentumRule(SgdRule):
    _momentum = 0.9


class AdamRule(_Entries):
    """The twin of `CoordinateAdam`; the power may differ from run to run."""

    def __init__(self, values: Tensor, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(values, optimizers, "mean", "square")
        groups = [optimizer.param_groups[0] for optimizer in optimizers]
        self._steps = int(groups[0]["steps"])
        wide = torch.float64
        self._power = torch.tensor([float(group["power"]) for group in groups], dtype=wide)
        self._typical = torch.tensor([float(group["typical"]) for group in groups], dtype=wide)
        if bool(self._power.any()):
            self._entries["peak"] = _filled(optimizers, "peak", 0.0)

    def feed(self, points: Stack, gradients: Stack, share: Tensor) -> bool:
        """One step."""
        means, squares = self._entry("mean", points), self._entry("square", points)
        self._steps += 1
        first, fresh = 1.0 - FIRST**self._steps, fresh_share(self._steps)
        torch._foreach_lerp_(means, gradients, 1.0 - FIRST)
        torch._foreach_mul_(squares, 1.0 - fresh)
        torch._foreach_addcmul_(squares, gradients, gradients, fresh)
        peaks = self._entries.get("peak")
        for at, point in enumerate(points):
            move = means[at] / squares[at].sqrt().add_(TINY)
            move.mul_(1.0 / first).clamp_(-1.0, 1.0)
            if peaks is not None:
                torch.maximum(peaks[at], gradients[at].abs(), out=peaks[at])
                typical, power = _column(self._typical, point), _column(self._power, point)
                move.mul_(multiplier(peaks[at], typical, power))
            point.sub_(move.mul_(_column(self._values * share, point)))
        return True

    def select(self, rows: Tensor) -> None:
        """Keep these runs only."""
        super().select(rows)
        self._power, self._typical = self._power[rows], self._typical[rows]

    def export(self, row: int, optimizer: Optimizer) -> None:
        """Write one run's state into a fresh optimizer of its kind."""
        entries = dict(self._entries)
        if not float(self._power[row]):
            entries.pop("peak", None)
        _give(optimizer, entries, row)
        for group in optimizer.param_groups:
            group["steps"] = self._steps


class AdaGradRule(_Entries):
    """The twin of `DiagonalAdaGrad`."""

    def __init__(self, values: Tensor, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(values, optimizers, "root")
        if any("scale" in state for o in optimizers for state in o.state.values()):
            self._entries["scale"] = _filled(optimizers, "scale", 1.0)

    def feed(self, points: Stack, gradients: Stack, share: Tensor) -> bool:
        """One step."""
        tiny = torch.finfo(points[0].dtype).tiny
        roots, scales = self._entry("root", points, tiny), self._entries.get("scale")
        for at, (point, gradient) in enumerate(zip(points, gradients, strict=True)):
            move = gradient / torch.hypot(roots[at], gradient, out=roots[at])
            if scales is not None:
                move.mul_(scales[at])
            point.sub_(move.mul_(_column(self._values * share, point)))
        return True


class UniXGradRule(_Entries):
    """The twin of `UniXGrad`: displacements in units of each run's radius."""

    calls_per_step = 2

    def __init__(self, values: Tensor, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(values, optimizers, "origin", "lead", "mean")
        groups = [optimizer.param_groups[0] for optimizer in optimizers]
        self._iteration = int(groups[0]["iteration"])
        self._root = torch.tensor([float(g["root"]) for g in groups], dtype=torch.float64)
        self._ahead: Stack | None = None

    def begin(self, points: Stack) -> None:
        """Move to the look-ahead points."""
        if "origin" not in self._entries:
            self._entries["origin"] = [item.clone() for item in points]
        self._entry("lead", points)
        self._entry("mean", points)
        share = 2.0 / (self._iteration + 2)
        mixed = torch._foreach_lerp(self._entries["mean"], self._entries["lead"], share)
        self._set(points, list(mixed))

    def _set(self, points: Stack, displacement: Stack) -> None:
        for point, origin, item in zip(points, self._entries["origin"], displacement, strict=True):
            left = self._values
            while bool((left > PIECE).any()):  # radii that the type cannot hold
                part = left.clamp(max=PIECE)
                item, left = item * _column(part, item), left / part
            torch.addcmul(origin, item, _column(left, item), out=point)

    def feed(self, points: Stack, gradients: Stack, share: Tensor) -> bool:
        """The first call of a step moves to the average, the second completes it."""
        weight = self._iteration + 1
        reach = 2.0 * weight / self._root
        if self._ahead is None:
            self._ahead = [item.clone() for item in gradients]
            moved = self._moved(gradients, reach)
            torch._foreach_lerp_(self._entries["mean"], moved, 2.0 / (weight + 1))
            self._set(points, self._entries["mean"])
            return False
        apart = torch._foreach_sub(self._ahead, gradients)
        self._root = torch.hypot(self._root, weight * run_norms(apart))
        self._entries["lead"] = self._moved(gradients, reach)
        self._ahead = None
        self._iteration = weight
        return True

    def _moved(self, by: Stack, reach: Tensor) -> Stack:
        """Return Proj(lead - reach * by) onto the unit ball of each run, all parameters jointly."""
        pairs = zip(self._entries["lead"], by, strict=True)
        out = [lead - item * _column(reach, item) for lead, item in pairs]
        norm = run_norms(out)
        for row in torch.nonzero(~torch.isfinite(norm)).flatten().tolist():
            ends = [item[row] for item in out]
            lead = [item[row] for item in self._entries["lead"]]
            move_in_ball(ends, lead, [item[row] for item in by], float(reach[row]))
            norm[row] = 1.0
        return [item / _column(norm.clamp_min(1.0), item) for item in out]

    def select(self, rows: Tensor) -> None:
        """Keep these runs only."""
        super().select(rows)
        self._root = self._root[rows]
        self._ahead = None if self._ahead is None else [item[rows] for item in self._ahead]

    def export(self, row: int, optimizer: Optimizer) -> None:
        """Write one run's state into a fresh optimizer of its kind."""
        super().export(row, optimizer)
        for group in optimizer.param_groups:
            group["iteration"], group["root"] = self._iteration, float(self._root[row])


def run_norms(stack: Sequence[Tensor]) -> Tensor:
    """Return each run's norm over all parameters, in double precision."""
    wide = torch.float64
    found = [
        torch.linalg.vector_norm(item.reshape(len(item), -1), dim=1, dtype=wide) for item in stack
    ]
    return torch.linalg.vector_norm(torch.stack(found), dim=0).cpu()
