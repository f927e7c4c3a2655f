r"""Which step a long run should take: a ramp, a short geometric list, and a longer second look.

1. Ramp. From x0, steps double call by call until the loss has risen: the step at which that
   happens is the edge. It costs some fifteen calls, and units of loss and parameters do not matter.
2. First rung. Runs from x0 on the same minibatches, their steps a factor apart below the edge; the
   list grows beyond an end that is the best so far. Steps that are too large show early: the loss
   rises, or falls onto a plateau that no smaller step knows. While no run has learned anything,
   the runs get longer; where that does not help, the usual step is taken.
3. Second rung. The beginning of a run flatters large steps, so the best goes on beside the next
   smaller one, and the next larger one where that gained nearly as much. A parabola through the
   losses around the best of them gives the step of the long run.

An optimizer whose value cannot change in a run has no ramp: its list covers the self-bounded range
of distances, $[d_\epsilon, |g_0| T^2 / L_\epsilon]$ (Algorithm 3, Option I).
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from grasp_tune.core import bounds
from grasp_tune.core.checkpoint_keys import Key, state_key
from grasp_tune.core.rounds import Known, Round
from grasp_tune.core.tasks import Arm, Outcome, Segment, SegmentOutcome, Task
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.promote_options import PromoteOptions
from grasp_tune.schedules.promote_state import PromoteState, finite_loss, late_losses

_DEFAULT_EPS = 1e-2  # for the methods without that input
LEAST_RAMP = 4  # calls: fewer say nothing
TINY_STEPS = 3  # calls of a ramp before its steps can matter
_LARGEST = 1e300  # distance; no model has numbers near it


@dataclass(frozen=True, slots=True)
class FinalStart:
    """Where the final run begins, and with which step."""

    arm: Arm
    owner: Arm  # the run whose state it begins from
    state: Key | None = None  # None: x0
    loss: float = math.inf  # there, as far as it is known
    other: Arm | None = None  # the next smaller step, where its run has come as far
    silent: float = 0.0  # share of a layer's units that gradients do not reach there


@dataclass
class StepList:
    """The runs of one kind, by their place: how many times `spacing` below the edge."""

    kind: Arm
    edge: float
    spacing: float
    places: tuple[int, ...]
    arms: dict[int, Arm] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    curves: dict[int, tuple[float, ...]] = field(default_factory=dict)  # late losses, in order
    overshot: set[int] = field(default_factory=set)  # by three deviations from the start's loss
    gain: float = 0.0  # what counts as learning: a loss so far below `start`
    start: float = math.inf

    def add(self, state: PromoteState, place: int) -> Arm | None:
        """Return the run at a place, None where its value is no number to work with."""
        value = math.exp(math.log(self.edge) - place * math.log(self.spacing))
        if not 0.0 < value < math.inf:
            return None
        self.arms[place] = state.new_arm(self.kind, value)
        return self.arms[place]

    def learn(self, state: PromoteState, place: int, ended: SegmentOutcome | None) -> None:
        """Take in how the run at a place went."""
        self.losses[place] = finite_loss(ended)
        if ended is not None and ended.curve:
            self.curves[place] = tuple(late_losses(ended))
            high = state.height(0.0) + 1.5 * state.noise(ended.calls // len(ended.curve))
            if max(point.loss for point in ended.curve) > high:
                self.overshot.add(place)

    @property
    def usual(self) -> int:
        """The place where the best step mostly lies."""
        return self.places[len(self.places) // 2]

    @property
    def alike(self) -> list[int]:
        """The places whose losses are about the lowest, the most usual first."""
        bound = min(self.losses.values(), default=math.inf) + self.gain
        found = {place for place, loss in self.losses.items() if loss < bound}
        return sorted(found - self.overshot, key=lambda place: abs(place - self.usual))

    @property
    def flat(self) -> list[int]:
        """The places whose losses say nothing: several alike, where no run has learned anything.

        A run has learned where its loss is well below the start's, or below a smaller step's.
        """
        alike = self.alike
        pairs = ((large, small) for large in alike for small in alike if large < small)
        learned = self.losses and min(self.losses.values()) <= self.start - self.gain
        if learned or any(is_lower(*map(self.curves.get, pair)) for pair in pairs):
            return []
        return alike if len(alike) > 1 else []

    @property
    def best(self) -> int:
        """The place of the lowest loss; of those that say nothing, the one that is usual.

        But the largest of all where that says nothing, too: then all may be too small.
        """
        if flat := self.flat:
            largest = min(self.arms or self.losses)
            return largest if largest in flat else flat[0]
        return min(self.losses, key=lambda place: (self.losses[place], -place))

    @property
    def lowest(self) -> float:
        return self.losses[self.best]

    def comes_near(self, place: int, start: float, near: float) -> bool:
        """Return whether a run beside the best one may be better in the end.

        The beginning flatters large steps, so a smaller one may always be; a larger one may where
        it gained nearly as much.
        """
        loss = self.losses.get(place, math.inf)
        gained = start - loss > near * (start - self.lowest)
        return math.isfinite(loss) and (gained or place > self.best)

    def beyond(self, most: int) -> int | None:
        """Return the next place beyond an end of the list, where the best one is there."""
        if not self.losses or len(self.losses) >= most:
            return None
        if not described(self.kind.base).changes_step:
            return None  # the list covers the whole range
        if (flat := self.flat) and min(self.losses) not in flat:
            return None  # more of it would say nothing either
        if math.isinf(self.lowest) or self.best == max(self.losses):
            return max(self.losses) + 1
        return self.best - 1 if self.best == min(self.losses) else None

    def at_end(self, winner: Arm, most: int) -> int | None:
        """Return the place beyond the winner's, where that is at an end of all that was tried."""
        if len(self.arms) >= most or not described(self.kind.base).changes_step:
            return None
        place = next(at for at, arm in self.arms.items() if arm == winner)
        if place == min(self.arms):
            return place - 1
        return place + 1 if place == max(self.arms) else None

    def is_stuck(self, winner: Arm, loss: float, usual: Arm, options: PromoteOptions) -> bool:
        """Return whether a step smaller than the usual one has won, and learned nothing lately.

        On a plateau small steps look best, since they make the least noise.
        """
        before = [self.losses.get(at, math.inf) for at, arm in self.arms.items() if arm == winner]
        bound = max(options.stalled * sum(before), options.plateau * self.start)
        small = usual in self.arms.values() and winner.value < usual.value
        return small and loss > bound > 0.0

    def vertex(self, second: Mapping[int, float | None]) -> float:
        """Return how many places below the best of the second rung the best step may lie.

        A parabola through its loss and its neighbours', all on logarithmic scales, has its vertex
        there, at most half a place away. A neighbour without a second look is as far from the best
        one as in the first rung; where one was never tried, the best step stands.

        second: the losses of the second rung by place, None where a run did not take part.
        """
        looked = {place: loss for place, loss in second.items() if loss is not None}
        at = min(looked, key=lambda place: looked[place])
        low = min(*looked.values(), *self.losses.values())
        scale = math.log if low > 0.0 else float  # a loss that may be negative has no logarithm
        rises = []
        for place in (at - 1, at + 1):
            losses = looked if place in looked else self.losses
            if place not in losses or at not in losses:
                return 0.0
            rise = scale(losses[place]) - scale(losses[at])
            rises.append(min(max(rise, 0.0), 1e9))
        larger, smaller = rises
        return 0.5 * (larger - smaller) / ((larger + smaller) or 1.0)


def find_step(
    state: PromoteState, kinds: Sequence[Arm], extra: tuple[Task, ...]
) -> Generator[Round, Known, tuple[FinalStart | None, Known]]:
    """Yield ramp and rungs; return how the final run begins, and what became of `extra`.

    None where no run stayed finite. A budget that pays for no list begins with a single run.
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
    start = yield from _second_rung(state, lists, length)
    return start, known


def _run(state: PromoteState, arm: Arm, start: int, stop: int) -> Segment:
    power, warmup = state.options.average_power, state.options.warmup
    return Segment(arm, start, stop, save=True, warmup=warmup, averages=(power,))


# -- the ramp --------------------------------------------------------------------------------------


def edges(
    state: PromoteState, kinds: Sequence[Arm], extra: tuple[Task, ...]
) -> Generator[Round, Known, tuple[list[StepList], Known]]:
    """Yield the ramps; return a list for every kind that gives numbers to work with."""
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
            if not risen:  # the edge is beyond: the last step is the middle of the list
                value *= options.spacing ** options.places[len(options.places) // 2]
            value *= 2.0**at
            lists.append(StepList(kind, value, options.spacing, options.places))
    return lists, known


def _first_step(state: PromoteState, kind: Arm) -> float | None:
    """Return a step that could gain `first_gain` of the loss at most, to first order."""
    start, rule = state.start, described(kind.base).from_distance
    size = math.sqrt(start.gradient_square)  # of one minibatch's gradient
    if not size:
        return None
    distance = state.options.first_gain * (abs(start.value) or 1.0) / size
    value = rule(min(max(distance, 1.0 / _LARGEST), _LARGEST), size, start.parameters, 1)
    return value if 0.0 < value < math.inf else None


def last_doubling(losses: Sequence[float], usual: float, risen: float) -> tuple[int, bool]:
    """Return after which doubling the loss rose for good; where it never did, False, too.

    Where it never did, the last doubling that pays: the one that reached nine tenths of the gain.

    A loss has risen where it is above the first ones, whose steps are tiny, above what is `usual`
    at x0 and above `risen` times the lowest so far. It has to do so twice in a row, or at the very
    end: one minibatch may be unlucky. A loss that is bounded, or a start that is far off, is never
    passed: then the loss has risen where it stays above half of what was gained, or above `risen`
    times the lowest.
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
    """Return the list of an optimizer without a ramp: the range of distances, evenly spread."""
    low, high = distance_range(state)
    decades = math.log(high) - math.log(low)
    count = math.ceil(decades / math.log(state.options.spacing))
    count = min(max(1, count), state.options.most_places)
    rule, start = described(kind.base).from_distance, state.start
    top = rule(high, start.gradient_norm, start.parameters, state.spec.budget)
    spacing = math.exp(decades / count) if decades > 0.0 else state.options.spacing
    return StepList(kind, top, spacing, tuple(range(count)))


def distance_range(state: PromoteState) -> tuple[float, float]:
    r"""Return the (low, high) of the distances worth trying.

    Low is $d_\epsilon$; GRASP-NC has $F_\epsilon$ instead, and no point nearer than
    $F_\epsilon/|g_0|$ can be lower by $F_\epsilon$ to first order. High is the paper's
    $|g_0| T^2 / L_\epsilon$ (Algorithm 3, Option I).
    """
    method, norm = state.spec.method, state.start.gradient_norm
    low = getattr(method, "d_eps", None)
    if low is None:
        low = getattr(method, "F_eps", _DEFAULT_EPS) / norm
    low = min(max(low, 1.0 / _LARGEST), _LARGEST)  # a norm of any size gives numbers to work with
    smoothness = getattr(method, "L_eps", _DEFAULT_EPS)
    high = bounds.distance_max(norm, state.spec.budget, low, smoothness)
    return low, min(high, _LARGEST)


# -- the rungs -------------------------------------------------------------------------------------


def is_lower(losses: Sequence[float] | None, others: Sequence[float] | None) -> bool:
    """Return whether losses are lower than others on the same minibatches: two standard errors."""
    less = [b - a for a, b in zip(losses or (), others or (), strict=False)]
    return len(less) > 1 and fmean(less) > 2.0 * stdev(less) / math.sqrt(len(less))


def _wait(state: PromoteState, lists: list[StepList], length: int) -> Generator[Round, Known, int]:
    """Yield parts twice as long while no run has learned anything; return where the runs end.

    Networks that begin on a plateau look alike at every step for tens or hundreds of calls. The
    three most usual runs of each kind go on, for a share of what is left at a time.
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
        state.discard = tuple(used)
        length *= 2
        for item in lists:
            item.losses, item.curves, item.gain = {}, {}, state.noise(length // 4)
        for item, place in runs:
            item.learn(state, place, found.get(item.arms[place].index))
    return length


def _affordable(state: PromoteState, lists: list[StepList], length: int) -> list[StepList]:
    """Return the lists of which a first rung takes at most a third of what is left."""
    for count in range(len(lists), 0, -1):
        if sum(len(item.places) for item in lists[:count]) * length <= state.left // 3:
            return lists[:count]
    if lists and (most := state.left // 3 // length) > 1:  # every so many of the first
        places = lists[0].places
        lists[0].places = places[:: -(-len(places) // most)]
        return lists[:1]
    return []


def _second_rung(
    state: PromoteState, lists: list[StepList], length: int
) -> Generator[Round, Known, FinalStart]:
    """Yield the longer runs of the best; return the winner, with the step of the long run."""
    options, first = state.options, lists[0]
    chosen = [item.arms[item.best] for item in lists]
    for place in (first.best - 1, first.best + 1):
        if first.comes_near(place, state.start.value, options.near):
            chosen.insert(1, first.arms[place])
    end = max(length + 1, int(options.second_length * length))
    chosen = chosen[: max(1, state.left // 3 // (end - length))]
    ended = [state_key(item.arms[at].index, length) for item in lists for at in item.losses]
    # The usual step stays at hand, where the list does not say that another one is better.
    at_hand = len(chosen) > 1 and first.usual in first.alike
    usual = first.arms[first.usual] if at_hand else None
    kept = {state_key(arm.index, length) for arm in (*chosen, usual) if arm is not None}
    state.discard = tuple(key for key in ended if key not in kept)
    best = chosen[0]
    state.leader = state_key(best.index, length)
    if len(chosen) == 1:
        return FinalStart(best, best, state.leader, first.lowest)
    found, _ = yield from state.train("second", [_run(state, arm, length, end) for arm in chosen])
    losses = {arm: finite_loss(found.get(arm.index)) for arm in chosen}
    alive = [arm for arm in chosen if math.isfinite(losses[arm])]
    if not alive:
        state.discard = tuple(kept - {state.leader})
        return FinalStart(best, best, state.leader, first.lowest)
    winner, tried = _leading(lists, alive, losses)
    while (beyond := tried.at_end(winner, options.most_places)) is not None:
        further = tried.add(state, beyond) if end <= state.left // 6 else None
        if further is None:
            break
        state.leader = state_key(winner.index, end)
        more, _ = yield from state.train(f"end{further.index}", [_run(state, further, 0, end)])
        found |= more
        losses[further] = finite_loss(found.get(further.index))
        alive += [further] if math.isfinite(losses[further]) else []
        winner, tried = _leading(lists, alive, losses)
    ends = {state_key(arm.index, end) for arm in alive}
    held = usual in alive or usual not in chosen
    if usual is not None and held and tried.is_stuck(winner, losses[winner], usual, options):
        state.leader = state_key(usual.index, end if usual in chosen else length)
        state.discard = tuple((kept | ends) - {state.leader})
        return FinalStart(usual, usual, state.leader, losses[winner])
    state.leader = state_key(winner.index, end)
    smaller = [arm for arm in tried.arms.values() if arm in alive and arm.value < winner.value]
    other = max(smaller, key=lambda arm: arm.value, default=None)
    ends -= {state_key(arm.index, end) for arm in (winner, other) if arm is not None}
    state.discard = (*kept, *ends)
    arm = winner
    if options.interpolate and described(winner.base).changes_step:
        moved = tried.vertex({place: losses.get(arm) for place, arm in tried.arms.items()})
        arm = state.new_arm(winner, winner.value * tried.spacing**-moved)
    silent = found[winner.index].silent
    return FinalStart(arm, winner, state.leader, losses[winner], other, silent)


def _leading(
    lists: list[StepList], arms: Sequence[Arm], losses: Mapping[Arm, float]
) -> tuple[Arm, StepList]:
    """Return the best run and the list that it belongs to."""
    winner = min(arms, key=lambda arm: losses[arm])
    return winner, next(item for item in lists if winner in item.arms.values())
