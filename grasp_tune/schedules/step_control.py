"""How large the step of the final stretch is: what its parts so far say about the next one.

Three things happen. A loss that jumps has the part undone and the step divided. Where the losses of
a run are above the loss at the average of its points two parts ago, noise is what keeps it from
falling, and the step is halved once. Where nearly all of the loss is gone and it still falls, as on
data that the model can fit without error, larger steps are tried for as long as they help.
"""

import math
from dataclasses import dataclass

from grasp_tune.core.tasks import Arm
from grasp_tune.schedules.rungs import Stand

JUMP = 2.0  # a part whose loss is so many times the part before's is undone
BACKOFF = 4.0  # and its step divided by this
NOISY = 1.05  # losses are above the average's where they are so many times it
LATER = 2  # the part whose losses are compared with the average of the first one, part 0
CALMER = 2.0  # the step is then divided by this
SOLVED = 1e-3  # share of the start's loss below which nearly all of it is gone
FALLING = 0.8  # a loss that still falls is at most this share of the part before's
BOLDER = 4.0  # the step is then multiplied by this, by its root where that fails, and so on
TIMID = 1.3  # until that is less than this


@dataclass
class Pace:
    """The step of the part that comes next. `paced` is False where it only ever backs off."""

    stand: Stand
    arm: Arm
    paced: bool = False
    average: float = math.nan  # loss at the average of the first part
    before: float = math.inf  # loss of the last part that was not undone
    dared: bool = False  # the step has just grown
    boldness: float = BOLDER

    def holds(self, loss: float, usual: float | None = None) -> bool:
        """Return whether a part that ended at this loss stands; any finite first one does.

        `usual` is the loss of most of its minibatches: a mean that a few of them have raised is no
        jump.
        """
        if self.dared:
            return loss < self.before
        low = loss if usual is None or loss < usual else usual
        return math.isfinite(loss) and low < jump_above(self.before, self.stand.start.value)

    def go_on(self, part: int, loss: float) -> None:
        """Choose the next step after a part that stands."""
        falls, self.dared = loss < FALLING * self.before, False
        self.before = loss
        if not self.paced or not part:
            return
        if part == LATER and loss - self.average > (NOISY - 1.0) * abs(self.average):
            self._change(1.0 / CALMER)
        elif falls and 0.0 < loss < SOLVED * self.stand.start.value and self.boldness > TIMID:
            self._change(self.boldness)
            self.dared = True

    def go_back(self) -> None:
        """Choose the next step after a part that was undone."""
        if not self.dared:
            self._change(1.0 / BACKOFF)
            return
        self._change(1.0 / self.boldness)
        self.boldness, self.dared = math.sqrt(self.boldness), False

    def _change(self, factor: float) -> None:
        self.arm = self.stand.new_arm(self.arm, self.arm.value * factor)


def jump_above(before: float, start: float) -> float:
    """Return the loss at which a part has made it jump, after a part that ended at `before`.

    A loss that may be negative has no zero to be a multiple of: it then jumps where it loses all
    that was gained since the start.
    """
    if before > 0.0:
        return JUMP * before
    return before + max(-before, start - before)
