"""A stand-in for the torch side, outcomes that depend on the task alone, and whole searches."""

import math
from collections.abc import Callable

from grasp_tune.core.random_streams import address
from grasp_tune.core.search import Search, Step
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Outcome,
    Point,
    ProbeOutcome,
    ProbeTask,
    SampleOutcome,
    ScoreOutcome,
    Segment,
    SegmentOutcome,
    Task,
    TrainOutcome,
    TrainTask,
)

ORIGIN = "0123456789abcdef"
BEST = 0.3  # the step size or distance at which a simulated run ends lowest
DIVERGES_ABOVE = 1e3


def unit(*path: str | int) -> float:
    """A number in [0, 1) that belongs to an address."""
    return address(0, *path) / 2**128


def loss_of(value: float, calls: int) -> float:
    """The loss of a run with this value after so many calls: lowest near BEST, falling in calls."""
    return 0.1 + 0.05 * abs(math.log10(value / BEST)) + 2.0 / (1.0 + calls) ** 0.5


def answer(task: Task) -> Outcome:
    """The outcome of a task, the same each time."""
    if isinstance(task, ProbeTask):
        gradients = task.gradients[1] - task.gradients[0]
        values = task.values[1] - task.values[0]
        count = max(gradients, 1) if not task.merge else 8
        return ProbeOutcome(task.calls, ORIGIN, count, 1.3, 2.0, 650, max(values, count), 2.3, 5.4)
    if isinstance(task, TrainTask):
        results = []
        for segment in task.segments:
            finite = segment.arm.value < DIVERGES_ABOVE
            noise = 0.01 * unit("train", segment.arm.index, segment.stop)
            loss = loss_of(segment.arm.value, segment.stop) + noise if finite else math.nan
            calls = segment.calls if finite else 1
            curve = (Point(segment.start + calls, loss, loss),)
            index = segment.arm.index
            results.append(SegmentOutcome(index, calls, finite, loss, loss, loss, curve))
        return TrainOutcome(sum(item.calls for item in results), ORIGIN, tuple(results))
    samples = []
    for sample in task.samples:
        count = sample.stop - sample.start
        mean = 0.5 + unit("score", sample.key)
        samples.append(SampleOutcome(sample.key, count, mean, mean * mean + 0.1))
    return ScoreOutcome(task.calls, ORIGIN, tuple(samples))


def run(spec: SweepSpec, reply: Callable[[Task], Outcome] = answer) -> tuple[Search, list[Task]]:
    """Run a search to its end, one task after the other."""
    search, tasks = Search(spec), []
    while not isinstance(step := search.ask(), Step):
        tasks.append(step)
        search.tell(step, reply(step))
    return search, tasks


def segments(tasks: list[Task], name: str) -> list[Segment]:
    """The segments of the training tasks whose id begins with `name`."""
    found = [task for task in tasks if isinstance(task, TrainTask) and task.id.startswith(name)]
    return [segment for task in found for segment in task.segments]


def checked_run(spec: SweepSpec, reply: Callable[[Task], Outcome]) -> tuple[Search, list[Task]]:
    """Run a search to its end; every checkpoint that is read must have been left for it."""
    search, tasks, there = Search(spec), list[Task](), set[str]()
    while not isinstance(step := search.ask(), Step):
        assert set(step.reads) - {"x0"} <= there, step.id
        tasks.append(step)
        there.update(step.writes)
        search.tell(step, reply(step))
        there.difference_update(search.discardable())
    assert search.choice is not None and search.choice.key in there | {"x0"}
    return search, tasks
