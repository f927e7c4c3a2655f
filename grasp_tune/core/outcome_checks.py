"""Whether an outcome can be the answer to a task.

Outcomes come from other processes, other machines and files. One that has more calls than its task
allows, or speaks of other runs, is a fault of whoever sent it, and would break the budget or the
choice in silence if it were recorded. Losses are not judged: NaN and infinities are legitimate.
"""

import math

from grasp_tune.core.errors import InputError
from grasp_tune.core.tasks import (
    Outcome,
    ProbeOutcome,
    ProbeTask,
    ScoreOutcome,
    ScoreTask,
    Task,
    TrainOutcome,
    TrainTask,
    phase_of,
)


def check_answer(task: Task, outcome: Outcome) -> None:
    """Raise `InputError` where the outcome cannot be the task's."""
    if phase_of(outcome) != phase_of(task):
        raise InputError(f"task {task.id} cannot end with a {phase_of(outcome)} outcome")
    _count(task.id, "calls", outcome.calls, task.calls)
    if isinstance(task, ProbeTask) and isinstance(outcome, ProbeOutcome):
        _check_probe(task, outcome)
    elif isinstance(task, TrainTask) and isinstance(outcome, TrainOutcome):
        _check_training(task, outcome)
    elif isinstance(task, ScoreTask) and isinstance(outcome, ScoreOutcome):
        _check_scores(task, outcome)


def _check_probe(task: ProbeTask, outcome: ProbeOutcome) -> None:
    for name in ("gradients", "values"):
        _count(task.id, name, getattr(outcome, name), None)
    _count(task.id, "parameters", outcome.parameters, None, low=1)
    for name in ("gradient_norm", "gradient_square", "value_square"):
        got = getattr(outcome, name)
        if not isinstance(got, float) or got < 0.0:  # NaN passes
            raise InputError(f"{task.id}: {name}: got {got!r}, expected a number >= 0")
    if not isinstance(outcome.value, float):
        raise InputError(f"{task.id}: value: got {outcome.value!r}, expected a number")


def _check_training(task: TrainTask, outcome: TrainOutcome) -> None:
    runs = [segment.arm.index for segment in task.segments]
    if (got := [item.arm for item in outcome.segments]) != runs:
        raise InputError(f"{task.id}: got the runs {got[:8]}, expected {runs[:8]}")
    for segment, item in zip(task.segments, outcome.segments, strict=True):
        _count(f"{task.id}: run {item.arm}", "calls", item.calls, segment.calls)
    if outcome.calls != (total := sum(item.calls for item in outcome.segments)):
        raise InputError(f"{task.id}: got {outcome.calls} calls, but its runs made {total}")


def _check_scores(task: ScoreTask, outcome: ScoreOutcome) -> None:
    keys = [sample.key for sample in task.samples]
    if (got := [item.key for item in outcome.samples]) != keys:
        raise InputError(f"{task.id}: got scores of {got[:8]}, expected {keys[:8]}")
    for sample, item in zip(task.samples, outcome.samples, strict=True):
        most = 1 if task.exact else sample.stop - sample.start
        _count(f"{task.id}: {item.key}", "count", item.count, most)
        if item.square < 0.0:
            raise InputError(f"{task.id}: {item.key}: square: got {item.square}, expected >= 0")


def _count(where: str, name: str, got: object, high: int | None, low: int = 0) -> None:
    """Refuse what is no whole number between `low` and `high`."""
    most = math.inf if high is None else high
    if not isinstance(got, int) or isinstance(got, bool) or not low <= got <= most:
        limit = f"a whole number >= {low}" if high is None else f"a whole number {low}..{high}"
        raise InputError(f"{where}: {name}: got {got!r}, expected {limit}")
