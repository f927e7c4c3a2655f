"""The ramp, which doubles the step size until the loss has risen, and the list below that edge."""

import math
from collections.abc import Generator, Sequence

from grasp_tune.core import bounds
from grasp_tune.core.spec import Known, Round
from grasp_tune.core.tasks import Arm, Outcome, Segment, SegmentOutcome, Task
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.step_list import StepList

_DEFAULT_EPS = 1e-2  # for methods without that input
LEAST_RAMP = 4  # calls; fewer are of no use
TINY_STEPS = 3  # first calls of a ramp, with steps too small to matter
_LARGEST = 1e300  # distance; far beyond the numbers of any model


def edges(
    state: PromoteState, kinds: Sequence[Arm], extra: tuple[Task, ...]
) -> Generator[Round, Known, tuple[list[StepList], Known]]:
    """Yield the ramps; return a list for each kind with a usable step size, and all outcomes."""
    options, known = state.options, dict[str, Outcome | None]()
    calls = min(options.doublings, state.left // (4 * len(kinds)))
    ceiling = state.ceiling(options.diverged)
    steps = {kind: _first_step(state, kind) for kind in kinds if described(kind.base).changes_step}
    ramps = {
        kind: Segment(state.new_arm(kind, value), 0, calls, ramp=True, ceiling=ceiling)
        for kind, value in steps.items()
        if value is not None and calls >= LEAST_RAMP
    }
    found: dict[int, SegmentOutcome] = {}
    if ramps:
        found, told = yield from state.train("ramp", list(ramps.values()), extra)
        known.update(told)
    elif extra:
        known.update((yield state.round(extra)))
    lists = []
    for kind in kinds:
        if kind not in steps:
            lists.append(_fixed_list(state, kind))
        elif (value := steps[kind]) is not None:
            ended = found.get(ramps[kind].arm.index) if kind in ramps else None
            losses = [point.loss for point in ended.curve] if ended is not None else []
            at, risen = last_doubling(losses, state.height(2.0), options.risen)
            if not risen:  # the edge is higher up: put the last step in the middle of the list
                value *= options.spacing ** options.places[len(options.places) // 2]
            value *= 2.0**at
            lists.append(StepList(kind, value, options.spacing, options.places))
    return lists, known


def _first_step(state: PromoteState, kind: Arm) -> float | None:
    """Return a step size that removes at most `first_gain` of the loss, to first order."""
    start, rule = state.start, described(kind.base).from_distance
    size = math.sqrt(start.gradient_square)  # of one minibatch's gradient
    if not size:
        return None
    distance = state.options.first_gain * (abs(start.value) or 1.0) / size
    value = rule(min(max(distance, 1.0 / _LARGEST), _LARGEST), size, start.parameters, 1)
    return value if 0.0 < value < math.inf else None


def last_doubling(losses: Sequence[float], usual: float, risen: float) -> tuple[int, bool]:
    """Return the last doubling before the loss rose for good, and whether it did rise.

    If it never rose, return the last doubling that pays: it reached nine tenths of the gain.

    The loss has risen if it is above the first ones, whose steps are tiny, above what is `usual` at
    x0 and above `risen` times the lowest so far, twice in a row or at the very end: one minibatch
    may be unlucky. A bounded loss, or one with a start that is far off, never gets so high. It has
    risen if it stays above half of the gain, or above `risen` times the lowest.
    """
    lowest = math.inf
    first = max(usual, *(loss for loss in losses[:TINY_STEPS] if loss < math.inf), -math.inf)
    for at, loss in enumerate(losses):
        bound = max(first, risen * lowest) if 0.0 < lowest < math.inf else first
        if at and all(not value <= bound for value in losses[at : at + 2]):
            return at - 1, True
        if loss <= bound:
            lowest = min(lowest, loss)
    begun = sum(losses[:TINY_STEPS]) / max(1, len(losses[:TINY_STEPS]))
    if math.isfinite(lowest) and begun - lowest > usual - begun:  # more than noise
        bound = min((begun + lowest) / 2, risen * lowest if lowest > 0.0 else math.inf)
        last = max(at for at, loss in enumerate(losses) if loss <= bound)
        if last < len(losses) - 2:
            return last, True
        nearly = lowest + (begun - lowest) / 10
        return max(0, next(at for at, loss in enumerate(losses) if loss <= nearly) - 1), False
    return max(0, len(losses) - 2), False


def _fixed_list(state: PromoteState, kind: Arm) -> StepList:
    """Return the list of an optimizer without a ramp: the range of distances, evenly spaced."""
    low, high = distance_range(state)
    decades = math.log(high) - math.log(low)
    count = math.ceil(decades / math.log(state.options.spacing))
    count = min(max(1, count), state.options.most_places)
    rule, start = described(kind.base).from_distance, state.start
    top = rule(high, start.gradient_norm, start.parameters, state.spec.budget)
    spacing = math.exp(decades / count) if decades > 0.0 else state.options.spacing
    return StepList(kind, top, spacing, tuple(range(count)))


def distance_range(state: PromoteState) -> tuple[float, float]:
    r"""Return the lowest and the highest distance worth trying.

    The lowest is $d_\epsilon$. GRASP-NC has $F_\epsilon$ instead: to first order, no point nearer
    than $F_\epsilon/|g_0|$ can be lower by $F_\epsilon$. The highest is the paper's
    $|g_0| T^2 / L_\epsilon$ (Algorithm 3, Option I).
    """
    method, norm = state.spec.method, state.start.gradient_norm
    low = getattr(method, "d_eps", None)
    if low is None:
        low = getattr(method, "F_eps", _DEFAULT_EPS) / norm
    low = min(max(low, 1.0 / _LARGEST), _LARGEST)  # stay finite for a norm of any size
    smoothness = getattr(method, "L_eps", _DEFAULT_EPS)
    high = bounds.distance_max(norm, state.spec.budget, low, smoothness)
    return low, min(high, _LARGEST)
