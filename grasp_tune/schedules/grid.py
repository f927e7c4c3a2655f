r"""The runs that a search starts with: a self-bounded grid of distances, times the powers.

The range of the distance $d_0 = |x^* - x_0|$ is the paper's: below `low` nothing is gained, above
`high` the start point is already as good as the promise. Each distance becomes the value of the
base optimizer by its own rule. The grid is coarse, since the rungs after it put new runs between
the best of its points; runs whose steps are far too large diverge at their second call and cost no
more.
"""

import math
from dataclasses import dataclass

from grasp_tune.core import bounds
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.promote_options import PromoteOptions

_DEFAULT_EPS = 1e-2  # for the methods without that input
_LARGEST = 1e300  # distance; no model has numbers near it


@dataclass(frozen=True, slots=True)
class Grid:
    """The runs of the first rung, and how far apart they are."""

    arms: list[Arm]
    spacing: float


def distance_range(spec: SweepSpec, start: ProbeOutcome) -> tuple[float, float]:
    r"""Return the (low, high) of the distances worth trying.

    Low is $d_\epsilon$; GRASP-NC has $F_\epsilon$ instead, and no point nearer than
    $F_\epsilon/|g_0|$ can be lower by $F_\epsilon$ to first order. High is the paper's
    $|g_0| T^2 / L_\epsilon$ (Algorithm 3, Option I).
    """
    method, norm = spec.method, start.gradient_norm
    low = getattr(method, "d_eps", None)
    if low is None:
        low = getattr(method, "F_eps", _DEFAULT_EPS) / norm
    low = min(max(low, 1.0 / _LARGEST), _LARGEST)  # a norm of any size gives numbers to work with
    smoothness = getattr(method, "L_eps", _DEFAULT_EPS)
    high = bounds.distance_max_smooth(norm, spec.budget, low, smoothness)
    return low, min(high, _LARGEST)


def first_grid(
    options: PromoteOptions, spec: SweepSpec, start: ProbeOutcome, most: int, first: int = 1
) -> Grid:
    """Return the runs of the first rung: at most `most` where a coarser grid allows it.

    Where even the coarsest grid is too much for all kinds of runs, the last kinds are left out.
    """
    low, high = distance_range(spec, start)
    base = spec.method.base_name(spec.schedule)
    entry = described(base)
    divided = entry.uses_power and not entry.measures_distance
    powers = options.search_powers if divided else (0.0,)
    names = [(base, power) for power in powers] + [(name, 0.0) for name in spec.challengers]
    spacings = options.spacings if entry.changes_step else options.fixed_spacings
    spacing = next((s for s in spacings if len(names) * _count(low, high, s) <= most), spacings[-1])
    count = _count(low, high, spacing)
    asked = len(spec.challengers)  # what the user asked for always runs
    while len(names) > 1 + asked and len(names) * count > most:
        names.pop(-1 - asked)
    distances = [_distance(low, spacing, step) for step in range(1, count + 1)]
    arms: list[Arm] = []
    for name, power in names:
        for distance in distances:
            rule = described(name).from_distance
            value = rule(distance, start.gradient_norm, start.parameters, spec.budget)
            if 0.0 < value < math.inf:
                arms.append(Arm.of(first + len(arms), name, value, power=power))
    return Grid(arms, spacing)


def thinned(arms: list[Arm], most: int) -> list[Arm]:
    """Return at most `most` of the runs, evenly spread: what a tiny budget can pay for."""
    if len(arms) <= most:
        return arms
    return [arms[(2 * at + 1) * len(arms) // (2 * most)] for at in range(most)]


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
