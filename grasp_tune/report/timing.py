"""A few real steps, timed and thrown away: how fast this machine is and how large a checkpoint.

They see the start point too, so a plan can be made before the probe has been paid for. None of
them counts as an oracle call of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from grasp_tune.core.checkpoint_keys import Key
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask, Task, TrainTask
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.optimizers.registry import Factory
from grasp_tune.report.dry_run import DryRun, StartPoint
from grasp_tune.runtime.store import MemoryStore

SAMPLES = 8  # minibatch gradients at the start point
STEPS = 10  # oracle calls that are timed
_SHORT = 2  # calls of the run that is compared with
_SLOW = 1.0  # seconds of a step that needs no longer run


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
    """The problem at its start point, in the memory of this process."""

    def __init__(self, problem: TorchProblem, seed: int, bases: Mapping[str, Factory]) -> None:
        self._calls = 0
        self._store = MemoryStore()
        self._worker = Worker(problem, seed, self._store, bases, self._count)

    def start(self, *, exact: bool) -> StartPoint:
        """The start point as a few samples show it."""
        task = ProbeTask("probe", (0, SAMPLES), (0, 0), moments=not exact, exact=exact)
        outcome = self._worker.run(task)
        assert isinstance(outcome, ProbeOutcome)
        return StartPoint(outcome.gradient_norm, outcome.value, outcome.parameters)

    def speed(self, run: DryRun, spec: SweepSpec) -> Speed:
        """The speed of what the sweep would do."""
        steps = 1 if spec.method.exact else STEPS
        task = ProbeTask("probe", (0, steps), exact=spec.method.exact)
        probe = value = _seconds(lambda: self._worker.run(task)) / steps
        if not spec.method.exact:
            self._values(1)  # sets things up
            value = _seconds(lambda: self._values(STEPS)) / STEPS
        trains = [t for item in run.rounds for t in item.tasks if isinstance(t, TrainTask)]
        if not trains:
            return Speed(probe, probe, probe, value, 0, 0, self._calls)
        first = trains[0]
        middle = first.segments[len(first.segments) // 2]
        single = self._timed(replace(first, segments=(middle,)))
        fused = self._timed(first) if len(first.segments) > 1 else single
        sizes = [(Key.parse(name).what, size) for name, size in self._store.sizes().items()]
        state = max((size for what, size in sizes if what == "state"), default=0)
        point = max((size for what, size in sizes if what in ("iterate", "average")), default=0)
        return Speed(probe, single, fused, value, point, state, self._calls)

    def _timed(self, task: TrainTask) -> float:
        """Seconds of one call of a training task, from the start point.

        The difference of a longer and a shorter run: a real segment is so long that reading and
        writing its checkpoints hardly matters.
        """
        self._run(task, 1)  # the first call of all sets things up, which may take a second
        short, fewer = self._run(task, _SHORT)
        if short > _SLOW * _SHORT:
            return short / fewer  # slow enough to be told from a few calls
        long, more = self._run(task, _SHORT + STEPS)
        if more <= fewer:  # every run ended at once
            return short / fewer
        # On a busy machine the difference may be all noise; no call is ten times the others.
        return max((long - short) / (more - fewer), 0.1 * long / more)

    def _run(self, task: TrainTask, stop: int) -> tuple[float, int]:
        """Seconds and oracle calls of a task that ends after a few calls of each run."""
        segments = tuple(
            replace(item, start=0, stop=stop, keep=(stop,), save=True, anneal=None)
            for item in task.segments
        )
        before = self._calls
        seconds = _seconds(lambda: self._worker.run(replace(task, segments=segments)))
        return seconds, max(1, self._calls - before)

    def _values(self, calls: int) -> None:
        for call in range(calls):
            self._worker.oracle.value("probe", call)

    def _count(self, calls: int) -> None:
        self._calls += calls


def _seconds(action: Callable[[], object]) -> float:
    clock = time.perf_counter()
    action()
    return time.perf_counter() - clock
