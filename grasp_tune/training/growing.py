r"""Adam whose step is a distance that it measures itself: the base of the default schedule.

Decides how large a step is, run by run, without a range to search: the distance from the start to
where the gradients point is bounded from below by what the run has seen of them. It has no
guarantee of its own; the schedule that uses it keeps the paper's cells beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.method.errors import InputError
from grasp_tune.training.adam import clipped_moves
from grasp_tune.training.preconditioner import Coordinates, multiplier

MEMORY = math.sqrt(0.999)  # decay of what the distance is measured by
FIRST_GAIN = 1e-3  # share of the loss that the very first distance could gain, to first order


class GrowingAdam(Optimizer):
    r"""Adam with the step $\eta\, d_t$, where $d_t$ is a distance that only grows.

    For a convex loss, $\sum_t w_t \langle g_t, x_0 - x_t\rangle \le \sum_t w_t \langle g_t, x_0 -
    x^*\rangle \le \|x_0 - x^*\|_\infty \|\sum_t w_t g_t\|_1$ on average, so that the quotient of
    the first and the last sum is a lower bound on the distance (D-Adaptation, Defazio and
    Mishchenko 2023; the weights $w_t \propto \eta_t d_t^2$ are Prodigy's, Mishchenko and Defazio
    2023). $d_t$ is the largest quotient so far. It begins where a step of that size would gain a
    thousandth of the loss, so units of the loss and of the parameters do not matter.

    With $c_i = p_i^{-q}$ the multipliers of the coordinates, as in `CoordinateAdam`,
    $x_i \leftarrow x_i - \eta\, d_t\, c_i\, \mathrm{clip}(m_i/\sqrt{v_i}, -1, 1)$, and distances
    are measured in units of $c_i$. `lr` is $\eta$, a pure number near 1.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float = 1.0,
        coordinates: Coordinates | None = None,
    ) -> None:
        if not lr > 0.0:
            raise InputError(f"lr is {lr}, but must be a positive number")
        power = coordinates.power if coordinates is not None else 0.0
        typical = coordinates.typical if coordinates is not None else 1.0
        numbers = {"steps": 0, "distance": 0.0, "gained": 0.0}
        super().__init__(params, {"lr": lr, "power": power, "typical": typical, **numbers})
        if len(self.param_groups) > 1:
            raise InputError("one distance is measured over all parameters: give a single group")
        if power and coordinates is not None:
            for point, peak in zip(self.param_groups[0]["params"], coordinates.peaks, strict=True):
                self.state[point]["peak"] = peak.detach().to(point.device, point.dtype, copy=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`; its tensors are copied, never shared."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name, value in state.items():
                state[name] = value.clone()

    @property
    def distance(self) -> float:
        """The largest lower bound so far on the distance to the optimum, per coordinate."""
        return float(self.param_groups[0]["distance"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The closure's loss, None without a closure; moves the parameters by one gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        points = [point for point in group["params"] if point.grad is not None]
        if not points:
            return loss
        gradients = [point.grad for point in points]
        for point in points:
            state = self.state[point]
            if "mean" not in state:
                state["origin"] = point.detach().clone()
                for name in ("mean", "square", "drift"):
                    state[name] = torch.zeros_like(point)
        group["steps"] += 1
        scales = self._scales(points, gradients)
        self._measure(points, gradients, scales, 1.0 if loss is None else float(loss))
        self._move(points, gradients, scales)
        return loss

    def _entries(self, points: list[Tensor], name: str) -> list[Tensor]:
        return [self.state[point][name] for point in points]

    def _scales(self, points: list[Tensor], gradients: list[Tensor]) -> list[Tensor] | None:
        """Return the multipliers of all coordinates, None where they are alike."""
        group = self.param_groups[0]
        if not group["power"]:
            return None
        peaks = self._entries(points, "peak")
        for peak, gradient in zip(peaks, gradients, strict=True):
            torch.maximum(peak, gradient.abs(), out=peak)
        return [multiplier(peak, group["typical"], group["power"]) for peak in peaks]

    def _measure(
        self,
        points: list[Tensor],
        gradients: list[Tensor],
        scales: list[Tensor] | None,
        loss: float,
    ) -> None:
        """Raise the distance where the gradients so far say that it is larger.

        Sums are in units of the newest weight's $d^2$: when the distance grows they shrink, so no
        power of a tiny first distance ever has to be held.
        """
        group, drifts = self.param_groups[0], self._entries(points, "drift")
        if not group["distance"]:
            group["distance"] = _first_distance(_size(gradients, scales), loss)
        apart = torch._foreach_sub(self._entries(points, "origin"), points)
        inner = _total(torch._foreach_mul(apart, gradients))
        weight = (1.0 - MEMORY) * group["lr"]
        group["gained"] = MEMORY * group["gained"] + weight * inner
        torch._foreach_mul_(drifts, MEMORY)
        torch._foreach_add_(drifts, gradients, alpha=weight)
        size = _size(drifts, scales)
        found = group["gained"] / size if size > 0.0 else 0.0
        if math.isfinite(found) and found > group["distance"]:
            fall = (group["distance"] / found) ** 2
            group["distance"] = found
            group["gained"] *= fall
            torch._foreach_mul_(drifts, fall)

    def _move(
        self, points: list[Tensor], gradients: list[Tensor], scales: list[Tensor] | None
    ) -> None:
        group = self.param_groups[0]
        means, squares = self._entries(points, "mean"), self._entries(points, "square")
        moves = clipped_moves(means, squares, gradients, group["steps"])
        if scales is not None:
            torch._foreach_mul_(moves, scales)
        torch._foreach_add_(points, moves, alpha=-group["lr"] * group["distance"])


def _first_distance(size: float, loss: float) -> float:
    """Return the distance at which a step could gain `FIRST_GAIN` of the loss, to first order.

    0 where the gradient is zero: it says nothing about units, so the next one is asked.
    """
    if size == 0.0:
        return 0.0
    found = FIRST_GAIN * abs(loss) / size
    return found if 0.0 < found < math.inf else FIRST_GAIN


def _total(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([item.sum(dtype=torch.float64) for item in tensors]).sum())


def _size(tensors: list[Tensor], scales: list[Tensor] | None) -> float:
    """Return the sum of the absolute values, each in units of its coordinate."""
    sizes = torch._foreach_abs(tensors)
    if scales is not None:
        torch._foreach_mul_(sizes, scales)
    return _total(sizes)
