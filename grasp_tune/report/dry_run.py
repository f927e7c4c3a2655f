"""A sweep without training: the search is real, the outcomes and the seconds are made up.

Here every run behaves: the loss falls with the calls and is lowest in the middle of the range. So
the phases and their calls are typical; that the calls never exceed the budget is certain. Tasks are
handed to workers by the rule of the real executors.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from grasp_tune.core import tasks as t
from grasp_tune.core.checkpoint_keys import place_of
from grasp_tune.core.plan import Plan
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.runtime.lane_sharing import LaneSharing, lanes_of

_ORIGIN = "dry run"


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the search: tasks that could all run at the same time."""

    tasks: tuple[t.Task, ...]
    stored: int = 0  # checkpoints that exist when it ends, before anything is removed
    states: int = 0  # those of them from which a run can go on

    @property
    def phase(self) -> str:
        return self.tasks[0].phase

    @property
    def calls(self) -> int:
        return sum(task.calls for task in self.tasks)

    @property
    def segments(self) -> tuple[t.Segment, ...]:
        trains = (task for task in self.tasks if isinstance(task, t.TrainTask))
        return tuple(segment for task in trains for segment in task.segments)


@dataclass(frozen=True, slots=True)
class DryRun:
    """A sweep from its first to its last round."""

    plan: Plan | None
    rounds: tuple[Round, ...]
    depth: int = 0  # steps on the longest chain of steps that must follow each other

    @property
    def calls(self) -> int:
        return sum(item.calls for item in self.rounds)

    def calls_of(self, phase: str) -> int:
        return sum(item.calls for item in self.rounds if item.phase == phase)

    @property
    def segments(self) -> tuple[t.Segment, ...]:
        return tuple(segment for item in self.rounds for segment in item.segments)

    @property
    def values(self) -> tuple[float, ...]:
        """The step sizes, radii or distances that runs start with, increasing."""
        return tuple(sorted({segment.arm.value for segment in self.segments}))

    @property
    def bases(self) -> tuple[str, ...]:
        """The optimizers that run, in the order in which they come up."""
        return tuple(dict.fromkeys(segment.arm.base for segment in self.segments))


def start_point(grad_norm: float, value: float, parameters: int = 1) -> t.ProbeOutcome:
    """What a probe sees at a start point of which nothing else is known."""
    return t.ProbeOutcome(1, "", 1, grad_norm, grad_norm**2, parameters, 1, value, value**2)


def dry_run(
    spec: SweepSpec, start: t.ProbeOutcome, known: Mapping[str, t.Outcome] | None = None
) -> DryRun:
    """The rounds of a sweep from a start point; raises what the search raises (BudgetTooSmall).

    known: outcomes of a sweep that was run, by task; only those that are missing are made up.
    """
    search, told, rounds, kept = Search(spec), known or {}, list[Round](), set[str]()
    while tasks := search.round_tasks:
        kept.update(key for task in tasks for key in task.writes)
        rounds.append(Round(tasks, len(kept), sum(key.endswith("-state") for key in kept)))
        logs = [math.log(segment.arm.value) for segment in rounds[-1].segments]
        middle = sum(logs) / len(logs) if logs else 0.0
        for task in tasks:
            search.tell(task, told.get(task.id) or _made_up(task, start, middle))
        kept.difference_update(search.discardable())
    return DryRun(search.plan, tuple(rounds), search.depth)


def _made_up(task: t.Task, start: t.ProbeOutcome, middle: float) -> t.Outcome:
    """An outcome of the task; `middle` is the logarithm of the value that does best."""
    norm, value = start.gradient_norm, start.value
    if isinstance(task, t.ProbeTask):
        gradients = max(1, task.gradients[1] - task.gradients[0])
        values = task.values[1] - task.values[0] or gradients
        seen = replace(start, gradient_square=norm**2, value_square=value**2, origin=_ORIGIN)
        return replace(seen, calls=task.calls, gradients=gradients, values=values)
    if isinstance(task, t.TrainTask):
        results = []
        for part in task.segments:
            away = 1.0 - 0.5 * math.exp(-abs(math.log(part.arm.value) - middle))
            loss, end = value * away / (1.0 + part.stop) ** 0.1, norm * away
            results.append(t.SegmentOutcome(part.arm.index, part.calls, True, loss, loss, end))
        return t.TrainOutcome(task.calls, _ORIGIN, tuple(results))
    samples = []
    for item in task.samples:
        age = place_of(item.key)[1] if "look" in task.id else 0  # a run that gets better goes on
        mean = value / 2 / (1.0 + age) ** 0.1
        samples.append(t.SampleOutcome(item.key, item.stop - item.start, mean, value**2))
    return t.ScoreOutcome(task.calls, _ORIGIN, tuple(samples))


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that things take."""

    call: float  # an oracle call
    exchange: float = 0.0  # of the gradients of one step between two workers
    start: float = 0.0  # from the beginning until workers take tasks
    task: float = 0.0  # between two tasks of a worker

    def seconds(self, task: t.Task, workers: int) -> float:
        """Return how long a task takes with so many workers on its lanes."""
        lanes = lanes_of(task)
        seconds = self.task + self.call * task.calls * -(-lanes // workers) / lanes
        # Gradients go around a ring, so that their time grows with the number of workers.
        if workers > 1 and isinstance(task, t.TrainTask):
            steps = max(-(-segment.calls // segment.lanes) for segment in task.segments)
            seconds += steps * self.exchange * (workers - 1)
        return seconds


@dataclass(frozen=True, slots=True)
class Simulation:
    """A sweep on a number of workers."""

    seconds: float  # wall-clock in all
    rounds: tuple[float, ...]  # seconds of each
    share: float  # worker-seconds busy over held


def simulate(run: DryRun, costs: Costs, workers: int) -> Simulation:
    """Return how the sweep would go on so many workers."""
    sharing, rounds, busy = LaneSharing(), list[float](), 0.0
    for item in run.rounds:
        waiting, idle, now = list(item.tasks), workers, 0.0
        running: list[tuple[float, int]] = []  # (when it ends, its workers)
        while waiting or running:
            handed, waiting = waiting[:idle], waiting[idle:]
            for task, size in zip(handed, sharing.shares(handed, idle), strict=True):
                seconds = costs.seconds(task, size)
                heapq.heappush(running, (now + seconds, size))
                idle -= size
                busy += size * seconds
                if isinstance(task, t.TrainTask):
                    sharing.learn(size, task.calls, seconds)
            now, size = heapq.heappop(running)
            idle += size
        rounds.append(now)
    total = costs.start + sum(rounds)
    return Simulation(total, tuple(rounds), busy / (workers * total) if total else 1.0)
