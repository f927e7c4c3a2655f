"""AdaGrad per coordinate, with a distance from the same grid as UniXGrad's radius."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.coordinatewise import Coordinates, OwnState, multiplier


class DiagonalAdaGrad(OwnState):
    r"""AdaGrad per coordinate: $x \leftarrow x - D s g / \sqrt{\sum g^2}$, summed over all steps.

    A coordinate whose gradients were all zero does not move. The guarantee is AdaGrad's own, not
    the paper's. Only the root of the sum is kept, and updated by `hypot`: float32 is enough for
    gradients of 1e-25 and of 1e25.

    params: parameters, or groups of them, as for any torch optimizer.
    distance: $D$; a group may have its own.
    coordinates: gradient sizes in the probe, which give the multipliers $s$; None: $s$ is 1.
    """

    wide = "the sums of gradients"

    def __init__(
        self, params: ParamsT, *, distance: float, coordinates: Coordinates | None = None
    ) -> None:
        super().__init__(params, {"distance": float(distance)})
        if coordinates is not None:
            for point, peak in zip(self.points, coordinates.peaks, strict=True):
                if peak is None:
                    continue
                scale = multiplier(peak, coordinates.typical, coordinates.power)
                self.state[point]["scale"] = scale.detach().to(point.device, point.dtype, copy=True)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        distance = self.param_groups[-1]["distance"]
        if not 0.0 < distance < math.inf:
            raise InputError(f"distance is {distance}, but must be a positive finite number")

    def _move(self, group: dict[str, Any], points: list[Tensor]) -> None:
        for point in points:
            gradient, state = self.dense_gradient(point), self.state[point]
            if "root" not in state:
                # The smallest normal number instead of 0: then 0 / root is 0, and gradients above
                # 1e-34 give the same result.
                state["root"] = torch.full_like(point, torch.finfo(point.dtype).tiny)
            root = torch.hypot(state["root"], gradient, out=state["root"])
            move = gradient / root  # in [-1, 1]; distance * gradient could overflow
            if "scale" in state:
                move.mul_(state["scale"])
            # A grid may reach distances that float32 cannot hold.
            distance = min(group["distance"], torch.finfo(point.dtype).max)
            point.add_(move, alpha=-distance)
