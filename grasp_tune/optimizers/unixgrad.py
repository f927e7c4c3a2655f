r"""UniXGrad as a `torch.optim.Optimizer`: the base optimizer of the convex methods.

The paper keeps the sum $\sum_s \alpha_s x_s$, which grows without limit. Here the sum is stored as
a weighted mean, and every point as its displacement from the start *in units of the radius*, so all
stored points lie in the unit ball. The root in the step size is a Python float that is updated by
`hypot`, so it does not overflow while gradients are finite.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from grasp_tune.core.errors import InputError
from grasp_tune.optimizers.coordinatewise import OwnState

# Squares are summed over rows of this length in the tensor's own precision, and then in float64:
# one float32 sum over 10^7 numbers is off by 4e-4, and float64 throughout costs 15 times as much.
_ROW = 256


class UniXGrad(OwnState):
    r"""UniXGrad on the ball of the given radius around the parameters' first values.

    Algorithm 5 of the paper with $\alpha_t = t$, two gradients per iteration. With $\hat x$ the
    leading point, $m_{t-1}$ the weighted mean of $x_1..x_{t-1}$ (which is $\bar x_{t-1}$) and
    $w_t = \alpha_t / \sum_{s \le t} \alpha_s = 2/(t+1)$:

    1. $\eta_t = 2D / \sqrt{1 + \sum_{s<t} \alpha_s^2 |g(\bar x_s) - g(\tilde x_s)|^2}$
    2. $\tilde x_t = m_{t-1} + w_t (\hat x_t - m_{t-1})$
    3. $x_t = \mathrm{Proj}(\hat x_t - \eta_t \alpha_t g(\tilde x_t))$
    4. $\bar x_t = m_t = m_{t-1} + w_t (x_t - m_{t-1})$
    5. $\hat x_{t+1} = \mathrm{Proj}(\hat x_t - \eta_t \alpha_t g(\bar x_t))$

    It stores three vectors of the model's size, and one more during `step`.

    params: parameters, or groups of them, as for any torch optimizer.
    radius: the paper's $D$, one number for the ball over all parameters of all groups.
    """

    wide = "the averages"

    def __init__(self, params: ParamsT, *, radius: float) -> None:
        radius = float(radius)
        if not 0.0 < radius < math.inf:
            raise InputError(f"radius is {radius}, but must be a positive finite number")
        super().__init__(params, {"radius": radius, "iteration": 0, "root": 1.0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group before the first step; the ball then spans its parameters too."""
        for name in {*self.defaults, "lr"} & {*param_group}:
            raise InputError(
                f"a parameter group sets {name}={param_group[name]!r}, but UniXGrad has one "
                "radius for all groups together and no learning rate; leave it out"
            )
        if self.param_groups and (made := self.param_groups[0]["iteration"]):
            raise InputError(
                f"a parameter group was added after {made} iterations, but the ball is fixed by "
                "the first one; make a new optimizer"
            )
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step to the new average; return the loss at the first of the two points.

        `closure` zeroes the gradients, draws a fresh minibatch, calls backward and returns the
        loss. It is called twice: at the look-ahead point (2), whose loss is returned, and at the
        average (4). A gradient that is None counts as zero. If the closure raises, the step is half
        done: go back to an earlier `state_dict` and its parameters.
        """
        if closure is None:
            raise InputError("UniXGrad.step needs a closure: a step takes gradients at two points")
        self.begin()
        losses = []
        for _ in range(2):
            with torch.enable_grad():
                losses.append(closure())
            self.feed()
        return losses[0]

    @torch.no_grad()
    def begin(self) -> None:
        """Begin a step: move to the look-ahead point (2), which needs the first gradient."""
        points = self.points
        for point in points:
            if not self.state[point]:
                self.state[point]["origin"] = point.clone()
            self.state[point].pop("ahead", None)
        torch._foreach_copy_(points, self.entries(points, "mean"))  # (2)
        weight = 2.0 / (self.param_groups[0]["iteration"] + 2)
        torch._foreach_lerp_(points, self.entries(points, "lead"), weight)
        self._leave_units(points)

    @torch.no_grad()
    def feed(self) -> bool:
        """Use the gradient at this point; move to the next one, or end the step and return True."""
        points, group = self.points, self.param_groups[0]  # numbers are the same in all groups
        root, weight = group["root"], group["iteration"] + 1
        reach = 2.0 * weight / root  # (1), times alpha_t, in units of the radius
        lead, mean = self.entries(points, "lead"), self.entries(points, "mean")
        here = [self.dense_gradient(point) for point in points]
        if "ahead" not in self.state[points[0]]:
            for point, gradient in zip(points, here, strict=True):
                self.state[point]["ahead"] = gradient.clone()
            move_in_ball(points, lead, here, reach)  # (3), with the parameters as scratch space
            torch._foreach_lerp_(mean, points, 2.0 / (weight + 1))  # (4)
            torch._foreach_copy_(points, mean)
            self._leave_units(points)
            return False
        ahead = [self.state[point].pop("ahead") for point in points]
        # Half the difference, since the difference of two finite gradients may overflow.
        torch._foreach_mul_(ahead, 0.5)
        torch._foreach_sub_(ahead, here, alpha=0.5)
        root = math.hypot(root, 2.0 * weight * joint_norm(ahead))
        move_in_ball(ahead, lead, here, reach)  # (5), which overwrites `ahead`
        for point, moved in zip(points, ahead, strict=True):
            self.state[point]["lead"] = moved
        for group in self.param_groups:
            group["iteration"], group["root"] = weight, root
        return True

    def _leave_units(self, points: list[Tensor]) -> None:
        """Turn displacements in units of the radius into points, in place."""
        torch._foreach_mul_(points, self.param_groups[0]["radius"])
        torch._foreach_add_(points, self.entries(points, "origin"))


def joint_norm(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all tensors as one vector, accurate to 1e-6 in float32.

    It does not overflow while the entries are finite. Entries below 1e-19 may count as zero.
    """
    rows: dict[torch.device, list[Tensor]] = {}  # by device: one transfer for each
    for tensor in tensors:
        flat = tensor.reshape(-1)
        whole = flat.numel() // _ROW * _ROW
        found = rows.setdefault(tensor.device, [])
        if whole:
            found.append(torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1))
        if whole < flat.numel():
            found.append(torch.linalg.vector_norm(flat[whole:]).reshape(1))
    whole_rows = [torch.cat(found).cpu().double() for found in rows.values() if found]
    norm = math.hypot(*(torch.linalg.vector_norm(item).item() for item in whole_rows))
    if math.isfinite(norm):
        return norm
    largest = _largest(tensors)  # the squares may have overflowed although the entries did not
    if not math.isfinite(largest):
        return largest
    return largest * math.hypot(*(joint_norm([tensor / largest]) for tensor in tensors))


def move_in_ball(out: list[Tensor], lead: list[Tensor], by: list[Tensor], reach: float) -> None:
    """Write Proj(lead - reach * by) to `out`: the projection onto the unit ball, jointly."""
    torch._foreach_copy_(out, lead)
    torch._foreach_add_(out, by, alpha=-reach)
    norm = joint_norm(out)
    if not math.isfinite(norm):
        largest = _largest(by)
        if not (reach > 0.0 and 1.0 / reach < largest < math.inf):
            # A gradient was NaN or infinite, now or before: the result is NaN.
            torch._foreach_mul_(out, math.nan)
            return
        # reach * by overflowed: keep its direction, but shorten it before it is added.
        torch._foreach_copy_(out, by)
        torch._foreach_div_(out, -largest)
        torch._foreach_add_(out, lead, alpha=1.0 / reach / largest)
        torch._foreach_div_(out, joint_norm(out))
    elif norm > 1.0:
        torch._foreach_div_(out, norm)


def _largest(tensors: Sequence[Tensor]) -> float:
    """Return the largest absolute entry, NaN if any entry is NaN."""
    values = [tensor.abs().max().item() for tensor in tensors if tensor.numel()]
    return math.nan if any(map(math.isnan, values)) else max(values)
