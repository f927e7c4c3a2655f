"""The state of the default schedule: rebuilt by replay, never saved."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from grasp_tune.core.checkpoint_keys import START, Key
from grasp_tune.core.ensemble import Tally, paired_samples, tallied
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import Known, Round, SweepSpec, score_tasks, scores, train_tasks
from grasp_tune.core.tasks import Arm, ProbeOutcome, Segment, SegmentOutcome, Task, TrainOutcome
from grasp_tune.schedules.promote_options import PromoteOptions


@dataclass
class PromoteState:
    """What the schedule knows and has left, from the end of the probe on."""

    options: PromoteOptions
    spec: SweepSpec
    start: ProbeOutcome
    plan: Plan
    left: int  # oracle calls not yet spent or reserved
    next_run: int = 1  # the first unused run number
    sampled: int = 0  # samples of the ensemble's stream used so far
    leader: Key = START
    discard: tuple[Key, ...] = ()  # checkpoints that the next round discards
    notes: list[str] = field(default_factory=list)

    @property
    def samples_freely(self) -> bool:
        """Whether fresh samples may be drawn before the final choice."""
        return not self.spec.method.exact and self.spec.ensemble != "window"

    def height(self, deviations: float) -> float:
        """Return the start's loss plus so many standard deviations of a minibatch's loss."""
        variance = self.start.value_square - self.start.value * self.start.value
        found = self.start.value + deviations * math.sqrt(max(0.0, variance))
        return found if math.isfinite(found) else self.start.value

    def noise(self, count: int) -> float:
        """Return two standard deviations of the mean loss of so many minibatches."""
        return (self.height(2.0) - self.start.value) / math.sqrt(max(1, count))

    def ceiling(self, times: float) -> float | None:
        """Return `times` the start's loss and its deviation; None if that is no finite bound."""
        height = self.height(times) + (times - 1.0) * abs(self.start.value)
        return height if self.start.value < height < math.inf else None

    def new_arm(self, like: Arm, value: float) -> Arm:
        """Return an arm like another one, with a new number and this value."""
        self.next_run += 1
        return like.with_value(self.next_run - 1, value)

    def round(self, tasks: tuple[Task, ...]) -> Round:
        """Return the next round, which also discards the checkpoints of `discard`."""
        discard, self.discard = self.discard, ()
        return Round(tasks, plan=self.plan, leader=self.leader, discard=discard)

    def train(
        self, name: str, segments: Sequence[Segment], extra: tuple[Task, ...] = ()
    ) -> Generator[Round, Known, tuple[dict[int, SegmentOutcome], Known]]:
        """Yield the segments; return each run's outcome by its number, and all outcomes."""
        tasks = train_tasks(name, segments, 0, exact=self.spec.method.exact)
        known = yield self.round((*tasks, *extra))
        told = [known[task.id] for task in tasks]
        runs = [item for out in told if isinstance(out, TrainOutcome) for item in out.segments]
        self.left -= sum(item.calls for item in runs)
        return {item.arm: item for item in runs}, known

    def fresh_losses(
        self, name: str, keys: Sequence[Key], count: int, first: int | None = None
    ) -> Generator[Round, Known, dict[Key, Tally]]:
        """Yield `count` fresh samples, the same for every point; return each point's tally.

        Points whose samples were lost are left out.

        first: number of the first sample, to repeat those of an earlier call; None: new ones.
        """
        first = self.sampled if first is None else first
        samples = paired_samples(map(str, keys), first, first + count)
        self.sampled = max(self.sampled, first + count)
        tasks = score_tasks(name, samples, "value")
        known = yield self.round(tasks)
        found = scores(tasks, known)
        self.left -= sum(item.count for item in found)
        tallies = tallied(found)
        return {key: tallies[str(key)] for key in keys if str(key) in tallies}


def finite_loss(item: SegmentOutcome | None) -> float:
    """Return the mean loss of a segment's later half; infinite if it was lost or diverged."""
    if item is None or not item.finite or not math.isfinite(item.loss):
        return math.inf
    late = late_losses(item)
    return sum(late) / len(late) if late else item.loss


def late_losses(item: SegmentOutcome) -> list[float]:
    """Return the losses of a segment's later half."""
    return [point.loss for point in item.curve[len(item.curve) // 2 :]]
