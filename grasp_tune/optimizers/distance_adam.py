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

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.adam import FIRST, AdamMoves
from grasp_tune.optimizers.preconditioner import Coordinates

MEMORY = math.sqrt(0.999)  # decay of what the distance is measured by
LEAST_UNIT = 1 / 16  # of the sum of gradients: half precision holds no much larger multiples
FIRST_GAIN = 1e-2  # share of the loss that the very first distance could gain, to first order
EDGE = 1.5  # the search for a first distance ends at two of so many times the lowest loss so far
PROMISE = 0.2  # share of the loss that gradients promise unless they are mostly noise
RETREAT = 4.0  # the first distance is that of the lowest loss, divided by this
NOISY_RETREAT = 2.0  # that of the largest promise, where gradients are mostly noise, by this


class DistanceAdam(AdamMoves):
    r"""Adam with the step $\eta\, d_t$, where $d_t$ is a distance that only grows.

    For a convex loss, $\sum_t w_t \langle g_t, x_0 - x_t\rangle \le \sum_t w_t \langle g_t, x_0 -
    x^*\rangle \le \|x_0 - x^*\|_\infty \|\sum_t w_t g_t\|_1$ on average, so that the quotient of
    the first and the last sum is a lower bound on the distance (D-Adaptation, Defazio and
    Mishchenko 2023; the weights $w_t \propto \eta_t d_t^2$ are Prodigy's, Mishchenko and Defazio
    2023). $d_t$ is the largest quotient so far.

    Where gradients are mostly noise that bound is slow to leave a tiny first distance. So the run
    begins with a few steps that double from a tiny one until the loss has risen, takes a part of
    the one with the lowest loss as its first distance, and goes back to where it began. Single
    losses tell little where gradients tell little: there it takes a part of the one that promised
    the largest decrease, to first order. Units of the loss and of the parameters do not matter.

    With $c_i = p_i^{-q}$ the multipliers of the coordinates, as in `CoordinateAdam`,
    $x_i \leftarrow x_i - \eta\, d_t\, c_i\, \mathrm{clip}(m_i/\sqrt{v_i}, -1, 1)$, and distances
    are measured in units of $c_i$. `lr` is $\eta$, a pure number near 1.

    `reach` multiplies the distance, for runs side by side around the same first one. One above 1
    is only raised by a bound that is larger than what it reaches already; with 0 the run stays at
    its first point once it has a first distance.

    The search for a first distance ends after `doublings` steps at the latest where the gradients
    promise a part of the loss by then: a minibatch that a huge step happens to fit says nothing.
    Where they promise less, they are mostly noise, and it goes on for `more` steps.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float = 1.0,
        doublings: float = 10,
        more: float = 6,
        reach: float = 1.0,
        coordinates: Coordinates | None = None,
    ) -> None:
        self._doublings, self._more, self._reach = doublings, more, reach
        numbers = {"steps": 0, "distance": 0.0, "gained": 0.0, "unit": 1.0}
        search = {"seeking": True, "doubt": False, "entry": 0.0, "promise": 0.0}
        finds = {"lowest": 0.0, "valley": 0.0, "highest": 0.0, "summit": 0.0}
        super().__init__(params, lr, coordinates, **numbers, **search, **finds)
        if len(self.param_groups) > 1:
            raise InputError("one distance is measured over all parameters: give a single group")

    @property
    def distance(self) -> float:
        """The distance that the next step takes its share of, per coordinate."""
        return float(self.param_groups[0]["distance"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The closure's loss, None without a closure; moves the parameters by one gradient."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        group = self.param_groups[0]
        points = [point for point in group["params"] if point.grad is not None]
        if not points:
            return loss
        gradients = [point.grad for point in points]
        for point in points:
            if "origin" not in self.state[point]:
                self.state[point]["origin"] = point.detach().clone()
        self.begin(points, "mean", "square", "drift")
        group["steps"] += 1
        if group["seeking"]:
            self._seek(points, gradients, math.nan if loss is None else float(loss))
        elif self._reach:
            self._grow(points, gradients)
        else:
            group["steps"] = 0
        return loss

    def _seek(self, points: list[Tensor], gradients: list[Tensor], loss: float) -> None:
        """Double the distance step by step until it is found; then begin again."""
        group = self.param_groups[0]
        scales = self.scales(group, points)
        if not group["distance"]:
            group["distance"] = _first_distance(_size(gradients, scales), loss)
            group["entry"] = group["lowest"] = loss
            group["valley"], group["steps"] = group["distance"], 1
        elif self._risen(loss) and self._may_be_chance(loss):
            group["doubt"], group["steps"] = True, group["steps"] - 1
            return
        elif self._risen(loss) or self._enough():
            noisy = group["steps"] > self._doublings + 1 and group["highest"] > 0.0
            by_promise, by_loss = group["summit"] / NOISY_RETREAT, group["valley"] / RETREAT
            group["distance"] = by_promise if noisy else by_loss
            self._go_back()
            return
        else:
            if loss < group["lowest"]:
                group["lowest"], group["valley"] = loss, group["distance"]
            if group["promise"] > group["highest"]:
                group["highest"], group["summit"] = group["promise"], group["distance"]
            group["distance"] *= 2.0
            group["doubt"] = False
        self.move(points, scales, group["steps"], group["distance"])
        group["promise"] = group["distance"] * self._descent(points, scales)

    def _risen(self, loss: float) -> bool:
        """Return whether the loss is too high for a larger distance to be of use."""
        group = self.param_groups[0]
        return not loss <= max(group["entry"], EDGE * group["lowest"])

    def _may_be_chance(self, loss: float) -> bool:
        """Return whether one more minibatch is asked at the same point before the search ends.

        Not after `doublings` steps, when losses do not choose the distance any more.
        """
        group = self.param_groups[0]
        return math.isfinite(loss) and not group["doubt"] and group["steps"] <= self._doublings

    def _enough(self) -> bool:
        """Return whether larger distances are not worth a look, whatever the loss is."""
        group = self.param_groups[0]
        promised = group["promise"] > PROMISE * abs(group["entry"])
        return group["steps"] > self._doublings + (0 if promised else self._more)

    def _descent(self, points: list[Tensor], scales: list[Tensor] | None) -> float:
        """Return how fast the loss falls along the last moves, to first order.

        The mean gradient that made them has noise of its own, which goes uphill as well as down:
        what it would promise if it were nothing else is taken off.
        """
        steps, promised = self.param_groups[0]["steps"], 0.0
        if steps == 1:
            return 0.0  # one gradient does not tell its noise
        for at, point in enumerate(points):
            move = self.clipped(point, steps)
            if scales is not None:
                move.mul_(scales[at])
            promised += _dot(move, self.state[point]["mean"])
        promised /= 1.0 - FIRST**steps
        by_noise = _share_of_noise(steps)
        roots = [square.sqrt() for square in self.entries(points, "square")]
        return (promised - by_noise * _size(roots, scales)) / (1.0 - by_noise)

    def _go_back(self) -> None:
        """Begin again from the first point, with the distance found."""
        group = self.param_groups[0]
        group["seeking"], group["steps"] = False, 0
        for point in group["params"]:
            state = self.state[point]
            if "origin" in state:
                point.copy_(state["origin"])
                state["mean"].zero_()
                state["square"].zero_()

    def _grow(self, points: list[Tensor], gradients: list[Tensor]) -> None:
        """Measure the distance by these gradients, and make a step of its size."""
        group = self.param_groups[0]
        self.raise_peaks(group, points, gradients)
        scales = self.scales(group, points)
        self._measure(points, gradients, scales)
        size = group["lr"] * self._reach * group["distance"]
        self.move(points, scales, group["steps"], size)

    def _measure(
        self, points: list[Tensor], gradients: list[Tensor], scales: list[Tensor] | None
    ) -> None:
        """Raise the distance where the gradients so far say that it is larger.

        Sums are in units of the newest weight's $d^2$: when the distance grows they shrink, so no
        power of a tiny first distance ever has to be held. The sum of gradients is `unit` times
        `drift`, so that shrinking it costs no pass over the memory.
        """
        group, weight = self.param_groups[0], (1.0 - MEMORY) * self.param_groups[0]["lr"]
        group["unit"] *= MEMORY
        inner = 0.0
        for point, gradient in zip(points, gradients, strict=True):
            state = self.state[point]
            apart = torch.sub(state["origin"], point, out=self.room(point))
            inner += _dot(apart, gradient)
            state["drift"].add_(gradient, alpha=weight / group["unit"])
        group["gained"] = MEMORY * group["gained"] + weight * inner
        drifts = self.entries(points, "drift")
        size = group["unit"] * _size(drifts, scales)
        found = group["gained"] / size / max(1.0, self._reach) if size > 0.0 else 0.0
        if math.isfinite(found) and found > group["distance"]:
            fall = (group["distance"] / found) ** 2
            group["distance"] = found
            group["gained"] *= fall
            group["unit"] *= fall
        if group["unit"] < LEAST_UNIT:
            torch._foreach_mul_(drifts, group["unit"])
            group["unit"] = 1.0


def _first_distance(size: float, loss: float) -> float:
    """Return the distance at which a step could gain `FIRST_GAIN` of the loss, to first order.

    0 where the gradient is zero: it says nothing about units, so the next one is asked.
    """
    if size == 0.0:
        return 0.0
    found = FIRST_GAIN * abs(loss) / size
    return found if 0.0 < found < math.inf else FIRST_GAIN


def _share_of_noise(count: int) -> float:
    """Return the variance of a running mean of `count` gradients, in units of one gradient's."""
    return (1.0 - FIRST) / (1.0 + FIRST) * (1.0 + FIRST**count) / (1.0 - FIRST**count)


def _wide(tensor: Tensor) -> Tensor:
    """Return all numbers in a row, in float32 or wider."""
    return tensor.reshape(-1).to(torch.promote_types(tensor.dtype, torch.float32))


def _dot(one: Tensor, other: Tensor) -> float:
    return float(torch.dot(_wide(one), _wide(other)))


def _size(tensors: list[Tensor], scales: list[Tensor] | None) -> float:
    """Return the sum of the absolute values, each in units of its coordinate."""
    if scales is not None:
        return sum(_dot(*pair) for pair in zip((x.abs() for x in tensors), scales, strict=True))
    return float(sum(float(item) for item in torch._foreach_norm([_wide(x) for x in tensors], 1)))
