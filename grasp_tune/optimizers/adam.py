r"""Adam with a step per coordinate: the base optimizer of the default schedule.

Decides how one gradient moves the parameters. It has no guarantee of its own; the schedule that
uses it keeps the paper's cells beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from grasp_tune.optimizers.coordinatewise import CoordinateWise
from grasp_tune.optimizers.preconditioner import Coordinates

FIRST = 0.9  # decay of the mean
RAMP = 0.8  # the mean square's decay is 1 - t ** -RAMP: short memory first, long memory later
# Far below any gradient that matters in float32, far above what its square can still hold.
TINY = 1e-18


def fresh_share(count: int) -> float:
    """Return the weight of the newest squared gradient, the `count`-th of a run.

    The first one has weight 1, so the mean square needs no correction for its start.
    """
    return count**-RAMP


def take_in(mean: Tensor, square: Tensor, gradient: Tensor, count: int) -> None:
    """Let both running means go on with the `count`-th gradient."""
    fresh = fresh_share(count)
    mean.lerp_(gradient, 1.0 - FIRST)
    square.mul_(1.0 - fresh).addcmul_(gradient, gradient, value=fresh)


def clipped_move(mean: Tensor, square: Tensor, count: int, out: Tensor | None = None) -> Tensor:
    """Return the `count`-th move, from -1 to 1 per coordinate; in `out`, where that is given."""
    first = 1.0 - FIRST**count
    move = torch.sqrt(square, out=out).add_(TINY)
    torch.div(mean, move, out=move)
    if first < 1.0:
        move.mul_(1.0 / first)
    return move.clamp_(-1.0, 1.0)


class AdamMoves(CoordinateWise):
    """What the optimizers whose moves are Adam's share: one tensor at a time, to save memory."""

    _room: Tensor | None = None

    def room(self, like: Tensor) -> Tensor:
        """Return room for a tensor of this shape, in the place of the one returned before."""
        room = self._room
        if room is None or (room.device, room.dtype) != (like.device, like.dtype):
            most = max(item.numel() for group in self.param_groups for item in group["params"])
            room = self._room = torch.empty(most, dtype=like.dtype, device=like.device)
        return room[: like.numel()].view(like.shape)

    def clipped(self, point: Tensor, count: int) -> Tensor:
        """Return the `count`-th move of a parameter, from -1 to 1 per coordinate, in `room`."""
        state = self.state[point]
        return clipped_move(state["mean"], state["square"], count, self.room(point))

    def move(
        self, points: list[Tensor], scales: list[Tensor] | None, count: int, size: float
    ) -> None:
        """Take in the gradients and make the `count`-th move, `size` times its direction."""
        for at, point in enumerate(points):
            state, gradient = self.state[point], point.grad
            assert gradient is not None
            take_in(state["mean"], state["square"], gradient, count)
            moved = self.clipped(point, count)
            if scales is not None:
                moved.mul_(scales[at])
            point.add_(moved, alpha=-size)


class CoordinateAdam(AdamMoves):
    r"""Adam whose steps may also shrink with the size of each coordinate's gradients.

    With $m$ and $v$ the running means of $g$ (decay 0.9) and $g^2$ (decay $1 - t^{-0.8}$), and $p$
    the largest $|g|$ so far in units of a typical one,
    $x \leftarrow x - \eta\, p^{-q}\, \mathrm{clip}(m / \sqrt{v}, -1, 1)$. The clip is for
    coordinates that are silent for long: $v$ forgets them, and they would jump when they speak.
    `coordinates` gives the power $q$ and the sizes seen in the probe; without it $q$ is 0.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        coordinates: Coordinates | None = None,
    ) -> None:
        super().__init__(params, lr, coordinates, steps=0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The closure's loss, None without a closure; moves the parameters by one gradient."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            group["steps"] += 1
            points = [point for point in group["params"] if point.grad is not None]
            if not points:
                continue
            gradients = [point.grad for point in points]
            self.begin(points, "mean", "square")
            self.raise_peaks(group, points, gradients)
            scales = self.scales(group, points)
            self.move(points, scales, group["steps"], group["lr"])
        return loss
