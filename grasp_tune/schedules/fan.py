"""The fan of `promote`: runs whose steps are far apart, around a first distance.

The first distance comes from a few noisy losses. It may be many times too small or too large, and
nothing in a single run tells. So runs with a part of it, with all of it and with a multiple begin
at x0, on the same minibatches, and the losses of their first calls choose one of them. Too large a
step shows at once: the loss rises, or falls onto a plateau that no smaller step leaves again.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field

from grasp_tune.core.checkpoint_keys import Key, state_key
from grasp_tune.core.rounds import Known, Round, train_tasks
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome, TrainTask
from grasp_tune.schedules.promote_state import PromoteState
from grasp_tune.schedules.rungs import RungResult, outcomes


@dataclass
class _Fan:
    """The runs of one kind, by the power of `fan_factor` that multiplies their distance."""

    arm: Arm
    begun: Key  # the state with the first distance
    arms: dict[int, Arm] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)


def run_fans(
    state: PromoteState, kinds: list[Arm], extra: tuple[TrainTask, ...]
) -> Generator[Round, Known, tuple[RungResult, Known]]:
    """Yield a fan for each kind of run; return the best of each, and what became of `extra`.

    The best go on with their kind's own share of the distance.
    """
    options = state.options
    begin, end = options.fan_entry, options.fan_entry + options.fan_calls
    entries = [_reaching(state, kind, 0.0) for kind in kinds]
    found, known = yield from _trained(
        state, "entry", [Segment(arm, 0, begin, save=True) for arm in entries], extra
    )
    pairs = zip(kinds, entries, strict=True)
    fans = [_Fan(kind, state_key(entry.index, begin)) for kind, entry in pairs]
    fans = [fan for fan, entry in zip(fans, entries, strict=True) if _ended(found, entry)]
    wanted = [(fan, place) for fan in fans for place in (-1, 0, 1)]
    for number in range(1 + options.fan_more):
        for fan, place in wanted:
            fan.arms[place] = _reaching(state, fan.arm, options.fan_factor**place)
        segments = [
            Segment(fan.arms[place], begin, end, save=True, origin=fan.begun)
            for fan, place in wanted
        ]
        told, _ = yield from _trained(state, f"fan{number}", segments)
        for fan, place in wanted:
            fan.losses[place] = _late_loss(told.get(fan.arms[place].index))
        wanted = [(fan, edge) for fan in fans if (edge := _beyond(state, fan)) is not None]
        if not wanted:
            break
    arms, losses, origins = list[Arm](), dict[Arm, float](), dict[int, Key]()
    for fan in fans:
        place = _best(state, fan.losses)
        if math.isfinite(fan.losses[place]):
            arms.append(state.new_arm(fan.arms[place], fan.arm.value))
            losses[arms[-1]] = fan.losses[place]
            origins[arms[-1].index] = state_key(fan.arms[place].index, end)
    left = {state_key(arm.index, end) for fan in fans for arm in fan.arms.values()}
    left |= {state_key(entry.index, begin) for entry in entries}
    state.begun = tuple(sorted(set(origins.values())))
    state.discard = tuple(sorted(left - set(origins.values())))
    return RungResult(end, arms, losses, 0.0, origins), known


def can_fan(state: PromoteState, kinds: int) -> bool:
    """Return whether a fan of each kind costs less than half of what is left."""
    options = state.options
    cost = kinds * (options.fan_entry + (3 + options.fan_more) * options.fan_calls)
    return state.spec.budget >= options.fan_budget and cost <= state.left // 2


def _trained(
    state: PromoteState, name: str, segments: list[Segment], extra: tuple[TrainTask, ...] = ()
) -> Generator[Round, Known, tuple[dict[int, SegmentOutcome], Known]]:
    """Yield the segments; return how each of their runs went, by its number."""
    tasks = train_tasks(name, segments, 0, exact=state.spec.method.exact)
    known = yield state.round((*tasks, *extra))
    found = outcomes(tasks, known)
    state.left -= sum(item.calls for item in found)
    return {item.arm: item for item in found}, known


def _reaching(state: PromoteState, arm: Arm, reach: float) -> Arm:
    """Return a run of this kind that takes so many times the distance."""
    others = {name: value for name, value in arm.values[1:] if name != "reach"}
    state.next_run += 1
    share = state.options.fan_value
    return Arm.of(state.next_run - 1, arm.base, share, **others, reach=reach)


def _ended(found: dict[int, SegmentOutcome], arm: Arm) -> bool:
    return arm.index in found and found[arm.index].finite


def _late_loss(item: SegmentOutcome | None) -> float:
    """Return the mean loss of the later half of a segment, infinite where it was lost."""
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
    if losses[-1] < losses[0]:
        while losses.get(place - 1, math.inf) < losses[place]:
            place -= 1
    while losses.get(place + 1) is not None and place >= 0:
        if not _clearly(state, losses[place + 1], losses[place]):
            break
        place += 1
    return place


def _beyond(state: PromoteState, fan: _Fan) -> int | None:
    """Return the place of one more run, where the best so far is at an edge and clearly better."""
    place = _best(state, fan.losses)
    beyond, inner = (place - 1, place + 1) if place < 0 else (place + 1, place - 1)
    if place == 0 or beyond in fan.losses:
        return None
    return beyond if _clearly(state, fan.losses[place], fan.losses[inner]) else None
