"""What a run would do and cost, before anything is trained: what `grasp-tune plan` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grasp_tune.config.backends import challengers_of, fused_of
from grasp_tune.config.build import Built, build_method, build_parts
from grasp_tune.config.schema import Experiment
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ScoreTask, TrainTask
from grasp_tune.engine.fused import fusion_width
from grasp_tune.report.dry_run import Rehearsal, Round, Start, rehearse
from grasp_tune.report.formatting import quantities
from grasp_tune.report.timing import Speed, TrialSteps


@dataclass(frozen=True, slots=True)
class Phase:
    """One line of the outlook."""

    name: str  # "probe", "train", "rung 3", "choose"
    what: str  # in words
    calls: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """Everything that `plan` tells."""

    experiment: Experiment
    start: Start
    measured: bool  # whether the start point was looked at, or only assumed
    rehearsal: Rehearsal
    phases: tuple[Phase, ...]
    quantity: str
    speed: Speed | None
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
        """Smallest and largest value that is tried; None where nothing would be trained."""
        values = self.rehearsal.values
        return (values[0], values[-1]) if values else None

    def to_dict(self) -> dict[str, Any]:
        """The outlook as JSON values."""
        plan = self.rehearsal.plan
        cells = _first_cells(self.rehearsal)
        return {
            "title": self.experiment.title,
            "method": self.experiment.method.name,
            "schedule": self.experiment.schedule,
            "base": list(self.rehearsal.bases),
            "quantity": self.quantity,
            "range": None if self.range is None else list(self.range),
            "budget": self.experiment.budget,
            "cells": [{"index": i, "value": v, "budget": b} for i, v, b in cells],
            "phases": [
                {"name": p.name, "what": p.what, "calls": p.calls, "seconds": p.seconds}
                for p in self.phases
            ],
            "calls": {
                "probe": self.rehearsal.calls_of("probe"),
                "train": self.rehearsal.calls_of("train"),
                "ensemble": self.rehearsal.calls_of("score"),
                "total": self.rehearsal.calls,
            },
            "disk_bytes": self.disk,
            "seconds": self.seconds,
            "start": {
                "grad_norm": self.start.grad_norm,
                "value": self.start.value,
                "measured": self.measured,
            },
            "timed_calls": 0 if self.speed is None else self.speed.steps,
            "paper_plan": None if plan is None else plan.to_dict(),
            "notes": list(self.notes),
        }


def look_ahead(
    experiment: Experiment, *, grad_norm: float | None = None, value: float = 1.0
) -> Outlook:
    """What a run of the experiment would do and cost.

    The data are read, and a few steps are timed and thrown away; they are no oracle calls of a
    run. With `grad_norm` (and `value`, the loss) at the start point given, neither happens.
    """
    method = build_method(experiment)
    built, width = None, 0
    if grad_norm is None:
        built = build_parts(experiment)
        width = fusion_width(
            built.problem, method, experiment.schedule, fused_of(experiment), experiment.seed
        )
    spec, bases = SweepSpec.assemble(
        method,
        experiment.budget,
        experiment.schedule,
        experiment.seed,
        ensemble=experiment.ensemble,
        width=width,
        challengers=challengers_of(experiment),
    )
    if built is None:
        assert grad_norm is not None
        start, speed = Start(grad_norm, value), None
        rehearsal = rehearse(spec, start)
    else:
        steps = TrialSteps(built.problem, experiment.seed, bases)
        start = steps.start(exact=method.exact)
        rehearsal = rehearse(spec, start)
        speed = steps.speed(rehearsal, spec)
    workers = getattr(experiment.backend, "workers", None) or 1
    return Outlook(
        experiment=experiment,
        start=start,
        measured=built is not None,
        rehearsal=rehearsal,
        phases=_phases(rehearsal, speed, workers),
        quantity=quantities(rehearsal.bases),
        speed=speed,
        disk=_disk(rehearsal, speed),
        built=built,
        notes=experiment.notes(),
    )


def _phases(rehearsal: Rehearsal, speed: Speed | None, workers: int) -> tuple[Phase, ...]:
    """A line for the probe, one for every change of the runs that go on, one for the choice."""
    groups = _grouped(rehearsal.rounds)
    trains = sum(group[0].phase == "train" for group in groups)
    found: list[Phase] = []
    rung = 0
    for group in groups:
        calls = sum(item.calls for item in group)
        times = [_seconds(item, speed, workers) for item in group]
        seconds = None if speed is None else sum(time or 0.0 for time in times)
        if group[0].phase == "probe":
            found.append(Phase("probe", "samples at the start point", calls, seconds))
        elif group[0].phase == "score":
            found.append(Phase("choose", _scoring_words(group), calls, seconds))
        else:
            rung += 1
            name = "train" if trains == 1 else f"rung {rung}"
            found.append(Phase(name, _training_words(group), calls, seconds))
    return tuple(found)


def _grouped(rounds: tuple[Round, ...]) -> list[list[Round]]:
    """Rounds that belong together: all of one phase, and training of the same runs."""
    groups: list[list[Round]] = []
    before: object = None
    for item in rounds:
        runs = {s.arm.index for t in item.tasks if isinstance(t, TrainTask) for s in t.segments}
        kind = (item.phase, frozenset(runs))
        if kind != before:
            groups.append([])
        groups[-1].append(item)
        before = kind
    return groups


def _seconds(item: Round, speed: Speed | None, workers: int) -> float | None:
    if speed is None:
        return None
    total = sum(speed.seconds_of(task) for task in item.tasks)
    return total / min(workers, len(item.tasks))


def _training_words(group: list[Round]) -> str:
    tasks = [task for item in group for task in item.tasks if isinstance(task, TrainTask)]
    segments = [segment for task in tasks for segment in task.segments]
    calls: dict[int, int] = {}
    for segment in segments:
        calls[segment.arm.index] = calls.get(segment.arm.index, 0) + segment.calls
    low, high = min(calls.values()), max(calls.values())
    amount = f"{low:,} calls" if low == high else f"{low:,} to {high:,} calls"
    runs = "1 run" if len(calls) == 1 else f"{len(calls)} runs"
    share = " each" if len(calls) > 1 else ""
    goes_on = "" if segments[0].start == 0 else ", going on"
    stretches = f", in {len(group)} stretches" if len(group) > 1 else ""
    fused = ", side by side" if any(len(task.segments) > 1 for task in tasks) else ""
    return f"{runs}, {amount}{share}{goes_on}{stretches}{fused}"


def _scoring_words(scoring: list[Round]) -> str:
    samples = [
        sample
        for item in scoring
        for task in item.tasks
        if isinstance(task, ScoreTask)
        for sample in task.samples
    ]
    count = len({sample.key for sample in samples})
    words = "1 candidate" if count == 1 else f"{count} candidates"
    how = "exact values" if any(_exact(item) for item in scoring) else "fresh samples"
    rounds = "" if len(scoring) == 1 else f", {len(scoring)} rounds"
    return f"{words} on {how}{rounds}"


def _exact(item: Round) -> bool:
    return any(getattr(task, "exact", False) for task in item.tasks)


def _first_cells(rehearsal: Rehearsal) -> list[tuple[int, float, int]]:
    """Every run once: its index, its value, and the calls of all its stretches."""
    found: dict[int, tuple[float, int]] = {}
    for item in rehearsal.rounds:
        for task in item.tasks:
            for segment in task.segments if isinstance(task, TrainTask) else ():
                value, calls = found.get(segment.arm.index, (segment.arm.value, 0))
                found[segment.arm.index] = (value, calls + segment.calls)
    return [(index, value, calls) for index, (value, calls) in sorted(found.items())]


def _disk(rehearsal: Rehearsal, speed: Speed | None) -> int | None:
    if speed is None:
        return None
    sizes = [
        item.states * speed.state + (item.stored - item.states) * speed.point
        for item in rehearsal.rounds
    ]
    return max(sizes, default=0) + speed.point  # and the model that is returned
