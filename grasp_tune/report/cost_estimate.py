"""What a run would do and cost, before anything is trained: what `grasp-tune plan` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from grasp_tune.config.arguments import sweep_arguments
from grasp_tune.config.schema import Experiment
from grasp_tune.core.methods import Method
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ScoreTask, TrainTask
from grasp_tune.optimizers.registry import described
from grasp_tune.report.dry_run import DryRun, Round, StartPoint, dry_run
from grasp_tune.report.formatting import plural, quantities

if TYPE_CHECKING:
    from grasp_tune.config.build import Built
    from grasp_tune.report.simulation import Costs, Simulation
    from grasp_tune.report.timing import Speed

WORKERS = (1, 2, 4, 8, 16)  # for which a time is told
# Seconds to start workers and between two tasks, on a machine with nothing else to do.
OVERHEAD = {"local": (0.0, 0.0), "ray": (8.0, 0.02), "optuna": (2.0, 0.02)}


@dataclass(frozen=True, slots=True)
class Phase:
    """One line of the estimate."""

    name: str  # "probe", "train", "rung 3", "choose"
    what: str  # in words
    calls: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Everything that `plan` tells."""

    experiment: Experiment
    start: StartPoint
    measured: bool  # whether the start point was looked at, or only assumed
    run: DryRun
    phases: tuple[Phase, ...]
    quantity: str
    costs: Costs | None
    disk: int | None  # bytes of checkpoints, at most
    built: Built | None
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float | None:
        """How long the sweep would take here."""
        known = [phase.seconds for phase in self.phases if phase.seconds is not None]
        return sum(known) if len(known) == len(self.phases) else None

    @property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest value that is tried; None where nothing would be trained.

        Runs that measure their distance search no range: it is the share that the last one takes.
        """
        values = self.run.values
        if values and all(described(base).measures_distance for base in self.run.bases):
            values = (self.run.segments[-1].arm.value,)
        return (values[0], values[-1]) if values else None

    def seconds_on(self, workers: int) -> float | None:
        """How long the sweep would take on so many workers of this machine's speed."""
        return None if self.costs is None else _simulated(self.run, self.costs, workers).seconds

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        return {
            "title": self.experiment.title,
            "method": self.experiment.method.name,
            "schedule": self.experiment.schedule,
            "base": list(self.run.bases),
            "quantity": self.quantity,
            "range": None if self.range is None else list(self.range),
            "budget": self.experiment.budget,
            "cells": _cells(self.run),
            "phases": [asdict(phase) for phase in self.phases],
            "calls": {
                "probe": self.run.calls_of("probe"),
                "train": self.run.calls_of("train"),
                "ensemble": self.run.calls_of("score"),
                "total": self.run.calls,
            },
            "depth": self.run.depth,
            "disk_bytes": self.disk,
            "seconds": self.seconds,
            "seconds_on_workers": {str(count): self.seconds_on(count) for count in WORKERS},
            "start": {
                "grad_norm": self.start.grad_norm,
                "value": self.start.value,
                "measured": self.measured,
            },
            "timed_calls": 0 if self.costs is None else self.costs.speed.steps,
            "paper_plan": None if self.run.plan is None else self.run.plan.to_dict(),
            "notes": list(self.notes),
        }


def estimate_cost(
    experiment: Experiment, *, grad_norm: float | None = None, value: float = 1.0
) -> CostEstimate:
    """What a run of the experiment would do and cost.

    The data are read, and a few steps are timed and thrown away; they are no oracle calls of a
    run. With `grad_norm` (and `value`, the loss) at the start point given, neither happens.
    """
    given = sweep_arguments(experiment)
    method: Method = given["method"]
    built, width = None, 0
    if grad_norm is None:  # what follows needs torch; without it a plan takes no time
        from grasp_tune.config.build import build_parts, settled
        from grasp_tune.engine.fused import fusion_width
        from grasp_tune.report.simulation import Costs, timed_exchange
        from grasp_tune.report.timing import Stopwatch

        built = build_parts(experiment)
        experiment = settled(experiment, built.problem)
        width = fusion_width(built.problem, method, given["fused"], experiment.seed)
    spec, bases = SweepSpec.assemble(
        method,
        experiment.budget,
        given["schedule"],
        experiment.seed,
        ensemble=experiment.ensemble,
        width=width,
        challengers=given["challengers"],
    )
    costs: Costs | None = None
    if built is None:
        assert grad_norm is not None
        start = StartPoint(grad_norm, value)
        run = dry_run(spec, start)
    else:
        stopwatch = Stopwatch(built.problem, experiment.seed, bases)
        start = stopwatch.start(exact=method.exact)
        run = dry_run(spec, start)
        lanes = any(segment.lanes > 1 for segment in run.segments)
        exchange = timed_exchange(start.parameters) if lanes else 0.0
        costs = Costs(stopwatch.speed(run, spec), exchange, *OVERHEAD[experiment.backend.kind])
    return CostEstimate(
        experiment=experiment,
        start=start,
        measured=built is not None,
        run=run,
        phases=_phases(run, costs, getattr(experiment.backend, "workers", None) or 1),
        quantity=quantities(run.bases),
        costs=costs,
        disk=None if costs is None else _disk(run, costs.speed),
        built=built,
        notes=experiment.notes(),
    )


def _simulated(run: DryRun, costs: Costs, workers: int) -> Simulation:
    from grasp_tune.report.simulation import simulate

    return simulate(run, costs, workers)


def _phases(run: DryRun, costs: Costs | None, workers: int) -> tuple[Phase, ...]:
    """A line for the probe, one for every change of the runs that go on, one for the choice."""
    times = () if costs is None else _simulated(run, costs, workers).rounds
    groups: list[list[Round]] = []
    before: object = None
    for item in run.rounds:
        kind = (item.phase, {segment.arm.index for segment in item.segments})
        if kind != before:
            groups.append([])
        groups[-1].append(item)
        before = kind
    trains = sum(group[0].phase == "train" for group in groups)
    found: list[Phase] = []
    for group in groups:
        calls = sum(item.calls for item in group)
        seconds = sum(times[: len(group)]) if times else None
        times = times[len(group) :]
        if group[0].phase == "probe":
            found.append(Phase("probe", "samples at the start point", calls, seconds))
        elif group[0].phase == "score":
            found.append(Phase("choose", _scoring_words(group), calls, seconds))
        else:
            rung = 1 + sum(phase.name.startswith("rung") for phase in found)
            name = "train" if trains == 1 else f"rung {rung}"
            found.append(Phase(name, _training_words(group), calls, seconds))
    return tuple(found)


def _training_words(group: list[Round]) -> str:
    segments = [segment for item in group for segment in item.segments]
    calls: dict[int, int] = {}
    for segment in segments:
        calls[segment.arm.index] = calls.get(segment.arm.index, 0) + segment.calls
    low, high = min(calls.values()), max(calls.values())
    amount = f"{low:,} calls" if low == high else f"{low:,} to {high:,} calls"
    share = " each" if len(calls) > 1 else ""
    goes_on = "" if segments[0].start == 0 else ", going on"
    parts = f", in {len(group)} parts" if len(group) > 1 else ""
    fused = any(
        isinstance(task, TrainTask) and len(task.segments) > 1
        for item in group
        for task in item.tasks
    )
    side = ", side by side" if fused else ""
    return f"{plural(len(calls), 'run')}, {amount}{share}{goes_on}{parts}{side}"


def _scoring_words(scoring: list[Round]) -> str:
    tasks = [task for item in scoring for task in item.tasks if isinstance(task, ScoreTask)]
    count = len({sample.key for task in tasks for sample in task.samples})
    how = "exact values" if any(task.exact for task in tasks) else "fresh samples"
    rounds = "" if len(scoring) == 1 else f", {len(scoring)} rounds"
    return f"{plural(count, 'candidate')} on {how}{rounds}"


def _cells(run: DryRun) -> list[dict[str, Any]]:
    """Every run once: its index, its value, and its calls in all."""
    found: dict[int, dict[str, Any]] = {}
    for segment in run.segments:
        index, value = segment.arm.index, segment.arm.value
        cell = found.setdefault(index, {"index": index, "value": value, "budget": 0})
        cell["budget"] += segment.calls
    return [found[index] for index in sorted(found)]


def _disk(run: DryRun, speed: Speed) -> int:
    sizes = [
        item.states * speed.state + (item.stored - item.states) * speed.point for item in run.rounds
    ]
    return max(sizes, default=0) + speed.point  # and the model that is returned
