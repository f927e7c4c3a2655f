"""The runs of one kind, with step sizes a factor apart, and what their losses say about them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from grasp_tune.core.checkpoint_keys import Key
from grasp_tune.core.tasks import Arm, SegmentOutcome
from grasp_tune.optimizers.registry import described
from grasp_tune.schedules.promote_options import PromoteOptions
from grasp_tune.schedules.promote_state import PromoteState, finite_loss, late_losses


@dataclass(frozen=True, slots=True)
class FinalStart:
    """Where the final run begins, and with which step size."""

    arm: Arm  # of the final run
    owner: Arm  # the run whose state it starts from
    state: Key | None = None  # None: x0
    loss: float = math.inf  # at that state, if known
    other: Arm | None = None  # the next smaller step size, if its run got as far
    silent: float = 0.0  # share of a layer's units without gradients at that state


def is_lower(losses: Sequence[float] | None, others: Sequence[float] | None) -> bool:
    """Return whether losses are two standard errors below others on the same minibatches."""
    less = [b - a for a, b in zip(losses or (), others or (), strict=False)]
    return len(less) > 1 and fmean(less) > 2.0 * stdev(less) / math.sqrt(len(less))


@dataclass
class StepList:
    """The runs of one kind by place; the value at place k is edge / spacing ** k."""

    kind: Arm  # an arm of this kind
    edge: float  # value at place 0
    spacing: float  # factor between neighbours
    places: tuple[int, ...]  # of the first runs
    arms: dict[int, Arm] = field(default_factory=dict)  # by place, like the next three
    losses: dict[int, float] = field(default_factory=dict)  # mean loss of the later half
    curves: dict[int, tuple[float, ...]] = field(default_factory=dict)  # late losses, in order
    overshot: set[int] = field(default_factory=set)  # rose three deviations above the start's loss
    gain: float = 0.0  # a loss this far below `start` counts as learning
    start: float = math.inf  # loss at x0

    def add(self, state: PromoteState, place: int) -> Arm | None:
        """Add a run at a place and return it; None if its value is not positive and finite."""
        value = math.exp(math.log(self.edge) - place * math.log(self.spacing))
        if not 0.0 < value < math.inf:
            return None
        self.arms[place] = state.new_arm(self.kind, value)
        return self.arms[place]

    def learn(self, state: PromoteState, place: int, ended: SegmentOutcome | None) -> None:
        """Record the outcome of the run at a place."""
        self.losses[place] = finite_loss(ended)
        if ended is not None and ended.curve:
            self.curves[place] = tuple(late_losses(ended))
            high = state.start.value + 1.5 * state.noise(ended.calls // len(ended.curve))
            if max(point.loss for point in ended.curve) > high:
                self.overshot.add(place)

    @property
    def usual(self) -> int:
        """The place where the best step size usually is."""
        return self.places[len(self.places) // 2]

    @property
    def alike(self) -> list[int]:
        """The places with about the lowest loss, those nearest to the usual one first."""
        bound = min(self.losses.values(), default=math.inf) + self.gain
        found = {place for place, loss in self.losses.items() if loss < bound}
        return sorted(found - self.overshot, key=lambda place: abs(place - self.usual))

    @property
    def flat(self) -> list[int]:
        """The places with about the lowest loss if no run has learned anything; else none.

        A run has learned if its loss is well below the start's, or below a smaller step size's.
        """
        alike = self.alike
        pairs = ((large, small) for large in alike for small in alike if large < small)
        learned = self.losses and min(self.losses.values()) <= self.start - self.gain
        if learned or any(is_lower(*map(self.curves.get, pair)) for pair in pairs):
            return []
        return alike if len(alike) > 1 else []

    @property
    def best(self) -> int:
        """The place of the lowest loss; if there are flat ones, the most usual of them.

        If the largest step size is flat, it is that one: all may be too small.
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

        The beginning favours large step sizes, so a smaller one always may; a larger one only if it
        gained nearly as much.
        """
        loss = self.losses.get(place, math.inf)
        gained = start - loss > near * (start - self.lowest)
        return math.isfinite(loss) and (gained or place > self.best)

    def beyond(self, most: int) -> int | None:
        """Return the place beyond the end of the list if the best one is at that end."""
        if not self.losses or len(self.losses) >= most:
            return None
        if not described(self.kind.base).changes_step:
            return None  # the list covers the whole range
        if (flat := self.flat) and min(self.losses) not in flat:
            return None  # more of it would not help
        if math.isinf(self.lowest) or self.best == max(self.losses):
            return max(self.losses) + 1
        return self.best - 1 if self.best == min(self.losses) else None

    def at_end(self, winner: Arm, most: int) -> int | None:
        """Return the place beyond the winner's if that is at an end of all places tried."""
        if len(self.arms) >= most or not described(self.kind.base).changes_step:
            return None
        place = next(at for at, arm in self.arms.items() if arm == winner)
        if place == min(self.arms):
            return place - 1
        return place + 1 if place == max(self.arms) else None

    def is_stuck(self, winner: Arm, loss: float, usual: Arm, options: PromoteOptions) -> bool:
        """Return whether a step size smaller than the usual one won, but learned nothing lately.

        On a plateau small step sizes look best, since they make the least noise.
        """
        before = [self.losses.get(at, math.inf) for at, arm in self.arms.items() if arm == winner]
        bound = max(options.stalled * sum(before), options.plateau * self.start)
        small = usual in self.arms.values() and winner.value < usual.value
        return small and loss > bound > 0.0

    def vertex(self, second: Mapping[int, float | None]) -> float:
        """Return how many places below the best of the second rung to put the step size.

        This is the vertex of a parabola through the logarithms of its loss and its neighbours', at
        most half a place away. A neighbour that was not run again differs from the best as in the
        first rung; 0 if one was never tried.

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
