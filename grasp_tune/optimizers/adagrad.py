r"""AdaGrad with a distance: the per-coordinate base optimizer.

Decides how one gradient moves the parameters; the distance comes from the same grid that serves
UniXGrad's radius. The guarantee is AdaGrad's own, not the paper's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.coordinatewise import OwnState, check_wide
from grasp_tune.optimizers.preconditioner import Coordinates


class DiagonalAdaGrad(OwnState):
    r"""AdaGrad by coordinate: $x \leftarrow x - D s g / \sqrt{\sum g^2}$, the sum up to now.

    `distance` is $D$; a group may have its own. `scale` holds the multipliers $s$: one tensor for
    each parameter, in the order of the groups, of the parameter's shape or a single number; all
    are 1 by default. A coordinate whose gradients were all zero does not move.

    The root of the sum is kept, never the sum, and extended by `hypot`: gradients of 1e-25 and
    1e25 are as good as others in float32. It takes one stored vector of the model's size, and
    another one for `scale`.

    Raises `InputError` for a distance that is not a positive number, a scale that does not fit or
    is not positive, and for parameters that are neither float32 nor float64.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        distance: float,
        scale: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__(params, {"distance": float(distance)})
        if scale is not None:
            self._set_scale(scale)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with its own `distance` if it names one."""
        super().add_param_group(param_group)
        distance = self.param_groups[-1]["distance"]
        if not 0.0 < distance < math.inf:
            raise InputError(f"distance is {distance}, but must be a positive finite number")
        check_wide(self.param_groups[-1]["params"], "the sums of gradients")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The closure's loss, None without a closure; moves the parameters by one gradient."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for point in group["params"]:
                if point.grad is None:
                    continue
                if point.grad.layout is not torch.strided:
                    raise InputError(
                        f"a gradient has layout {point.grad.layout}, but DiagonalAdaGrad needs "
                        "dense gradients; build the layer with sparse=False"
                    )
                state = self.state[point]
                if "root" not in state:
                    # The smallest normal number instead of 0: then 0 / root is 0, and no gradient
                    # above 1e-34 can tell the difference.
                    state["root"] = torch.full_like(point, torch.finfo(point.dtype).tiny)
                root = torch.hypot(state["root"], point.grad, out=state["root"])
                move = point.grad / root  # in [-1, 1], so that distance * gradient never arises
                if "scale" in state:
                    move.mul_(state["scale"])
                # A grid may reach distances that float32 cannot hold.
                distance = min(group["distance"], torch.finfo(point.dtype).max)
                point.add_(move, alpha=-distance)
        return loss

    def _set_scale(self, scale: Sequence[Tensor]) -> None:
        points = [point for group in self.param_groups for point in group["params"]]
        if len(scale) != len(points):
            raise InputError(
                f"scale has {len(scale)} tensors, but there are {len(points)} parameters"
            )
        for index, (point, given) in enumerate(zip(points, scale, strict=True)):
            own = torch.as_tensor(given).detach().to(point.device, point.dtype, copy=True)
            if own.dim() and own.shape != point.shape:
                raise InputError(
                    f"scale[{index}] has shape {tuple(own.shape)}, but its parameter has "
                    f"{tuple(point.shape)}"
                )
            if not bool(((own > 0) & own.isfinite()).all()):
                raise InputError(
                    f"scale[{index}] must be positive and finite everywhere in {point.dtype}"
                )
            self.state[point]["scale"] = own


def scaled_adagrad(
    params: ParamsT, *, distance: float, coordinates: Coordinates | None = None
) -> DiagonalAdaGrad:
    """Return an optimizer whose multipliers come from what the probe saw of each coordinate."""
    scale = None if coordinates is None else coordinates.multipliers()
    return DiagonalAdaGrad(params, distance=distance, scale=scale)
