"""What the coordinate-wise optimizers share: their own state, and a multiplier per coordinate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.preconditioner import Coordinates, multiplier


def check_wide(parameters: Iterable[Tensor], what: str) -> None:
    """Raise InputError for parameters in which `what` would be rounded away."""
    for item in parameters:
        if item.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"a parameter has dtype {item.dtype}, but {what} need float32 or float64; "
                "keep the parameters in float32 and use torch.autocast"
            )


class OwnState(Optimizer):
    """An optimizer that never shares tensors with the state that it was loaded from."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`; its tensors are copied, never shared."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name, value in state.items():
                state[name] = value.clone()


class CoordinateWise(OwnState):
    """An optimizer whose steps may shrink with the size of each coordinate's gradients.

    `coordinates` gives the power and the sizes seen in the probe; without it the power is 0, and
    all coordinates are alike. `numbers` are what else a group remembers.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        coordinates: Coordinates | None,
        **numbers: float,
    ) -> None:
        if not lr > 0.0:
            raise InputError(f"lr is {lr}, but must be a positive number")
        power = coordinates.power if coordinates is not None else 0.0
        typical = coordinates.typical if coordinates is not None else 1.0
        super().__init__(params, {"lr": lr, "power": power, "typical": typical, **numbers})
        if power and coordinates is not None:
            points = [point for group in self.param_groups for point in group["params"]]
            for point, peak in zip(points, coordinates.peaks, strict=True):
                self.state[point]["peak"] = peak.detach().to(point.device, point.dtype, copy=True)

    def entries(self, points: list[Tensor], name: str) -> list[Tensor]:
        """Return what is remembered of these parameters under one name."""
        return [self.state[point][name] for point in points]

    def begin(self, points: list[Tensor], *names: str) -> None:
        """Let parameters that are new remember zeros under these names."""
        for point in points:
            for name in names:
                if name not in self.state[point]:
                    self.state[point][name] = torch.zeros_like(point)

    def scales(self, group: dict[str, Any], points: list[Tensor]) -> list[Tensor] | None:
        """Return the multipliers of all coordinates, None where they are alike."""
        if not group["power"]:
            return None
        peaks = self.entries(points, "peak")
        return [multiplier(peak, group["typical"], group["power"]) for peak in peaks]

    def raise_peaks(
        self, group: dict[str, Any], points: list[Tensor], gradients: list[Tensor]
    ) -> None:
        """Raise the recorded size of each coordinate whose gradient is the largest so far."""
        if group["power"]:
            for peak, gradient in zip(self.entries(points, "peak"), gradients, strict=True):
                torch.maximum(peak, gradient.abs(), out=peak)
