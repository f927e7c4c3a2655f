"""A sweep without training: the search is real, the outcomes are made up, a few steps are timed.

What a schedule does depends on what its runs report. Here every run behaves: the loss falls with
the calls and is lowest in the middle of the range. So the phases and their calls are typical; that
the calls never exceed the budget is certain. `measure` takes a few real steps and throws them away:
how fast this machine is, how large a checkpoint, and where the sweep starts. None of these counts
as an oracle call of a run.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
from grasp_tune.optimizers.registry import Factory

if TYPE_CHECKING:
    from grasp_tune.engine.problem import TorchProblem

_ORIGIN = "dry run"
_SAMPLES = 8  # minibatch gradients at the start point
_STEPS = 30  # oracle calls that are timed
_SHORT = 2  # calls of the run that is compared with
_SLOW = 0.2  # seconds of a step that needs no longer run


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
        """Oracle calls of a phase."""
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
    """The rounds of a sweep from a start point; raises what the search raises (BudgetTooSmall).

    known: outcomes of a sweep that was run, by task; only those that are missing are made up.
    """
    search, told, rounds, kept = Search(spec), known or {}, list[Round](), set[str]()
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
    norm, value = start.grad_norm, start.value
    if isinstance(task, ProbeTask):
        gradients = max(1, task.gradients[1] - task.gradients[0])
        sampled = {"gradients": gradients, "values": task.values[1] - task.values[0] or gradients}
        means = {"gradient_norm": norm, "gradient_square": norm**2, "parameters": start.parameters}
        means |= {"value": value, "value_square": value**2}
        return ProbeOutcome(calls=task.calls, origin=_ORIGIN, **sampled, **means)  # type: ignore[arg-type]
    if isinstance(task, TrainTask):
        results = []
        for part in task.segments:
            away = 1.0 - 0.5 * math.exp(-abs(math.log(part.arm.value) - middle))
            loss = value * away / (1.0 + part.stop) ** 0.1
            results.append(
                SegmentOutcome(part.arm.index, part.calls, True, loss, loss, norm * away)
            )
        return TrainOutcome(task.calls, _ORIGIN, tuple(results))
    samples = []
    for item in task.samples:
        age = Key.parse(item.key).call if "look" in task.id else 0  # a run that gets better goes on
        mean = value / 2 / (1.0 + age) ** 0.1
        samples.append(SampleOutcome(item.key, item.stop - item.start, mean, value**2))
    return ScoreOutcome(task.calls, _ORIGIN, tuple(samples))


@dataclass(frozen=True, slots=True)
class Measured:
    """A sweep on this machine, from a few oracle calls at its start point."""

    start: StartPoint
    run: DryRun
    call: float  # seconds of one oracle call in the longest task
    point: int  # bytes of a candidate
    state: int  # bytes of a run that can go on
    steps: int  # oracle calls that were made to find out


def measure(problem: "TorchProblem", spec: SweepSpec, bases: Mapping[str, Factory]) -> Measured:
    """The sweep that would start here: the start point as a few samples show it, and a few steps.

    Their time is the difference of a longer and a shorter run: a real segment is so long that
    reading and writing its checkpoints hardly matters.
    """
    from grasp_tune.engine.worker import Worker  # a plan without it loads no torch
    from grasp_tune.runtime.store import TemporaryStore

    store, made, exact = TemporaryStore(), list[int](), spec.method.exact
    worker = Worker(problem, spec.seed, store, bases, made.append)

    def timed(task: Task) -> tuple[float, int]:
        clock, before = time.perf_counter(), sum(made)
        worker.run(task)
        return time.perf_counter() - clock, max(1, sum(made) - before)

    def steps(stop: int) -> tuple[float, int]:
        end: dict[str, Any] = {"stop": stop, "keep": (stop,), "save": True, "lanes": 1}
        begin: dict[str, Any] = dict.fromkeys(("origin", "anneal", "ceiling"))
        segments = [replace(item, start=0, **begin, **end) for item in longest.segments]
        return timed(replace(longest, segments=tuple(segments)))

    task = ProbeTask("probe", (0, _SAMPLES), (0, 0), moments=not exact, exact=exact)
    found = worker.run(task)
    assert isinstance(found, ProbeOutcome)
    start = StartPoint(found.gradient_norm, found.value, found.parameters)
    run = dry_run(spec, start)
    trains = [task for item in run.rounds for task in item.tasks if isinstance(task, TrainTask)]
    if not trains:
        seconds, calls = timed(task)
        return Measured(start, run, seconds / calls, 0, 0, sum(made))
    longest = max(trains, key=lambda task: task.calls)
    steps(1)  # the first call of all sets things up, which may take a second
    short, fewer = steps(_SHORT)
    each = short / fewer
    if short < _SLOW * _SHORT:  # else it is slow enough to be told from a few calls
        long, more = steps(_SHORT + _STEPS)
        # On a busy machine the difference may be all noise; no call is ten times the others.
        each = max((long - short) / max(1, more - fewer), 0.1 * long / more)
    keys, path = store.keys(), store.path
    sizes = {Key.parse(key).what: path(key).stat().st_size for key in keys}
    point = max(sizes.get("iterate", 0), sizes.get("average", 0))
    return Measured(start, run, each, point, sizes.get("state", 0), sum(made))
