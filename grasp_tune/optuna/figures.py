"""A sweep on a study as the report's figures, for notebooks and for optuna-dashboard.

Both read what is on the study, so they can be drawn by any process, during the sweep or after it.
"""

import json
import math
from collections.abc import Mapping
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

    (runs, chosen), stored = _runs(study), stored_plan(study)
    heights = {run.arm: run.last_loss for run in runs}
    place = next(((run.value, run.last_loss) for run in runs if run.arm == chosen), None)
    plan = None if stored is None else stored.plan
    words = "step size, radius or distance" if plan is None else plan.quantity
    return run_scatter(runs, heights, place, words, "mean loss at the end of the run")


def rung_figure(study: optuna.Study) -> Any:
    """Return the loss of each run after each of its parts: who went on, and who won."""
    from grasp_tune.report.figures import line_figure

    runs, chosen = _runs(study)
    lines = []
    for run in runs:
        points = zip(run.stretches, run.losses, strict=True)
        lines.append((run, [(stop, loss) for (_, stop), loss in points if math.isfinite(loss)]))
    axes = ("oracle calls of the run", "mean loss")
    return line_figure([line for line in lines if line[1]], chosen, *axes, mode="lines+markers")


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
        cell, complete = cell_on(trial), trial.state == TrialState.COMPLETE
        if cell is not None and complete and not trial.user_attrs[CELL].get("void"):
            calls = int(trial.user_attrs.get(CALLS, cell.budget))
            value = math.nan if trial.value is None else float(trial.value)
            marks = {**trial.intermediate_values, calls: value}
            found.setdefault(cell.index, _run(cell.index, "", cell.value, 0, marks))
    return tuple(found[index] for index in sorted(found))


def _task_runs(study: optuna.Study) -> list[Run]:
    """Return the runs of a whole sweep, put together from the trials of its tasks."""
    begun: dict[int, tuple[str, float, int]] = {}  # by run: base, value, its first call
    marks: dict[int, dict[int, float]] = {}  # by run: calls at the end of each part -> loss
    for trial in trials_of(study):
        label = trial.system_attrs.get(TASK)
        if trial.state == TrialState.COMPLETE and isinstance(label, dict) and label.get("runs"):
            outcome = outcome_from_dict(json.loads(joined(trial.system_attrs, OUTCOME)))
            assert isinstance(outcome, TrainOutcome)
            pairs = zip(label["runs"], outcome.segments, strict=True)
            for (arm, base, value, start, stop), item in pairs:
                first = min(start, begun[arm][2]) if arm in begun else start
                begun[arm] = base, value, first
                marks.setdefault(arm, {})[stop] = item.loss if item.finite else math.nan
    return [_run(arm, *begun[arm], marks[arm]) for arm in sorted(begun)]


def _run(arm: int, base: str, value: float, start: int, marks: Mapping[int, float]) -> Run:
    """Return a run from its losses by calls."""
    stops = sorted(int(call) for call in marks if call > 0)
    losses = tuple(float(marks[stop]) for stop in stops)
    parts, finite = tuple(zip([start, *stops], stops, strict=False)), math.isfinite(losses[-1])
    return Run(arm, base, value, 0.0, stops[-1], finite, parts, curve=(), losses=losses)


def _runs(study: optuna.Study) -> tuple[list[Run], int]:
    """Return the runs, and which one was chosen: 0 where none was, or where x0 won."""
    note = study_json(study, CHOICE)
    if not (runs := [*_task_runs(study), *cell_runs(study)]):
        raise InputError(f"study {study.study_name!r} has no run of grasp_tune that has ended")
    return runs, 0 if note is None else int(note["candidate"]["arm"])
