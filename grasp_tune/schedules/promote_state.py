"""Where the default schedule stands: rebuilt by replay, never saved."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from grasp_tune.core.checkpoint_keys import X0, Key
from grasp_tune.core.plan import Plan
from grasp_tune.core.rounds import Known, Round, score_tasks
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome, Sample, SampleOutcome, ScoreOutcome, Task
from grasp_tune.schedules.promote_options import PromoteOptions


@dataclass
class PromoteState:
    """What is known and what is left, from the end of the probe on."""

    options: PromoteOptions
    spec: SweepSpec
    start: ProbeOutcome
    plan: Plan
    left: int  # oracle calls not yet spent or promised
    next_run: int = 1  # the first run number that nobody has used
    sampled: int = 0  # samples of the ensemble's stream used so far
    leader: Key = X0
    begun: tuple[Key, ...] = ()  # states from which the runs of this rung began
    discard: tuple[Key, ...] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def samples_freely(self) -> bool:
        """Whether fresh samples may be drawn before the last choice."""
        return not self.spec.method.exact and self.spec.ensemble != "window"

    def ceiling(self) -> float | None:
        """Return the loss above which a run has diverged, None where the start gives no scale."""
        value, times = self.start.value, self.options.diverged
        spread = self.start.value_square - value * value
        height = (times - 1.0) * abs(value) + times * math.sqrt(max(0.0, spread))
        return value + height if height > 0.0 and math.isfinite(height) else None

    def new_arm(self, like: Arm, value: float) -> Arm:
        """Return a run with a number of its own."""
        self.next_run += 1
        return like.with_value(self.next_run - 1, value)

    def round(self, tasks: tuple[Task, ...], discard: tuple[Key, ...] = ()) -> Round:
        """Return the next round."""
        return Round(tasks, plan=self.plan, leader=self.leader, discard=discard)

    def fresh_losses(
        self, name: str, keys: Sequence[Key], count: int, blocks: int = 1
    ) -> Generator[Round, Known, list[SampleOutcome]]:
        """Yield `count` fresh samples, the same ones for every point; return what each block gave.

        Points whose samples were lost are left out.
        """
        ends = [self.sampled + count * at // blocks for at in range(blocks + 1)]
        self.sampled += count
        samples = [Sample(str(key), *block) for key in keys for block in pairwise(ends)]
        tasks = score_tasks(name, samples, "value")
        known = yield self.round(tasks)
        told = [known[task.id] for task in tasks]
        found = [out for out in told if isinstance(out, ScoreOutcome)]
        self.left -= sum(out.calls for out in found)
        return [item for out in found for item in out.samples]
