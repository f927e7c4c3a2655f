r"""The search for the step size of the long run: a ramp, a short geometric list, a second rung.

1. Ramp. From x0, the step size doubles call by call until the loss has risen, at the edge. This
   costs some fifteen calls; the units of the loss and the parameters do not matter.
2. First rung. Runs from x0 on the same minibatches, with step sizes a factor apart below the edge.
   The list grows beyond an end that is the best so far. Step sizes that are too large show early:
   the loss rises, or falls onto a plateau that smaller ones do not meet. While no run has learned
   anything, the runs get longer; if that does not help, the usual step size is taken.
3. Second rung. The beginning of a run favours large step sizes, so the best goes on beside the next
   smaller one, and the next larger one if that gained nearly as much. A parabola through the losses
   around the best gives the step size of the long run.

An optimizer whose value cannot change in a run has no ramp: its list covers the self-bounded range
of distances, $[d_\epsilon, |g_0| T^2 / L_\epsilon]$ (Algorithm 3, Option I).
"""

import math
from collections.abc import Generator, Mapping, Sequence

from grasp_tune.core.checkpoint_keys import state_key
from grasp_tune.core.spec import Known, Round
from grasp_tune.core.tasks import Arm, Segment, SegmentOutcome, Task
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.promote_state import PromoteState, finite_loss
from grasp_tune.schedules.ramp import edges
from grasp_tune.schedules.step_list import FinalStart, StepList


def find_step(
    state: PromoteState, kinds: Sequence[Arm], extra: tuple[Task, ...]
) -> Generator[Round, Known, tuple[FinalStart | None, Known]]:
    """Yield ramp and rungs; return the start of the final run, and the outcomes of `extra`.

    The start is None if no run stayed finite, and x0 if the budget is too small for a list.
    """
    options, budget = state.options, state.spec.budget
    lists, known = yield from edges(state, kinds, extra)
    length = max(options.least_length, int(options.first_length * budget**options.length_power))
    first, lists = lists[:1], _affordable(state, lists, length)
    if not lists:
        middle = first[0].places[len(first[0].places) // 2] if first else 0
        arm = first[0].add(state, middle) if first else None
        return None if arm is None else FinalStart(arm, arm), known
    wanted = [(item, place) for item in lists for place in item.places if item.add(state, place)]
    number = 0
    for item in lists:
        item.start, item.gain = state.start.value, state.noise(length // 2)
    while wanted:
        runs = [_run(state, item.arms[place], 0, length) for item, place in wanted]
        found, _ = yield from state.train(f"list{number}", runs)
        for item, place in wanted:
            item.learn(state, place, found.get(item.arms[place].index))
        number += 1
        more = [(item, item.beyond(options.most_places)) for item in lists]
        affordable = [(item, place) for item, place in more if length <= state.left // 4]
        wanted = [(item, at) for item, at in affordable if at is not None and item.add(state, at)]
    lists = [item for item in lists if item.losses and math.isfinite(item.lowest)]
    if not lists:
        state.notes.append("no run stayed finite")
        return None, known
    length = yield from _wait(state, lists, length)
    lists = [item for item in lists if math.isfinite(item.lowest)]
    start = yield from _second_rung(state, lists, length)
    return start, known


def _run(state: PromoteState, arm: Arm, start: int, stop: int) -> Segment:
    power, warmup = state.options.average_power, state.options.warmup
    return Segment(arm, start, stop, save=True, warmup=warmup, averages=(power,))


def _wait(state: PromoteState, lists: list[StepList], length: int) -> Generator[Round, Known, int]:
    """Double the runs while none has learned anything; return the call at which they end.

    On an initial plateau all step sizes look alike for tens or hundreds of calls. The three runs of
    each kind that are nearest to the usual step size go on, each time for a share of what is left.
    """
    while all(item.flat for item in lists):
        runs = [(item, place) for item in lists for place in item.flat[:3]]
        if len(runs) * length > state.options.wait * state.left:
            break
        segments = [_run(state, item.arms[place], length, 2 * length) for item, place in runs]
        ended = {state_key(item.arms[at].index, length) for item in lists for at in item.losses}
        used = {state_key(item.arms[at].index, length) for item, at in runs}
        state.discard = tuple(ended - used)
        found, _ = yield from state.train(f"wait{length}", segments)
        ends = [found.get(item.arms[place].index) for item, place in runs]
        if not any(math.isfinite(finite_loss(item)) for item in ends):  # keep the earlier states
            for item in lists:
                item.losses = {at: item.losses[at] for owner, at in runs if owner is item}
            break
        state.discard = tuple(used)
        length *= 2
        for item in lists:
            item.losses, item.curves, item.gain = {}, {}, state.noise(length // 4)
        for item, place in runs:
            item.learn(state, place, found.get(item.arms[place].index))
    return length


def _affordable(state: PromoteState, lists: list[StepList], length: int) -> list[StepList]:
    """Return as many lists as a first rung can run with a third of the calls left."""
    for count in range(len(lists), 0, -1):
        if sum(len(item.places) for item in lists[:count]) * length <= state.left // 3:
            return lists[:count]
    if lists and (most := state.left // 3 // length) > 1:  # thin out the first
        places = lists[0].places
        lists[0].places = places[:: -(-len(places) // most)]
        return lists[:1]
    return []


def _second_rung(
    state: PromoteState, lists: list[StepList], length: int
) -> Generator[Round, Known, FinalStart]:
    """Yield longer runs of the best; return the winner, with the step size of the final run."""
    first = lists[0]
    chosen, end = _promoted(state, lists, length)
    best = chosen[0]
    ended = [state_key(item.arms[at].index, length) for item in lists for at in item.losses]
    # Keep the usual step size at hand unless the list shows that another one is better.
    at_hand = len(chosen) > 1 and first.usual in first.alike
    usual = first.arms[first.usual] if at_hand else None
    kept = {state_key(arm.index, length) for arm in (*chosen, usual) if arm is not None}
    state.discard = tuple(key for key in ended if key not in kept)
    state.leader = state_key(best.index, length)
    unchallenged = FinalStart(best, best, state.leader, first.lowest)
    if len(chosen) == 1:
        return unchallenged
    found, _ = yield from state.train("second", [_run(state, arm, length, end) for arm in chosen])
    losses = {arm: finite_loss(found.get(arm.index)) for arm in chosen}
    if not any(map(math.isfinite, losses.values())):
        state.discard = tuple(kept - {state.leader})
        return unchallenged
    found |= yield from _past_the_ends(state, lists, losses, end)
    winner, tried = _leading(lists, losses)
    alive = [arm for arm in losses if math.isfinite(losses[arm])]
    ends = {state_key(arm.index, end) for arm in alive}
    held = usual in alive or usual not in chosen
    if usual is not None and held and tried.is_stuck(winner, losses[winner], usual, state.options):
        state.leader = state_key(usual.index, end if usual in chosen else length)
        state.discard = tuple((kept | ends) - {state.leader})
        return FinalStart(usual, usual, state.leader, losses[winner])
    state.leader = state_key(winner.index, end)
    smaller = [arm for arm in tried.arms.values() if arm in alive and arm.value < winner.value]
    other = max(smaller, key=lambda arm: arm.value, default=None)
    ends -= {state_key(arm.index, end) for arm in (winner, other) if arm is not None}
    state.discard = (*kept, *ends)
    arm = winner
    if state.options.interpolate and described(winner.base).changes_step:
        moved = tried.vertex({place: losses.get(arm) for place, arm in tried.arms.items()})
        arm = state.new_arm(winner, winner.value * tried.spacing**-moved)
    silent = found[winner.index].silent
    return FinalStart(arm, winner, state.leader, losses[winner], other, silent)


def _promoted(state: PromoteState, lists: list[StepList], length: int) -> tuple[list[Arm], int]:
    """Return the runs that go on, the best of the first list first, and the call at their end."""
    first = lists[0]
    chosen = [item.arms[item.best] for item in lists]
    for place in (first.best - 1, first.best + 1):
        if first.comes_near(place, state.start.value, state.options.near):
            chosen.insert(1, first.arms[place])
    end = max(length + 1, int(state.options.second_length * length))
    return chosen[: max(1, state.left // 3 // (end - length))], end


def _past_the_ends(
    state: PromoteState, lists: list[StepList], losses: dict[Arm, float], end: int
) -> Generator[Round, Known, dict[int, SegmentOutcome]]:
    """Yield runs beyond the list's end while the winner is there; add their losses to `losses`."""
    ended: dict[int, SegmentOutcome] = {}
    while True:
        winner, tried = _leading(lists, losses)
        place = tried.at_end(winner, state.options.most_places)
        further = tried.add(state, place) if place is not None and end <= state.left // 6 else None
        if further is None:
            return ended
        state.leader = state_key(winner.index, end)
        more, _ = yield from state.train(f"end{further.index}", [_run(state, further, 0, end)])
        ended |= more
        losses[further] = finite_loss(more.get(further.index))


def _leading(lists: list[StepList], losses: Mapping[Arm, float]) -> tuple[Arm, StepList]:
    """Return the run with the lowest loss, and its list."""
    winner = min(losses, key=lambda arm: losses[arm])
    return winner, next(item for item in lists if winner in item.arms.values())
