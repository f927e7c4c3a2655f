r"""The runs that `promote` starts: a self-bounded grid of distances, times the powers of the scale.

The range of the distance $d_0 = |x^* - x_0|$ is the paper's: below `low` nothing is gained, above
`high` the start point is already as good as the promise. Each distance becomes the one number of
the base optimizer.
"""

import math
from collections.abc import Sequence

from grasp_tune.method import bounds
from grasp_tune.method.setting import Setting
from grasp_tune.method.tasks import Arm, ProbeOutcome

SPACING = 4.0  # from one distance to the next
POWERS = (0.0, 0.5, 1.0)  # how much the size of a coordinate's gradients divides its step
_DEFAULT_EPS = 1e-2  # for the methods without that input
_LARGEST = 1e300  # distance; no model has numbers near it
_SCALED = ("adam", "adagrad")  # bases that know the powers


def distance_range(setting: Setting, start: ProbeOutcome) -> tuple[float, float]:
    r"""Return the (low, high) of the distances worth trying.

    Low is $d_\epsilon$; GRASP-NC has $F_\epsilon$ instead, and no point nearer than
    $F_\epsilon/|g_0|$ can be lower by $F_\epsilon$ to first order. High is the paper's
    $|g_0| T^2 / L_\epsilon$ (Algorithm 3, Option I).
    """
    method, norm = setting.method, start.gradient_norm
    low = getattr(method, "d_eps", None)
    if low is None:
        low = getattr(method, "F_eps", _DEFAULT_EPS) / norm
    low = min(max(low, 1.0 / _LARGEST), _LARGEST)  # a norm of any size gives numbers to work with
    smoothness = getattr(method, "L_eps", _DEFAULT_EPS)
    high = bounds.distance_max_smooth(norm, setting.budget, low, smoothness)
    return low, min(high, _LARGEST)


def first_arms(setting: Setting, start: ProbeOutcome, most: int) -> list[Arm]:
    """Return the runs of the first rung, at most `most` where a coarser grid allows it."""
    low, high = distance_range(setting, start)
    base = setting.method.base_name("promote")
    powers = POWERS if base in _SCALED else (0.0,)
    names = [(base, power) for power in powers] + [(name, 0.0) for name in setting.challengers]
    spacing = SPACING
    while len(names) * _count(low, high, spacing) > max(most, 2 * len(names)):
        spacing *= SPACING
    steps = range(1, _count(low, high, spacing) + 1)
    distances = [_distance(low, spacing, step) for step in steps]
    arms: list[Arm] = []
    for name, power in names:
        for distance in distances:
            value = value_of(name, distance, setting.budget, start)
            if 0.0 < value < math.inf:
                arms.append(Arm(len(arms) + 1, name, value, power))
    return arms


def _count(low: float, high: float, spacing: float) -> int:
    ratio = high / low
    if math.isfinite(ratio):
        return max(1, math.ceil(math.log(ratio, spacing)))
    return math.ceil((math.log(high) - math.log(low)) / math.log(spacing))


def _distance(low: float, spacing: float, steps: int) -> float:
    try:
        return low * spacing**steps
    except OverflowError:  # the power alone is beyond the largest double; halves of it are not
        half = steps // 2
        return low * spacing**half * spacing ** (steps - half)


def value_of(base: str, distance: float, budget: int, start: ProbeOutcome) -> float:
    r"""Return the base's number for a distance $D$, with $P$ parameters and $T$ calls.

    A normalised step moves every coordinate by about its size: $T$ of them in random directions
    cover $D$ when each is $D/\sqrt{PT}$. A plain gradient step covers it when it is
    $D/(|g_0|\sqrt T)$. AdaGrad takes the distance of one coordinate, UniXGrad the whole.
    """
    if base == "unixgrad":
        return distance
    if base == "adagrad":
        return distance / math.sqrt(start.parameters)
    if base in ("sgd", "momentum"):
        return distance / (start.gradient_norm * math.sqrt(budget))
    return distance / math.sqrt(start.parameters * budget)


def keep_counts(arms: int, rungs: Sequence[int]) -> list[int]:
    """Return how many runs survive each rung, never more than there are."""
    return [min(arms, count) for count in rungs]
