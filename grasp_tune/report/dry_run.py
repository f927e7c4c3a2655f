"""A sweep without training: the search is real, the outcomes are made up, a few steps are timed.

What a schedule does depends on what its runs report. Here every run behaves: the loss falls with
the calls and is lowest in the middle of the range. So the phases and their calls are typical; that
the calls never exceed the budget is certain. `Stopwatch` takes a few real steps and throws them
away: how fast this machine is, how large a checkpoint, and where the sweep starts. None of these
counts as an oracle call of a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
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
_STEPS = 10  # oracle calls that are timed
_SHORT = 2  # calls of the run that is compared with
_SLOW = 1.0  # seconds of a step that needs no longer run


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
class Speed:
    """Seconds of one oracle call, by what it is for, and bytes of one checkpoint."""

    probe: float
    single: float  # a run by itself
    fused: float  # a run among others in one batched computation
    value: float  # a loss without a gradient
    point: int  # bytes of a candidate
    state: int  # bytes of a run that can go on
    steps: int  # oracle calls that were made to find out

    def seconds_of(self, task: Task) -> float:
        """The time that a task of the search takes."""
        if isinstance(task, TrainTask):
            return task.calls * (self.fused if len(task.segments) > 1 else self.single)
        if isinstance(task, ProbeTask):
            gradients = task.gradients[1] - task.gradients[0]
            return gradients * self.probe + (task.values[1] - task.values[0]) * self.value
        samples = sum(item.stop - item.start for item in task.samples)
        return samples * (self.value if task.by == "value" else self.probe)


class Stopwatch:
    """The problem at its start point, in this process."""

    def __init__(self, problem: TorchProblem, seed: int, bases: Mapping[str, Factory]) -> None:
        from grasp_tune.engine.worker import Worker  # a plan without it loads no torch
        from grasp_tune.runtime.store import TemporaryStore

        self._calls: list[int] = []
        self._store = TemporaryStore()
        self._worker = Worker(problem, seed, self._store, bases, self._calls.append)

    def start(self, *, exact: bool) -> StartPoint:
        """The start point as a few samples show it."""
        task = ProbeTask("probe", (0, _SAMPLES), (0, 0), moments=not exact, exact=exact)
        outcome = self._worker.run(task)
        assert isinstance(outcome, ProbeOutcome)
        return StartPoint(outcome.gradient_norm, outcome.value, outcome.parameters)

    def speed(self, run: DryRun, spec: SweepSpec) -> Speed:
        """The speed of what the sweep would do."""
        exact, oracle = spec.method.exact, self._worker.oracle
        steps = range(1 if exact else _STEPS)
        task = ProbeTask("probe", (0, len(steps)), exact=exact)
        probe = value = single = fused = _seconds(lambda: self._worker.run(task)) / len(steps)
        if not exact:
            oracle.value("probe", 0)  # sets things up
            value = _seconds(lambda: [oracle.value("probe", at) for at in steps]) / len(steps)
        trains = [t for item in run.rounds for t in item.tasks if isinstance(t, TrainTask)]
        if trains:
            parts = trains[0].segments
            single = self._timed(replace(trains[0], segments=(parts[len(parts) // 2],)))
            fused = self._timed(trains[0]) if len(parts) > 1 else single
        keys, path = self._store.keys(), self._store.path
        sizes = {Key.parse(key).what: path(key).stat().st_size for key in keys}
        point = max(sizes.get("iterate", 0), sizes.get("average", 0))
        return Speed(probe, single, fused, value, point, sizes.get("state", 0), sum(self._calls))

    def _timed(self, task: TrainTask) -> float:
        """Seconds of one call of a training task, from the start point.

        The difference of a longer and a shorter run: a real segment is so long that reading and
        writing its checkpoints hardly matters.
        """
        self._run(task, 1)  # the first call of all sets things up, which may take a second
        short, fewer = self._run(task, _SHORT)
        if short > _SLOW * _SHORT:
            return short / fewer  # slow enough to be told from a few calls
        long, more = self._run(task, _SHORT + _STEPS)
        if more <= fewer:  # every run ended at once
            return short / fewer
        # On a busy machine the difference may be all noise; no call is ten times the others.
        return max((long - short) / (more - fewer), 0.1 * long / more)

    def _run(self, task: TrainTask, stop: int) -> tuple[float, int]:
        """Seconds and oracle calls of a task that ends after a few calls of each run."""
        change: dict[str, Any] = {"stop": stop, "keep": (stop,), "save": True, "anneal": None}
        segments = tuple(replace(item, start=0, **change) for item in task.segments)
        before = sum(self._calls)
        seconds = _seconds(lambda: self._worker.run(replace(task, segments=segments)))
        return seconds, max(1, sum(self._calls) - before)


def _seconds(action: Callable[[], object]) -> float:
    clock = time.perf_counter()
    action()
    return time.perf_counter() - clock
