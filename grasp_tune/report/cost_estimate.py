"""What a run would do and cost, before anything is trained: what `grasp-tune plan` shows."""

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from grasp_tune.config.schema import Experiment
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ScoreTask
from grasp_tune.report.dry_run import DryRun, Measured, Round, StartPoint, dry_run, measure
from grasp_tune.report.formatting import plural, quantities

if TYPE_CHECKING:
    from grasp_tune.config.build import Built
    from grasp_tune.report.simulation import Costs

# Seconds to start workers and between two tasks, on a machine with nothing else to do.
OVERHEAD = {"local": (0.0, 0.0), "ray": (8.0, 0.02), "optuna": (2.0, 0.02)}


@dataclass(frozen=True, slots=True)
class Phase:
    """One line of the estimate."""

    name: str  # "probe", "train", "rung 3", "choose"
    what: str  # in words
    calls: int


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Everything that `plan` tells."""

    experiment: Experiment
    start: StartPoint
    run: DryRun
    phases: tuple[Phase, ...]
    measured: Measured | None = None  # None: the start point was not looked at, only assumed
    costs: "Costs | None" = None
    built: "Built | None" = None

    @property
    def quantity(self) -> str:
        """What is searched: step sizes, radii, distances."""
        return quantities(self.run.bases)

    @property
    def seconds(self) -> float | None:
        """How long the sweep would take here."""
        return self.seconds_on(getattr(self.experiment.backend, "workers", None) or 1)

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

    def seconds_on(self, workers: int) -> float | None:
        """How long the sweep would take on so many workers of this machine's speed."""
        if self.costs is None:
            return None
        from grasp_tune.report.simulation import simulate

        return simulate(self.run, self.costs, workers).seconds

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        cells: dict[int, dict[str, Any]] = {}  # every run once
        for item in sorted(self.run.segments, key=lambda item: item.arm.index):
            cell = {"index": item.arm.index, "value": item.arm.value, "budget": 0}
            cells.setdefault(item.arm.index, cell)["budget"] += item.calls
        purposes = {"probe": "probe", "train": "train", "ensemble": "score"}
        calls = {name: self.run.calls_of(phase) for name, phase in purposes.items()}
        start = {"grad_norm": self.start.grad_norm, "value": self.start.value}
        return {
            "title": self.experiment.title,
            "method": self.experiment.method.name,
            "schedule": self.experiment.schedule,
            "base": list(self.run.bases),
            "quantity": self.quantity,
            "range": self.range and list(self.range),
            "budget": self.experiment.budget,
            "cells": list(cells.values()),
            "phases": [asdict(phase) for phase in self.phases],
            "calls": {**calls, "total": self.run.calls},
            "depth": self.run.depth,
            "disk_bytes": self.disk,
            "seconds": self.seconds,
            "seconds_on_workers": {str(2**power): self.seconds_on(2**power) for power in range(9)},
            "start": {**start, "measured": self.measured is not None},
            "timed_calls": 0 if self.measured is None else self.measured.steps,
            "paper_plan": self.run.plan and self.run.plan.to_dict(),
            "notes": list(self.experiment.notes()),
        }


def estimate_cost(
    experiment: Experiment, *, grad_norm: float | None = None, value: float = 1.0
) -> CostEstimate:
    """What a run of the experiment would do and cost.

    The data are read, and a few steps are timed and thrown away; they are no oracle calls of a
    run. With `grad_norm` (and `value`, the loss) at the start point given, neither happens.
    """
    given = experiment.sweep_arguments()
    built, width = None, 0
    if grad_norm is None:  # what follows needs torch; without it a plan takes no time
        from grasp_tune.config.build import build_parts, settled
        from grasp_tune.engine.fused import fusion_width
        from grasp_tune.report.simulation import Costs, timed_exchange

        built = build_parts(experiment)
        experiment = settled(experiment, built.problem)
        width = fusion_width(built.problem, given["method"], given["fused"], experiment.seed)
    spec, bases = SweepSpec.assemble(
        given["method"],
        experiment.budget,
        given["schedule"],
        experiment.seed,
        ensemble=experiment.ensemble,
        width=width,
        challengers=given["challengers"],
    )
    if built is None:
        assert grad_norm is not None
        start = StartPoint(grad_norm, value)
        run = dry_run(spec, start)
        return CostEstimate(experiment, start, run, _phases(run))
    found = measure(built.problem, spec, bases)
    start, run = found.start, found.run
    lanes = any(segment.lanes > 1 for segment in run.segments)
    exchange = timed_exchange(start.parameters) if lanes else 0.0
    costs = Costs(found.call, exchange, *OVERHEAD[experiment.backend.kind])
    return CostEstimate(experiment, start, run, _phases(run), found, costs, built)


def _phases(run: DryRun) -> tuple[Phase, ...]:
    """A line for the probe, one for every change of the runs that go on, one for the choice."""

    def runs(item: Round) -> object:
        return item.phase, {segment.arm.index for segment in item.segments}

    groups = [list(group) for _, group in groupby(run.rounds, runs)]
    trains = [group for group in groups if group[0].phase == "train"]
    found: list[Phase] = []
    for group in groups:
        name, words = "probe", "samples at the start point"
        if group[0].phase == "score":
            name, words = "choose", _scoring_words(group)
        elif group in trains:
            name = "train" if len(trains) == 1 else f"rung {trains.index(group) + 1}"
            words = _training_words(group)
        found.append(Phase(name, words, sum(item.calls for item in group)))
    return tuple(found)


def _training_words(group: list[Round]) -> str:
    segments = [segment for item in group for segment in item.segments]
    calls: Counter[int] = Counter()
    for segment in segments:
        calls[segment.arm.index] += segment.calls
    low, high = min(calls.values()), max(calls.values())
    words = f"{plural(len(calls), 'run')}, {low:,}" + (f" to {high:,}" if low < high else "")
    words += " calls each" if len(calls) > 1 else " calls"
    words += ", going on" * (segments[0].start > 0)
    words += f", in {len(group)} parts" if len(group) > 1 else ""
    return words + ", side by side" * (len(segments) > sum(len(item.tasks) for item in group))


def _scoring_words(group: list[Round]) -> str:
    tasks = [task for item in group for task in item.tasks if isinstance(task, ScoreTask)]
    count = len({sample.key for task in tasks for sample in task.samples})
    how = "exact values" if any(task.exact for task in tasks) else "fresh samples"
    return f"{plural(count, 'candidate')} on {how}" + f", {len(group)} rounds" * (len(group) > 1)
