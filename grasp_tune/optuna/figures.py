"""A sweep on a study as plotly figures, for notebooks and for optuna-dashboard.

Both read what is on the study, so they can be drawn by any process, during the sweep or after it.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError, MissingExtra
from grasp_tune.core.plan import Plan
from grasp_tune.core.tasks import TrainOutcome, outcome_from_dict
from grasp_tune.executors.optuna import OUTCOME, TASK
from grasp_tune.executors.study import CALLS, CELL, CHOICE, cell_on, joined, study_json, trials_of
from grasp_tune.optuna.plans import stored_plan

LOSS_ID = "grasp-loss"
RUNGS_ID = "grasp-rungs"

INK = "#1b3a57"
CHOSEN = "#d1495b"
QUIET = "#9aa9b5"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a run that has ended: from which to which of its oracle calls, and how."""

    run: int
    base: str
    value: float  # step size, radius or distance
    start: int
    stop: int
    loss: float  # not finite where the run diverged


def loss_figure(study: optuna.Study) -> Any:
    """Return the last loss of each run against its step size, sized by its oracle calls."""
    go = _plotly()
    stretches = _stretches(study)
    last = {item.run: item for item in stretches}
    good = [item for item in last.values() if math.isfinite(item.loss)]
    bad = [item for item in last.values() if not math.isfinite(item.loss)]
    chosen = _chosen(study)
    most = max((item.stop for item in good), default=1)
    figure = go.Figure()
    figure.add_scatter(
        x=[item.value for item in good],
        y=[item.loss for item in good],
        mode="markers",
        name="runs",
        marker={
            "size": [8 + 28 * math.sqrt(item.stop / most) for item in good],
            "color": INK,
            "opacity": 0.65,
            "line": {"width": 1, "color": "white"},
        },
        text=[_words(item) for item in good],
        hovertemplate="%{text}<extra></extra>",
    )
    if bad:
        figure.add_scatter(
            x=[item.value for item in bad],
            y=[max((item.loss for item in good), default=1.0)] * len(bad),
            mode="markers",
            name="diverged",
            marker={"symbol": "x", "size": 9, "color": QUIET},
            text=[_words(item) for item in bad],
            hovertemplate="%{text}<extra></extra>",
        )
    if chosen in last:
        item = last[chosen]
        figure.add_scatter(
            x=[item.value],
            y=[item.loss],
            mode="markers",
            name="chosen",
            marker={"symbol": "circle-open", "size": 44, "color": CHOSEN, "line": {"width": 3}},
            text=[_words(item)],
            hovertemplate="chosen: %{text}<extra></extra>",
        )
    figure.update_layout(**_layout("Loss against step size; size: oracle calls"))
    figure.update_xaxes(title=_axis(study), **_decades([item.value for item in last.values()]))
    figure.update_yaxes(title="mean loss at the end of the run")
    losses = [item.loss for item in good]
    if losses and min(losses) > 0.0 and max(losses) > 30.0 * min(losses):
        figure.update_yaxes(**_decades(losses))
    return figure


def rung_figure(study: optuna.Study) -> Any:
    """Return the loss of each run after each of its stretches: who went on, and who won."""
    go = _plotly()
    stretches = _stretches(study)
    chosen = _chosen(study)
    runs: dict[int, list[Stretch]] = {}
    for item in stretches:
        if math.isfinite(item.loss):
            runs.setdefault(item.run, []).append(item)
    figure = go.Figure()
    for run, parts in sorted(runs.items(), key=lambda pair: pair[0] == chosen):
        won = run == chosen
        figure.add_scatter(
            x=[item.stop for item in parts],
            y=[item.loss for item in parts],
            mode="lines+markers",
            name=f"run {run} (chosen)" if won else f"run {run}",
            line={"color": CHOSEN if won else INK, "width": 3 if won else 1},
            marker={"size": 9 if won else 5},
            opacity=1.0 if won else 0.45,
            text=[_words(item) for item in parts],
            hovertemplate="%{text}<extra></extra>",
            showlegend=won,
        )
    figure.update_layout(**_layout("Progress: loss of each run after each stretch"))
    figure.update_xaxes(
        title="oracle calls of the run", **_decades([item.stop for item in stretches])
    )
    figure.update_yaxes(title="mean loss")
    losses = [item.loss for parts in runs.values() for item in parts]
    if losses and min(losses) > 0.0 and max(losses) > 30.0 * min(losses):
        figure.update_yaxes(**_decades(losses))
    return figure


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


# -- reading the study ---------------------------------------------------------------------------


def _stretches(study: optuna.Study) -> list[Stretch]:
    """Return every stretch that has ended, by run and by its own calls."""
    found: dict[tuple[int, int], Stretch] = {}
    for trial in trials_of(study):
        if trial.state == TrialState.COMPLETE:
            for item in (*_of_task(trial), *_of_cell(trial)):
                found[item.run, item.stop] = item
    if not found:
        raise InputError(f"study {study.study_name!r} has no run of grasp_tune that has ended")
    return [found[key] for key in sorted(found)]


def _of_task(trial: FrozenTrial) -> list[Stretch]:
    label = trial.system_attrs.get(TASK)
    if not isinstance(label, dict) or not label.get("runs"):
        return []
    outcome = outcome_from_dict(json.loads(joined(trial.system_attrs, OUTCOME)))
    if not isinstance(outcome, TrainOutcome):
        return []
    pairs = zip(label["runs"], outcome.segments, strict=True)
    return [
        Stretch(run, base, value, start, stop, item.loss if item.finite else math.nan)
        for (run, base, value, start, stop), item in pairs
    ]


def _of_cell(trial: FrozenTrial) -> list[Stretch]:
    cell = cell_on(trial)
    if cell is None or trial.value is None or trial.user_attrs[CELL].get("void"):
        return []
    calls = int(trial.user_attrs.get(CALLS, cell.budget))
    marks = {**trial.intermediate_values, calls: float(trial.value)}
    value = next(iter(trial.params.values())) if len(trial.params) == 1 else cell.value
    return [
        Stretch(cell.index, "", value, before, int(call), float(loss))
        for before, (call, loss) in zip([0, *sorted(marks)], sorted(marks.items()), strict=False)
        if call > 0
    ]


def _chosen(study: optuna.Study) -> int:
    """Return the run that was chosen, 0 where none was, or where x0 won."""
    note = study_json(study, CHOICE)
    return 0 if note is None else int(note["candidate"]["arm"])


def _axis(study: optuna.Study) -> str:
    stored = stored_plan(study)
    if stored is None or not isinstance(stored.plan, Plan):
        return "step size, radius or distance"
    return stored.plan.quantity


# -- drawing -------------------------------------------------------------------------------------


def _plotly() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise MissingExtra("figures need plotly: pip install 'grasp_tune[report]'") from None
    return go


def _words(item: Stretch) -> str:
    loss = f"loss {item.loss:.4g}" if math.isfinite(item.loss) else "diverged"
    base = f"{item.base} " if item.base else ""
    return f"run {item.run}: {base}{item.value:.3g}, {item.stop} calls, {loss}"


def _decades(values: list[float] | list[int]) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at powers of ten, as many as fit."""
    low = min((math.log10(value) for value in values if value > 0), default=0.0)
    high = max((math.log10(value) for value in values if value > 0), default=1.0)
    if high - low < 2.0:
        return {"type": "log", "dtick": "D2"}  # at 2 and 5, too
    every = max(1, math.ceil((high - low) / 8))
    return {"type": "log", "dtick": every, "exponentformat": "power", "showexponent": "all"}


def _layout(title: str) -> dict[str, Any]:
    return {
        "title": title,
        "template": "plotly_white",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 1, "xanchor": "right"},
        "margin": {"l": 70, "r": 30, "t": 80, "b": 60},
    }
