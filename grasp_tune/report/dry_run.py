"""A sweep without training: the search is real, the outcomes are made up.

What a schedule does depends on what its runs report. Here every run behaves: the loss falls with
the calls and is lowest in the middle of the range. So the phases and their calls are typical; that
the calls never exceed the budget is certain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grasp_tune.core.checkpoint_keys import Key
from grasp_tune.core.plan import Plan
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Outcome,
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

_ORIGIN = "dry run"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What is known of the start point: measured, or assumed."""

    grad_norm: float  # of the mean gradient
    value: float  # the mean loss
    parameters: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the search: tasks that could all run at the same time."""

    phase: str  # "probe", "train", "score"
    tasks: tuple[Task, ...]
    calls: int
    stored: int  # checkpoints that exist when it ends, before anything is removed
    states: int  # those of them from which a run can go on

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of runs that are trained in it."""
        return tuple(s for t in self.tasks if isinstance(t, TrainTask) for s in t.segments)


@dataclass(frozen=True, slots=True)
class DryRun:
    """A sweep from its first to its last round."""

    plan: Plan | None
    rounds: tuple[Round, ...]
    depth: int = 0  # steps on the longest chain of steps that must follow each other

    @property
    def calls(self) -> int:
        """Oracle calls in all."""
        return sum(item.calls for item in self.rounds)

    def calls_of(self, phase: str) -> int:
        """Oracle calls of one phase."""
        return sum(item.calls for item in self.rounds if item.phase == phase)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of runs, in the order in which they are trained."""
        return tuple(segment for item in self.rounds for segment in item.segments)

    @property
    def values(self) -> tuple[float, ...]:
        """The step sizes, radii or distances that runs start with, increasing."""
        return tuple(sorted({segment.arm.value for segment in self.segments}))

    @property
    def bases(self) -> tuple[str, ...]:
        """The optimizers that run, in the order in which they come up."""
        return tuple(dict.fromkeys(segment.arm.base for segment in self.segments))


def dry_run(
    spec: SweepSpec, start: StartPoint, known: Mapping[str, Outcome] | None = None
) -> DryRun:
    """The rounds of a sweep from a start point; raises what the search raises, such as
    BudgetTooSmall.

    known: outcomes of a sweep that was run, by task; only those that are missing are made up.
    """
    told = known or {}
    search = Search(spec)
    rounds: list[Round] = []
    kept: set[str] = set()
    while tasks := search.round_tasks:
        kept.update(key for task in tasks for key in task.writes)
        states = sum(key.endswith("-state") for key in kept)
        calls = sum(task.calls for task in tasks)
        rounds.append(Round(tasks[0].phase, tasks, calls, len(kept), states))
        logs = [math.log(segment.arm.value) for segment in rounds[-1].segments]
        middle = sum(logs) / len(logs) if logs else 0.0
        for task in tasks:
            search.tell(task, told.get(task.id) or _made_up(task, start, middle))
        kept.difference_update(search.discardable())
    return DryRun(search.plan, tuple(rounds), search.depth)


def _made_up(task: Task, start: StartPoint, middle: float) -> Outcome:
    """An outcome of the task; `middle` is the logarithm of the value that does best."""
    if isinstance(task, ProbeTask):
        gradients = max(1, task.gradients[1] - task.gradients[0])
        values = task.values[1] - task.values[0] or gradients
        return ProbeOutcome(
            calls=task.calls,
            origin=_ORIGIN,
            gradients=gradients,
            gradient_norm=start.grad_norm,
            gradient_square=start.grad_norm**2,
            parameters=start.parameters,
            values=values,
            value=start.value,
            value_square=start.value**2,
        )
    if isinstance(task, TrainTask):
        results = []
        for segment in task.segments:
            away = 1.0 - 0.5 * math.exp(-abs(math.log(segment.arm.value) - middle))
            loss = start.value * away / (1.0 + segment.stop) ** 0.1
            norm = start.grad_norm * away
            results.append(SegmentOutcome(segment.arm.index, segment.calls, True, loss, loss, norm))
        return TrainOutcome(task.calls, _ORIGIN, tuple(results))
    samples = []
    for item in task.samples:
        age = Key.parse(item.key).call if "look" in task.id else 0  # a run that gets better goes on
        value = start.value / 2 / (1.0 + age) ** 0.1
        samples.append(SampleOutcome(item.key, item.stop - item.start, value, start.value**2))
    return ScoreOutcome(task.calls, _ORIGIN, tuple(samples))
