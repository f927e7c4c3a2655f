"""The drawings of a report as figures for plotly.js, which answer to the pointer.

Plain JSON values. Colours are names with an @ in front; the page puts its own in their place, so
that figures follow the light and the dark style.
"""

from __future__ import annotations

import math
from html import escape
from typing import Any

from grasp_tune.report.charts import axis_ends, quantity_of, run_words
from grasp_tune.runtime.result import Result, Run

Figure = dict[str, Any]


def score_figure(result: Result) -> Figure:
    """Loss of every run at the end of each of its stretches, against its value."""
    chosen = result.choice.chosen.arm
    runs = [run for run in result.runs if run.value > 0 and math.isfinite(run.value)]
    most = max((run.calls for run in runs), default=1)
    traces: list[Figure] = []
    for kind, colour in ((False, "@mark"), (True, "@accent")):
        group = [run for run in runs if (run.arm == chosen) is kind]
        traces += [_threads(group, colour), _ends(group, colour, most)]
    lost = [run for run in runs if not run.finite]
    losses = [loss for run in runs for loss in run.losses]
    low, high = axis_ends(losses, result)
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [run.value for run in lost],
            "y": [high / (high / low) ** 0.02 for _ in lost],
            "text": [escape(f"{run_words(run)}, diverged") for run in lost],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"symbol": "x-thin", "size": 8, "line": {"color": "@warm", "width": 1.5}},
        }
    )
    values = [run.value for run in runs] or [1.0]
    decades = math.log10(max(values) / min(values))
    layout = _layout(quantity_of(result), "mean loss", low, high, max(1, math.ceil(decades / 7)))
    return {"data": traces, "layout": layout}


def curve_figure(result: Result) -> Figure:
    """Mean training loss of every run along its own oracle calls."""
    chosen = result.choice.chosen.arm
    runs = sorted((run for run in result.runs if run.curve), key=lambda run: run.arm == chosen)
    losses = [loss for run in runs for _, loss, _ in run.curve]
    low, high = axis_ends(losses, result)
    traces = []
    for run in runs:
        mine = run.arm == chosen
        colour = "@accent" if mine else "@mark" if run.finite else "@warm"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [max(call, 1) for call, _, _ in run.curve],
                "y": [_known(loss) for _, loss, _ in run.curve],
                "line": {"color": colour, "width": 2.2 if mine else 1.1},
                "opacity": 1.0 if mine else 0.6,
                "hovertemplate": f"{escape(run_words(run))}<br>call %{{x:,}}: loss %{{y:.4g}}"
                "<extra></extra>",
            }
        )
    return {
        "data": traces,
        "layout": _layout("oracle calls of the run", "training loss", low, high),
    }


def _threads(runs: list[Run], colour: str) -> Figure:
    """The way of each run through its stretches, one thin line each."""
    x: list[float | None] = []
    y: list[float | None] = []
    for run in runs:
        x += [*(run.value for _ in run.losses), None]
        y += [*(_known(loss) for loss in run.losses), None]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": x,
        "y": y,
        "opacity": 0.45,
        "line": {"color": colour, "width": 1},
        "marker": {"color": colour, "size": 4},
        "hoverinfo": "skip",
    }


def _ends(runs: list[Run], colour: str, most: int) -> Figure:
    """Where each run ended, the larger the more calls it was given."""
    ended = [run for run in runs if run.finite and run.losses and _known(run.losses[-1])]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [run.value for run in ended],
        "y": [run.losses[-1] for run in ended],
        "text": [escape(run_words(run)) for run in ended],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "color": colour,
            "size": [7 + 17 * math.sqrt(run.calls / most) for run in ended],
            "opacity": 0.85,
            "line": {"color": "@card", "width": 1},
        },
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) and value > 0 else None


def _layout(x_title: str, y_title: str, low: float, high: float, x_step: int = 1) -> Figure:
    axis = {"type": "log", "exponentformat": "power", "dtick": 1, "zeroline": False}
    ends = [math.log10(low), math.log10(high)]
    # With little more than a decade to show, one tick a decade would leave the axis bare.
    narrow = ends[1] - ends[0] < 1.5
    return {
        "showlegend": False,
        "hovermode": "closest",
        "xaxis": {**axis, "title": {"text": x_title}, "tickangle": 0, "dtick": x_step},
        "yaxis": {
            **axis,
            "title": {"text": y_title},
            "range": ends,
            **({"dtick": "D2"} if narrow else {}),
        },
    }
