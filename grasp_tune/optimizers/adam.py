"""Adam with a step size per coordinate: a base of the default schedule, without a guarantee."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.coordinatewise import Coordinates, OwnState, multiplier

FIRST = 0.9  # decay of the mean
RAMP = 0.8  # the mean square's decay is 1 - t ** -RAMP: short memory first, long memory later
# Far below any gradient that matters in float32, but its square does not underflow.
TINY = 1e-18


class CoordinateAdam(OwnState):
    r"""Adam whose steps may also shrink with the size of each coordinate's gradients.

    With $m$ and $v$ the running means of $g$ (decay 0.9) and $g^2$ (decay $1 - t^{-0.8}$), and $p$
    the largest $|g|$ so far in units of a typical one,
    $x \leftarrow x - \eta\, p^{-q}\, \mathrm{clip}(m / \sqrt{v}, -1, 1)$. Without the clip, a
    coordinate would jump at its first gradient after many zeros, since $v$ has forgotten it.

    params, lr: as for any torch optimizer; `lr` is $\eta$.
    coordinates: the power $q$ and the gradient sizes in the probe; None: $q$ is 0.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        coordinates: Coordinates | None = None,
    ) -> None:
        if not lr > 0.0:
            raise InputError(f"lr is {lr}, but must be a positive number")
        sizes = coordinates or Coordinates(0.0, [], 1.0)
        defaults = {"lr": lr, "power": sizes.power, "typical": sizes.typical, "steps": 0}
        super().__init__(params, defaults)
        for point, peak in zip(self.points, sizes.peaks, strict=False):
            if peak is not None:
                self.state[point]["peak"] = peak.detach().to(point.device, point.dtype, copy=True)

    def _move(self, group: dict[str, Any], points: list[Tensor]) -> None:
        group["steps"] += 1
        if not points:
            return
        gradients = [point.grad for point in points if point.grad is not None]
        mean, square = self.entries(points, "mean"), self.entries(points, "square")
        fresh = group["steps"] ** -RAMP  # 1 at first: the mean square needs no correction
        torch._foreach_lerp_(mean, gradients, 1.0 - FIRST)
        torch._foreach_mul_(square, 1.0 - fresh)
        torch._foreach_addcmul_(square, gradients, gradients, fresh)
        roots = torch._foreach_sqrt(square)
        torch._foreach_add_(roots, TINY)
        if (grown := 1.0 - FIRST ** group["steps"]) < 1.0:
            torch._foreach_mul_(roots, grown)
        pairs = zip(mean, roots, strict=True)
        moves = [torch.div(x, root, out=root) for x, root in pairs]
        torch._foreach_clamp_min_(moves, -1.0)
        torch._foreach_clamp_max_(moves, 1.0)
        for point, move, gradient in zip(points, moves, gradients, strict=True):
            if (peak := self.state[point].get("peak")) is not None:
                torch.maximum(peak, gradient.abs(), out=peak)
                move.mul_(multiplier(peak, group["typical"], group["power"]))
        torch._foreach_add_(points, moves, alpha=-group["lr"])
