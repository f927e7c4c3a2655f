"""The fan of `promote`: runs whose steps are far apart, around a first distance.

The first distance comes from a few noisy losses. It may be many times too small or too large, and
nothing in a single run tells. So runs with a part of it, with all of it and with a multiple begin
at x0, on the same minibatches, and the losses of their first calls choose one of them. Too large a
step shows at once: the loss rises, or falls onto a plateau that no smaller step leaves again.
"""

import math
from collections.abc import Generator

from grasp_tune.core.checkpoint_keys import state_key
from grasp_tune.core.rounds import Known, Round, train_tasks
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome, TrainTask
from grasp_tune.schedules.final_run import FinalStart
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.rungs import outcomes


def can_fan(state: PromoteState) -> bool:
    """Return whether one run gets all that the budget has, and a fan at most half of it."""
    options, budget = state.options, state.spec.budget
    cost = options.fan_entry + (3 + options.fan_more) * options.fan_calls
    return options.fan_budget <= budget < options.short_budget and cost <= state.left // 2


def run_fan(
    state: PromoteState, kind: Arm, extra: tuple[TrainTask, ...]
) -> Generator[Round, Known, tuple[FinalStart | None, Known]]:
    """Yield the runs; return how the best goes on, if one does, and what became of `extra`."""
    options = state.options
    begin, end = options.fan_entry, options.fan_entry + options.fan_calls
    entry = _reaching(state, kind, 0.0)
    begun = state_key(entry.index, begin)
    losses, known = yield from _losses(state, "entry", [Segment(entry, 0, begin, save=True)], extra)
    if not math.isfinite(losses[entry]):
        return None, known
    arms: dict[int, Arm] = {}  # by the power of `fan_factor` that multiplies their distance
    found: dict[int, float] = {}  # their losses
    wanted: tuple[int, ...] = (-1, 0, 1)
    for number in range(1 + options.fan_more):
        arms |= {place: _reaching(state, kind, options.fan_factor**place) for place in wanted}
        segments = [Segment(arms[at], begin, end, save=True, origin=begun) for at in wanted]
        losses, _ = yield from _losses(state, f"fan{number}", segments)
        found |= {place: losses[arms[place]] for place in wanted}
        wanted = _beyond(state, found)
        if not wanted:
            break
    best = _best(state, found)
    good = state_key(arms[best].index, end)
    state.discard = (begun, *(state_key(arm.index, end) for arm in arms.values()))
    if not math.isfinite(found[best]):
        return None, known
    state.discard = tuple(key for key in state.discard if key != good)
    arm = state.new_arm(arms[best], kind.value)  # with its own share of the distance
    return FinalStart(arm, arms[best], good, adapts=True), known


def _reaching(state: PromoteState, kind: Arm, reach: float) -> Arm:
    """Return a run of this kind that takes so many times the distance."""
    state.next_run += 1
    values = ((kind.values[0][0], state.options.fan_value), *kind.values[1:], ("reach", reach))
    return Arm(state.next_run - 1, kind.base, values)


def _losses(
    state: PromoteState, name: str, segments: list[Segment], extra: tuple[TrainTask, ...] = ()
) -> Generator[Round, Known, tuple[dict[Arm, float], Known]]:
    """Yield the segments; return the loss of each run, infinite where it was lost."""
    tasks = train_tasks(name, segments, 0, exact=state.spec.method.exact)
    known = yield state.round((*tasks, *extra))
    items = {item.arm: item for item in outcomes(tasks, known)}
    state.left -= sum(item.calls for item in items.values())
    return {run.arm: _late_loss(items.get(run.arm.index)) for run in segments}, known


def _late_loss(item: SegmentOutcome | None) -> float:
    """Return the mean loss of the later half of a segment."""
    if item is None or not item.finite:
        return math.inf
    half = item.curve[len(item.curve) // 2 :]
    return sum(point.loss for point in half) / len(half) if half else item.loss


def _clearly(state: PromoteState, one: float, other: float) -> bool:
    """Return whether the loss of one run is clearly below another's, or gains clearly more."""
    start, options = state.start.value, state.options
    lower = other > 0.0 and one < options.fan_lead * other
    gains = start - one > options.fan_gain * max(0.0, start - other)
    return lower or (one < other and gains)


def _best(state: PromoteState, losses: dict[int, float]) -> int:
    """Return the place of the run to go on with.

    The beginning of a run flatters large steps, so one above the distance has to be clearly better.
    """
    place = 0
    while losses.get(place - 1, math.inf) < losses[place]:
        place -= 1
    while place >= 0 and _clearly(state, losses.get(place + 1, math.inf), losses[place]):
        place += 1
    return place


def _beyond(state: PromoteState, losses: dict[int, float]) -> tuple[int, ...]:
    """Return the place of one more run, where the best so far is at an edge and clearly better."""
    place = _best(state, losses)
    way = -1 if place < 0 else 1
    if not place or place + way in losses:
        return ()
    return (place + way,) if _clearly(state, losses[place], losses[place - way]) else ()
