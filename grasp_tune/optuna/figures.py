"""A sweep on a study as the report's figures, for notebooks and for optuna-dashboard.

Both read what is on the study, so they can be drawn by any process, during the sweep or after it.
"""

import math
from collections.abc import Sequence
from typing import Any

import optuna

from grasp_tune.core.errors import InputError
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.executors.study import CHOICE, SETTING, fingerprint, study_json
from grasp_tune.executors.study_log import StudyLog
from grasp_tune.extras import need
from grasp_tune.optuna.sampler import GraspSampler, StoredPlan
from grasp_tune.optuna.study_sampler import Assignments
from grasp_tune.runtime.result import Result, Run

LOSS_ID, RUNGS_ID = "grasp-loss", "grasp-rungs"


def loss_figure(study: optuna.Study) -> Any:
    """Return the last loss of each run against its step size, sized by its oracle calls."""
    from grasp_tune.report.figures import run_scatter

    runs, chosen = _runs(study)
    heights = {run.arm: run.last_loss for run in runs}
    plan = getattr(StoredPlan.on(study), "plan", None)
    words = "step size, radius or distance" if plan is None else plan.quantity
    return run_scatter(runs, heights, chosen, words, "mean loss at the end of the run")


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
    dashboard = need("optuna_dashboard", "storage", "save_figures", "optuna-dashboard")
    save = dashboard.save_plotly_graph_object
    save(study, loss_figure(study), graph_object_id=LOSS_ID)
    save(study, rung_figure(study), graph_object_id=RUNGS_ID)
    return LOSS_ID, RUNGS_ID


def _runs(study: optuna.Study) -> tuple[Sequence[Run], int]:
    """Return the runs on a study, and which of them was chosen: 0 where none was, or x0."""
    runs: Sequence[Run] = ()
    if (spec := study_json(study, SETTING)) is not None:
        # Of an optimizer of the user's own the name will do.
        module, own, name = (base := spec["method"].get("base") or "").partition(":")
        bases = {base: type(name, (), {"__module__": module})} if own else {}
        search = Search(SweepSpec.from_dict(spec, bases))
        log = StudyLog(study, fingerprint(spec, study.study_name))
        Assignments(log, search).learn()
        runs = Result.of(search, {}).runs
    elif StoredPlan.on(study) is not None:
        known = GraspSampler.from_study(study).assignments(study)
        known.learn()
        runs = known.search.result().runs if known.search.outcomes else ()
    if not runs:
        raise InputError(f"study {study.study_name!r} has no run of grasp_tune that has ended")
    note = study_json(study, CHOICE)
    return runs, 0 if note is None else int(note["candidate"]["arm"])
