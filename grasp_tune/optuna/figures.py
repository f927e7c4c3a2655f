"""A sweep on a study as the report's figures, for notebooks and for optuna-dashboard.

Both read what is on the study, so they can be drawn by any process, during the sweep or after it.
"""

import json
import math
from dataclasses import replace
from typing import Any

import optuna
from optuna.trial import TrialState

from grasp_tune.core.errors import InputError, MissingExtra
from grasp_tune.core.tasks import TrainOutcome, outcome_from_dict
from grasp_tune.executors.optuna import OUTCOME
from grasp_tune.executors.study import CALLS, CELL, CHOICE, TASK, joined, study_json, trials_of
from grasp_tune.optuna.plans import stored_plan
from grasp_tune.optuna.sampler import cell_on
from grasp_tune.runtime.result import Run

LOSS_ID = "grasp-loss"
RUNGS_ID = "grasp-rungs"


def loss_figure(study: optuna.Study) -> Any:
    """Return the last loss of each run against its step size, sized by its oracle calls."""
    from grasp_tune.report.figures import run_scatter

    runs = _runs(study)
    heights = {run.arm: run.last_loss for run in runs}
    stored = stored_plan(study)
    plan = None if stored is None else stored.plan
    words = "step size, radius or distance" if plan is None else plan.quantity
    return run_scatter(runs, heights, _chosen(study), words, "mean loss at the end of the run")


def rung_figure(study: optuna.Study) -> Any:
    """Return the loss of each run after each of its parts: who went on, and who won."""
    from grasp_tune.report.figures import line_figure

    lines = []
    for run in _runs(study):
        points = zip(run.stretches, run.losses, strict=True)
        lines.append((run, [(stop, loss) for (_, stop), loss in points if math.isfinite(loss)]))
    kept = [line for line in lines if line[1]]
    axes = ("oracle calls of the run", "mean loss")
    return line_figure(kept, _chosen(study), *axes, mode="lines+markers")


def save_figures(study: optuna.Study) -> tuple[str, str]:
    """Put both figures on the study for optuna-dashboard, in the place of earlier ones."""
    try:
        from optuna_dashboard import save_plotly_graph_object
    except ImportError:
        raise MissingExtra(
            "figures on a dashboard need optuna-dashboard: pip install 'grasp_tune[storage]'"
        ) from None
    save_plotly_graph_object(study, loss_figure(study), graph_object_id=LOSS_ID)
    save_plotly_graph_object(study, rung_figure(study), graph_object_id=RUNGS_ID)
    return LOSS_ID, RUNGS_ID


def cell_runs(study: optuna.Study) -> tuple[Run, ...]:
    """Return the completed trials of a sampler as runs, with what they reported on the way."""
    found: dict[int, Run] = {}
    for trial in trials_of(study):
        cell = cell_on(trial)
        void = cell is None or trial.user_attrs[CELL].get("void")
        if cell is None or void or trial.state != TrialState.COMPLETE:
            continue
        calls = int(trial.user_attrs.get(CALLS, cell.budget))
        value = math.nan if trial.value is None else float(trial.value)
        marks = sorted({**trial.intermediate_values, calls: value}.items())
        stops = [int(call) for call, _ in marks if call > 0]
        run = Run(
            arm=cell.index,
            base="",
            value=cell.value,
            power=0.0,
            calls=calls,
            finite=math.isfinite(value),
            stretches=tuple(zip([0, *stops], stops, strict=False)),
            curve=tuple(
                (int(step), float(loss), math.nan)
                for step, loss in sorted(trial.intermediate_values.items())
            ),
            losses=tuple(float(loss) for call, loss in marks if call > 0),
        )
        found.setdefault(cell.index, run)
    return tuple(found[index] for index in sorted(found))


def _task_runs(study: optuna.Study) -> list[Run]:
    """Return the runs of a whole sweep, put together from the trials of its tasks."""
    parts: dict[int, dict[int, tuple[Any, ...]]] = {}  # run -> calls at its end -> the part
    for trial in trials_of(study):
        label = trial.system_attrs.get(TASK)
        if trial.state != TrialState.COMPLETE or not isinstance(label, dict):
            continue
        if rows := label.get("runs"):
            outcome = outcome_from_dict(json.loads(joined(trial.system_attrs, OUTCOME)))
            assert isinstance(outcome, TrainOutcome)
            for row, item in zip(rows, outcome.segments, strict=True):
                parts.setdefault(row[0], {})[row[4]] = (*row, item)
    found = []
    for index, ends in sorted(parts.items()):
        rows = [ends[stop] for stop in sorted(ends)]
        losses = tuple(row[5].loss if row[5].finite else math.nan for row in rows)
        found.append(
            Run(
                arm=index,
                base=rows[0][1],
                value=rows[0][2],
                power=0.0,
                calls=rows[-1][4],
                finite=all(map(math.isfinite, losses)),
                stretches=tuple((row[3], row[4]) for row in rows),
                curve=(),
                losses=losses,
            )
        )
    return found


def _runs(study: optuna.Study) -> list[Run]:
    runs = [*_task_runs(study), *(replace(run, curve=()) for run in cell_runs(study))]
    if not runs:
        raise InputError(f"study {study.study_name!r} has no run of grasp_tune that has ended")
    return runs


def _chosen(study: optuna.Study) -> int:
    """Return the run that was chosen, 0 where none was, or where x0 won."""
    note = study_json(study, CHOICE)
    return 0 if note is None else int(note["candidate"]["arm"])
