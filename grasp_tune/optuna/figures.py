"""The report's figures for a sweep on a study, for notebooks and for optuna-dashboard.

They only read the study, so any process can draw them, during the sweep or after it.
"""

import math
from collections.abc import Sequence
from typing import Any

import optuna

from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Plan
from grasp_tune.core.search import Search
from grasp_tune.executors.study import CHOICE, StudyLog, spec_on
from grasp_tune.extras import need
from grasp_tune.optuna.sampler import CellLog
from grasp_tune.optuna.study_sampler import Assignments
from grasp_tune.runtime.result import Result, Run
from grasp_tune.schedules.cells import Cells, CellSearch

LOSS_ID, RUNGS_ID = "grasp-loss", "grasp-rungs"


def loss_figure(study: optuna.Study) -> Any:
    """Return a figure of each run's last loss against its step size; dot sizes show its calls."""
    from grasp_tune.report.figures import run_scatter

    runs, chosen, plan = _runs(study)
    heights = {run.arm: run.last_loss for run in runs}
    words = "step size, radius or distance" if plan is None else plan.quantity
    return run_scatter(runs, heights, chosen, words, "mean loss at the end of the run")


def rung_figure(study: optuna.Study) -> Any:
    """Return a figure of each run's loss after each of its parts; the chosen run is marked."""
    from grasp_tune.report.figures import line_figure

    runs, chosen, _ = _runs(study)
    lines = []
    for run in runs:
        points = zip(run.stretches, run.losses, strict=True)
        lines.append((run, [(stop, loss) for (_, stop), loss in points if math.isfinite(loss)]))
    axes = ("oracle calls of the run", "mean loss")
    return line_figure([line for line in lines if line[1]], chosen, *axes, mode="lines+markers")


def save_figures(study: optuna.Study) -> tuple[str, str]:
    """Return the ids of both figures, after saving them on the study for optuna-dashboard."""
    dashboard = need("optuna_dashboard", "storage", "save_figures", "optuna-dashboard")
    save = dashboard.save_plotly_graph_object
    save(study, loss_figure(study), graph_object_id=LOSS_ID)
    save(study, rung_figure(study), graph_object_id=RUNGS_ID)
    return LOSS_ID, RUNGS_ID


def _runs(study: optuna.Study) -> tuple[Sequence[Run], int, Plan | None]:
    """Return the runs on a study, the chosen one (0: none or x0), and the plan if it has cells."""
    if (spec := spec_on(study)) is not None:
        cells = isinstance(spec.schedule, Cells)
        search = CellSearch(spec) if cells else Search(spec)
        Assignments((CellLog if cells else StudyLog)(study, spec), search).learn()
        if runs := Result.of(search, {}).steady_runs:
            note = study.user_attrs.get(CHOICE)
            chosen = 0 if note is None else int(note["candidate"]["arm"])
            return runs, chosen, search.plan if cells else None
    raise InputError(f"study {study.study_name!r} has no run of grasp_tune that has ended")
