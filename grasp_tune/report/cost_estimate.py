"""What a run would do and cost, before anything is trained: what `grasp-tune plan` shows.

`measure` takes a few real steps and throws them away. Without it nothing here loads torch.
"""

import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.schema import UNLIMITED, Experiment
from grasp_tune.core.checkpoint_keys import place_of
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask, ScoreTask, Task, TrainTask
from grasp_tune.optimizers.registry import Factory
from grasp_tune.report.dry_run import Costs, DryRun, Round, dry_run, simulate, start_point
from grasp_tune.report.formatting import plural, quantities
from grasp_tune.runtime.callbacks import WORDS

if TYPE_CHECKING:
    from grasp_tune.config.build import Built
    from grasp_tune.engine.problem import TorchProblem

# Seconds to start workers and between two tasks, on a machine with nothing else to do.
OVERHEAD = {"local": (0.0, 0.0), "ray": (8.0, 0.02), "optuna": (2.0, 0.02)}
_SAMPLES = 8  # minibatch gradients at the start point
_STEPS = 30  # oracle calls that are timed
_SHORT = 2  # calls of the run that is compared with
_SLOW = 0.2  # seconds of a step that needs no longer run
_EXCHANGES = 20  # of gradients between two workers that are timed


@dataclass(frozen=True, slots=True)
class Measured:
    """A sweep on this machine, from a few oracle calls at its start point."""

    start: ProbeOutcome
    run: DryRun
    call: float  # seconds of one oracle call in the longest task
    point: int  # bytes of a candidate
    state: int  # bytes of a run that can go on
    steps: int  # oracle calls that were made to find out


def measure(problem: "TorchProblem", spec: SweepSpec, bases: Mapping[str, Factory]) -> Measured:
    """The sweep that would start here: the start point as a few samples show it, and a few steps.

    Their time is the difference of two runs: in a real one checkpoints hardly matter.
    """
    from grasp_tune.engine.worker import Worker
    from grasp_tune.runtime.store import TemporaryStore

    store, made, exact = TemporaryStore(), list[int](), spec.method.exact
    worker = Worker(problem, spec.seed, store, bases, made.append)

    def timed(task: Task) -> tuple[float, int]:
        clock, before = time.perf_counter(), sum(made)
        worker.run(task)
        return time.perf_counter() - clock, max(1, sum(made) - before)

    def steps(stop: int) -> tuple[float, int]:
        how: dict[str, Any] = {"start": 0, "stop": stop, "keep": (stop,), "save": True, "lanes": 1}
        how |= dict.fromkeys(("origin", "anneal", "ceiling"))
        segments = tuple(replace(item, **how) for item in longest.segments)
        return timed(replace(longest, segments=segments))

    task = ProbeTask("probe", (0, _SAMPLES), (0, 0), moments=not exact, exact=exact)
    start = worker.run(task)
    assert isinstance(start, ProbeOutcome)
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
    keys = store.keys()
    sizes = {place_of(key)[2]: store.path(key).stat().st_size for key in keys}
    point = max(sizes.get("iterate", 0), sizes.get("average", 0))
    return Measured(start, run, each, point, sizes.get("state", 0), sum(made))


def timed_exchange(parameters: int) -> float:
    """Return the seconds in which two processes of this machine exchange so many gradients."""
    with tempfile.TemporaryDirectory() as folder:
        address = (Path(folder).resolve() / "meeting").as_uri()
        fork = multiprocessing.get_context("fork")
        other = fork.Process(target=_exchange, args=(1, address, parameters), daemon=True)
        other.start()
        seconds = _exchange(0, address, parameters)
        other.join()
    return seconds


def _exchange(rank: int, address: str, parameters: int) -> float:
    import torch

    from grasp_tune.engine.lane_group import LaneGroup, LaneSum, Seat

    like, loss, clock = torch.zeros(parameters), torch.zeros(()), 0.0
    with LaneGroup(Seat(rank, 2, address)) as group:
        for at in range(_EXCHANGES + 1):
            clock = time.perf_counter() if at == 1 else clock  # the first one sets things up
            tree = LaneSum(group.own(2).start)
            tree.add([like])
            group.exchange(tree, [loss], [like])
        return (time.perf_counter() - clock) / _EXCHANGES


class Phase(NamedTuple):
    """One line of the estimate."""

    name: str  # "probe", "train", "rung 3", "choose"
    what: str  # in words
    calls: int


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Everything that `plan` tells."""

    experiment: Experiment
    start: ProbeOutcome
    run: DryRun
    measured: Measured | None = None  # None: the start point was not looked at, only assumed
    costs: Costs | None = None
    built: "Built | None" = None

    @property
    def quantity(self) -> str:
        return quantities(self.run.bases)

    @property
    def seconds(self) -> float | None:
        return self.seconds_on(getattr(self.experiment.backend, "workers", None) or 1)

    def seconds_on(self, workers: int) -> float | None:
        """How long the sweep would take on so many workers of this machine's speed."""
        return None if self.costs is None else simulate(self.run, self.costs, workers).seconds

    @property
    def disk(self) -> int | None:
        """Bytes of checkpoints, at most, and of the model that is returned."""
        if self.measured is None:
            return None
        point, more = self.measured.point, self.measured.state - self.measured.point
        kept = [item.states * more + item.stored * point for item in self.run.rounds]
        return point + max(kept, default=0)

    @property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest value that is tried; None where nothing would be trained."""
        values = self.run.values
        return (values[0], values[-1]) if values else None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """A line for the probe, one for every change of the runs that go on, one for the choice."""
        keys = list[Any]()
        for item in self.run.rounds:
            looks = any("look" in task.id for task in item.tasks)  # at the run that is under way
            now = item.phase, {segment.arm.index for segment in item.segments}
            keys.append(keys[-1] if looks else now)
        pairs = groupby(zip(keys, self.run.rounds, strict=True), key=itemgetter(0))
        groups = [[item for _, item in group] for _, group in pairs]
        trains = [group for group in groups if group[0].phase == "train"]
        found = list[Phase]()
        for group in groups:
            rung = group in trains and len(trains) > 1
            name = f"rung {trains.index(group) + 1}" if rung else WORDS[group[0].phase]
            words = _words(group, "validation rows" if self.start.held_out else "fresh samples")
            found.append(Phase(name, words, sum(item.calls for item in group)))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        run, start, measured = self.run, self.start, self.measured
        cells: dict[int, dict[str, Any]] = {}  # every run once
        for item in sorted(run.segments, key=lambda item: item.arm.index):
            cell = {"index": item.arm.index, "value": item.arm.value, "budget": 0}
            cells.setdefault(item.arm.index, cell)["budget"] += item.calls
        purposes = {"probe": "probe", "train": "train", "ensemble": "score"}
        calls = {name: run.calls_of(phase) for name, phase in purposes.items()}
        known = {"grad_norm": start.gradient_norm, "value": start.value}
        return {
            "title": self.experiment.title,
            "method": self.experiment.method.name,
            "schedule": self.experiment.schedule,
            "base": run.bases,
            "quantity": self.quantity,
            "range": self.range,
            "budget": self.experiment.budget,
            "cells": list(cells.values()),
            "phases": [phase._asdict() for phase in self.phases],
            "calls": {**calls, "total": run.calls},
            "depth": run.depth,
            "disk_bytes": self.disk,
            "seconds": self.seconds,
            "seconds_on_workers": {str(2**power): self.seconds_on(2**power) for power in range(9)},
            "start": {**known, "measured": measured is not None},
            "timed_calls": 0 if measured is None else measured.steps,
            "paper_plan": run.plan and run.plan.to_dict(),
            "notes": list(self.experiment.notes()),
        }


def _words(group: list[Round], fresh: str) -> str:
    """What is done in rounds of one phase; `fresh`: what choices are made on."""
    tasks = [task for item in group for task in item.tasks]
    scores = [task for task in tasks if isinstance(task, ScoreTask)]
    calls: Counter[int] = Counter()
    segments = [segment for item in group for segment in item.segments]
    for segment in segments:
        calls[segment.arm.index] += segment.calls
    if scores and not segments:
        count = len({sample.key for task in scores for sample in task.samples})
        how = "exact values" if any(task.exact for task in scores) else fresh
        rounds = f", {len(group)} rounds" * (len(group) > 1)
        return f"{plural(count, 'candidate')} on {how}{rounds}"
    if not segments:
        return "samples at the start point"
    low, high = min(calls.values()), max(calls.values())
    words = f"{plural(len(calls), 'run')}, {low:,}" + f" to {high:,}" * (low < high)
    words += " calls each" if len(calls) > 1 else " calls"
    parts = sum(bool(item.segments) for item in group)
    words += ", going on" * (segments[0].start > 0) + f", in {parts} parts" * (parts > 1)
    words += f", looked at on {fresh}" if scores else ""
    return words + ", side by side" * (len(segments) + len(scores) > len(tasks))


def estimate_cost(
    experiment: Experiment, *, grad_norm: float | None = None, value: float = 1.0
) -> CostEstimate:
    """What a run of the experiment would do and cost; data are read and a few steps are timed.

    grad_norm, value: at the start point; where they are given, neither happens.
    """
    given = experiment.sweep_arguments()
    if grad_norm is not None:
        calls = min(experiment.budget, experiment.steps or UNLIMITED)
        if calls == UNLIMITED:
            wanted = "budget or steps; or no --grad-norm, so that the data are read"
            raise ConfigError("--grad-norm", "", "a config with epochs or minutes", wanted)
        limited = experiment.model_copy(update={"budget": calls})
        start = start_point(grad_norm, value)
        spec, _ = SweepSpec.assemble(**{**given, "budget": calls})
        return CostEstimate(limited, start, dry_run(spec, start))
    # What follows needs torch; without it a plan takes no time.
    from grasp_tune.config.build import build_parts, settled

    built = build_parts(experiment)
    experiment = settled(experiment, built.problem)
    spec, bases = SweepSpec.assemble(**{**given, "budget": experiment.budget})
    allowed: Any = experiment.budget
    with allowed.told():
        found = measure(built.problem, spec, bases)
    lanes = any(segment.lanes > 1 for segment in found.run.segments)
    exchange = timed_exchange(found.start.parameters) if lanes else 0.0
    costs = Costs(found.call, exchange, *OVERHEAD[experiment.backend.kind])
    return CostEstimate(experiment, found.start, found.run, found, costs, built)
