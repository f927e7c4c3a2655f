"""How large the step of the final run is: what its parts so far say about the next one.

Three things happen. A loss that jumps has the part undone and the step divided. Where the losses of
a run are above the loss at the average of its points two parts ago, noise is what keeps it from
falling, and the step is halved once. Where nearly all of the loss is gone and it still falls, as on
data that the model can fit without error, larger steps are tried for as long as they help.
"""

import math
from dataclasses import dataclass, field

from grasp_tune.core.tasks import Arm
from grasp_tune.schedules.promote_state import PromoteState


@dataclass
class StepControl:
    """The step of the part that comes next. Unless `adapts`, it only ever backs off."""

    state: PromoteState
    arm: Arm
    adapts: bool = False
    average: float = math.nan  # loss at the average of the first part
    before: float = math.inf  # loss of the last part that was not undone
    grown: bool = False  # the step has just grown
    lanes: int = 1  # minibatches averaged in a step
    growth: float = field(init=False)  # the next factor to try

    def __post_init__(self) -> None:
        self.growth = self.state.options.growth

    def accepts(self, loss: float, median: float | None = None) -> bool:
        """Return whether a part that ended at this loss stands; any finite first one does.

        median: the loss of most of its minibatches; a mean that a few of them have raised is no
            jump.
        """
        if self.grown:
            return loss < self.before
        low = loss if median is None or loss < median else median
        bound = jump_above(self.before, self.state.start.value, self.state.options.jump)
        return math.isfinite(loss) and low < bound

    def go_on(self, part: int, loss: float) -> None:
        """Choose the next step after a part that stands."""
        options = self.state.options
        falls, self.grown = loss < options.falling * self.before, False
        slow = 0.0 < options.slow * self.before < loss
        self.before = loss
        if not self.adapts or not part:
            return
        excess = loss - self.average
        if part == options.noisy_part and excess > (options.noisy - 1.0) * abs(self.average):
            self._change(1.0 / options.noise_divisor)
        elif (
            falls
            and 0.0 < loss < options.solved * self.state.start.value
            and self.growth > options.least_growth
        ):
            self._change(self.growth)
            self.grown = True
        if self.state.spec.budget >= options.short_budget:  # else parts are too short to tell
            self._take_lanes(min(options.most_lanes, 2 * self.lanes) if slow else self.lanes)
            self._take_lanes(max(1, self.lanes // 2) if falls else self.lanes)

    def _take_lanes(self, lanes: int) -> None:
        if lanes != self.lanes and not self.state.spec.method.exact:
            self._change(math.sqrt(lanes / self.lanes))
            self.lanes = lanes

    def go_back(self) -> None:
        """Choose the next step after a part that was undone."""
        if not self.grown:
            self._change(1.0 / self.state.options.backoff)
            return
        self._change(1.0 / self.growth)
        self.growth, self.grown = math.sqrt(self.growth), False

    def _change(self, factor: float) -> None:
        self.arm = self.state.new_arm(self.arm, self.arm.value * factor)


def jump_above(before: float, start: float, jump: float) -> float:
    """Return the loss at which a part has made it jump, after a part that ended at `before`.

    A loss that may be negative has no zero to be a multiple of: it then jumps where it loses all
    that was gained since the start.
    """
    if before > 0.0:
        return jump * before
    return before + max(-before, start - before)
