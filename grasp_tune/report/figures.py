"""The figures of a sweep: one set of plotly figures for reports, notebooks and dashboards.

Plotly is loaded when a figure is wanted, not before: training needs none of it. `curve_lines` is
the same picture of the curves as plain numbers, for a report without plotly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from grasp_tune.extras import need
from grasp_tune.report.formatting import number, quantities

if TYPE_CHECKING:
    from grasp_tune.runtime.result import Result, Run

TOP = 8  # curves in one figure of a notebook; more cannot be told apart
SMALL, LARGE = 7.0, 26.0  # pixels: the markers of the shortest and the longest run
CHOSEN, OTHER, LOST, EDGE = "#0b6e75", "#8fa1b3", "#b4532a", "#ffffff"
_CLIP = 4.0  # losses above so many times the start's are drawn at the edge
_HOVER = "%{text}<extra></extra>"


def result_figures(result: Result) -> dict[str, Any]:
    """Return `scores`, `curves` and `calls`; `MissingExtra` where plotly is not installed."""
    return {
        "scores": score_figure(result),
        "curves": curve_figure(result),
        "calls": call_figure(result),
    }


def score_figure(result: Result) -> Any:
    """Return how each run ended against its step size or distance, the chosen one marked.

    A run that was scored stands at its score; where losses are compared, the others stand at their
    last mean loss. The size of a marker is the run's share of the calls.
    """
    chosen, start = result.choice.chosen, result.candidates[0].score
    point = (chosen.value, chosen.score) if chosen.arm and math.isfinite(chosen.score) else None
    measure = "mean loss" if result.choice.by == "value" else "norm of the mean gradient"
    measure = measure if result.metric is None else f"1 − {result.metric}"
    heights = {run.arm: _height(result, run) for run in result.runs}
    title = quantities(run.base for run in result.runs)
    runs = result.runs
    if result.metric is not None:  # losses on the way are in other units
        runs = tuple(replace(run, losses=()) for run in runs)
    figure = run_scatter(runs, heights, point, title, measure)
    if math.isfinite(start):
        figure.add_hline(y=start, line_dash="dot", line_color=OTHER, annotation_text="start point")
        low, high = axis_ends([*heights.values(), start], result.runs)
        if figure.layout.yaxis.type == "log":  # the words at the line would stretch it
            figure.update_yaxes(range=[math.log10(low), math.log10(high) + 0.2])
    return figure


def run_scatter(
    runs: Sequence[Run],
    heights: Mapping[int, float],
    chosen: tuple[float, float] | None,
    x_title: str,
    y_title: str,
) -> Any:
    """Return a marker for each run at its value, the larger the more calls it was given.

    heights: where each run stands, by its number; NaN leaves it out. A run that diverged, or one
        far above the losses that runs begin with, is a cross at the upper edge.
    chosen: where the choice stands.
    """
    plot = _plotly()
    figure = plot.Figure()
    low, high = axis_ends(list(heights.values()), runs)
    good = [run for run in runs if heights[run.arm] <= high]
    bad = [run for run in runs if not run.finite or heights[run.arm] > high]
    most = max((run.calls for run in runs), default=1)
    trail = [(run.value, loss) for run in good for loss in run.losses[:-1] if low <= loss <= high]
    marker = {"opacity": 0.85, "color": OTHER, "line": {"width": 1, "color": EDGE}}
    sizes = [SMALL + (LARGE - SMALL) * math.sqrt(run.calls / most) for run in good]
    for name, rows, look in (
        ("on the way", trail, {"color": OTHER, "opacity": 0.5, "size": [4.0] * len(trail)}),
        ("runs", [(run.value, heights[run.arm]) for run in good], {**marker, "size": sizes}),
        (
            "diverged",
            [(run.value, high) for run in bad],
            {"color": LOST, "symbol": "x-thin-open", "size": [9.0] * len(bad)},
        ),
        ("chosen", [chosen] if chosen else [], {"symbol": "star", "color": CHOSEN, "size": [18]}),
    ):
        words = {"runs": good, "diverged": bad}.get(name, [])
        if rows:
            figure.add_scatter(
                x=[x for x, _ in rows],
                y=[y for _, y in rows],
                mode="markers",
                name=name,
                marker=look,
                text=[escape(run_words(run)) for run in words] or None,
                hovertemplate=_HOVER if words else f"{name}: %{{y:.4g}}<extra></extra>",
            )
    figure.update_layout(**_layout(x_title, y_title, legend=True))
    figure.update_xaxes(**_decades([run.value for run in runs]))
    figure.update_yaxes(**_decades([height for height in heights.values() if height <= high]))
    return figure


def curve_figure(result: Result, top: int = TOP) -> Any:
    """Return the losses of the `top` runs with the lowest last loss, by their oracle calls.

    The chosen run is drawn from the start point on, whatever its number was at first.
    """
    winner = result.choice.chosen.arm
    ended = [run for run in result.runs if run.curve and math.isfinite(run.last_loss)]
    best = sorted(ended, key=lambda run: (run.arm != winner, run.last_loss))[:top]
    lines = [(run, winning_curve(result) if run.arm == winner else run.curve) for run in best]
    return line_figure(
        [(run, [(call, loss) for call, loss, _ in curve]) for run, curve in lines],
        winner,
        "oracle calls of the run",
        "mean training loss",
    )


def line_figure(
    lines: Sequence[tuple[Run, Sequence[tuple[float, float]]]],
    winner: int,
    x_title: str,
    y_title: str,
    mode: str = "lines",
) -> Any:
    """Return a line for each run through its points (calls, loss), the winner's on top."""
    figure = _plotly().Figure()
    for run, points in sorted(lines, key=lambda line: line[0].arm == winner):
        won = run.arm == winner
        name = f"run {run.arm}: {run.base} {run.value:.3g}" + (" (chosen)" if won else "")
        figure.add_scatter(
            x=[call for call, _ in points],
            y=[loss for _, loss in points],
            mode=mode,
            name=escape(name),
            line={"width": 3, "color": CHOSEN} if won else {"width": 1.5, "color": OTHER},
            opacity=1.0 if won else 0.6,
            showlegend=won,
            hovertemplate=f"{escape(name)}<br>call %{{x:,}}: loss %{{y:.4g}}<extra></extra>",
        )
    figure.update_layout(**_layout(x_title, y_title, legend=True))
    figure.update_xaxes(**_decades([call for _, points in lines for call, _ in points]))
    losses = [loss for _, points in lines for _, loss in points]
    figure.update_yaxes(**_decades(losses))
    low, high = axis_ends(losses, [run for run, _ in lines])
    if losses and min(losses) >= 0.0:
        figure.update_yaxes(range=[math.log10(low), math.log10(high)])
    return figure


def validation_figure(result: Result) -> Any:
    """Return how the chosen run did on validation data along its calls, beside its training loss.

    None where it was looked at fewer than twice; the points are its candidates, the looks of early
    stopping among them, each with its standard error.
    """
    line = {run.arm for run, _ in lineage(result)}
    seen = [row for row in result.candidates if row.samples and not row.average]
    rows = sorted((row for row in seen if row.arm in line), key=lambda row: row.call)
    if result.validation is None or len(rows) < 2:
        return None
    name = "validation loss" if result.metric is None else f"validation: 1 − {result.metric}"
    figure = _plotly().Figure()
    curve = winning_curve(result) if result.metric is None else []
    if curve:
        figure.add_scatter(
            x=[call for call, _, _ in curve],
            y=[loss for _, loss, _ in curve],
            mode="lines",
            name="training loss",
            line={"width": 1.5, "color": OTHER},
        )
    errors = [math.sqrt(max(0.0, row.square - row.score**2) / row.samples) for row in rows]
    figure.add_scatter(
        x=[row.call for row in rows],
        y=[row.score for row in rows],
        error_y={"type": "data", "array": errors, "thickness": 1},
        mode="lines+markers",
        name=name,
        line={"width": 2.5, "color": CHOSEN},
        hovertemplate="call %{x:,}: %{y:.4g}<extra></extra>",
    )
    figure.update_layout(**_layout("oracle calls of the run", name, legend=True))
    heights = [row.score for row in rows] + [loss for _, loss, _ in curve]
    calls = [row.call for row in rows] + [call for call, _, _ in curve]
    figure.update_xaxes(**_decades(calls))
    figure.update_yaxes(**_decades(heights) if min(heights) > 0 else {})
    return figure


def call_figure(result: Result) -> Any:
    """Return where the oracle calls went: a bar for each purpose, training cut by its use."""
    plot = _plotly()
    colours = {"c": CHOSEN, "f": LOST}
    figure = plot.Figure(
        [
            plot.Bar(
                y=[row],
                x=[calls],
                name=words,
                orientation="h",
                marker={"color": colours.get(kind, OTHER), "opacity": 0.4 if kind in "be" else 1},
            )
            for row, words, calls, kind in call_parts(result)
        ]
    )
    figure.update_layout(barmode="stack", **_layout("oracle calls", "", legend=True))
    figure.update_yaxes(autorange="reversed")
    return figure


def strip_figure(rows: Iterable[tuple[str, bool, Sequence[tuple[str, float]]]], title: str) -> Any:
    """Return a line of dots for each method: (name, whether it is ours, its (words, number)s)."""
    figure = _plotly().Figure()
    kept = [(name, ours, dots) for name, ours, dots in rows if dots]
    for name, ours, dots in kept:
        figure.add_scatter(
            x=[value for _, value in dots],
            y=[escape(name)] * len(dots),
            mode="markers",
            name=escape(name),
            showlegend=False,
            marker={"size": 10, "opacity": 0.8, "color": CHOSEN if ours else OTHER},
            text=[escape(f"{words}: {number(value)}") for words, value in dots],
            hovertemplate=_HOVER,
        )
    values = [value for _, _, dots in kept for _, value in dots]
    figure.update_layout(**_layout(title, ""))
    if values and min(values) > 0 and max(values) > 3 * min(values):
        figure.update_xaxes(**_decades(values))
    figure.update_yaxes(autorange="reversed")
    return figure


def call_parts(result: Result) -> list[tuple[str, str, int, str]]:
    """What the calls were for: (purpose, words, calls, kind of bar), in the order of the run."""
    calls, chosen = result.calls, result.choice.chosen.arm
    won = [run for run in result.runs if run.arm == chosen]
    # A run whose step changes has a new number from there on; its calls are counted from x0.
    winner = sum(run.calls + (run.stretches[0][0] if run.stretches else 0) for run in won)
    others = sum(run.calls for run in result.runs) - winner
    parts = [
        ("probe", "looking at the start point", calls.get("probe", 0), "a"),
        ("train", "training the runs that lost", others, "b"),
        ("train", "training the run that won", winner, "c"),
        ("ensemble", "choosing, on fresh samples", calls.get("ensemble", 0), "d"),
    ]
    rest = int(result.spec["budget"]) - sum(amount for _, _, amount, _ in parts)
    parts.append(("not used", "not needed", max(0, rest), "e"))
    words = "repeated after a fault, not counted"
    parts.append(("repeated", words, calls.get("repeated", 0), "f"))
    return [part for part in parts if part[2] > 0]


def winning_curve(result: Result) -> list[tuple[int, float, float]]:
    """The curve of the chosen run from the start point on: (call, loss, gradient norm).

    Where its step changed it went on from another run's state, with a number of its own.
    """
    return [
        point for run, stop in reversed(lineage(result)) for point in run.curve if point[0] <= stop
    ]


def lineage(result: Result) -> list[tuple[Run, float]]:
    """The chosen run and those that it went on from, each with the call up to which it counts."""
    runs = {run.arm: run for run in result.runs}
    run, stop = runs.get(result.choice.chosen.arm), math.inf
    found = []
    while run is not None:
        found.append((run, stop))
        stop = run.stretches[0][0] if run.stretches else 0
        run = runs.get(run.parent) if stop else None
    return found


def curve_lines(result: Result, width: int = 720, height: int = 380) -> dict[str, Any] | None:
    """The curves of all runs as places in a drawing, for SVG; None where there is none."""
    chosen = result.choice.chosen.arm
    curves = [
        (run, winning_curve(result) if run.arm == chosen else run.curve)
        for run in sorted(result.runs, key=lambda run: run.arm == chosen)
    ]
    losses = [loss for _, curve in curves for _, loss, _ in curve]
    last = max((call for _, curve in curves for call, _, _ in curve), default=0)
    if not last:
        return None
    low, high = axis_ends(losses, result.runs)
    span_x, span_y = math.log(max(last, 2)), math.log(high / low)

    def place(call: int, loss: float) -> str:
        x = 64 + (width - 80) * math.log(max(call, 1)) / span_x
        y = 16 + (height - 68) * math.log(high / min(max(loss, low), high)) / span_y
        return f"{x:.1f},{y:.1f}"

    lines = []
    for run, curve in curves:
        points = [place(c, loss) for c, loss, _ in curve if math.isfinite(loss) and loss > 0]
        kind = "chosen" if run.arm == chosen else "" if run.finite else "lost"
        lines.append({"kind": kind, "points": " ".join(points), "title": run_words(run)})
    ends = {"low": number(low, 2), "high": number(high, 2), "last": f"{last:,}"}
    return {"width": width, "height": height, "lines": lines, **ends}


def run_words(run: Run) -> str:
    """A run in one line."""
    loss = next((x for x in reversed(run.losses) if math.isfinite(x)), math.nan)
    name = f"run {run.arm}, {run.base} {number(run.value, 3)}"
    end = f"loss {number(loss)}" if run.finite else "diverged"
    return f"{name}: {run.calls:,} calls, {end}"


def axis_ends(losses: Sequence[float], runs: Sequence[Run]) -> tuple[float, float]:
    """The ends of an axis of losses: explosions do not squeeze the rest into a line.

    What is high is measured by the first losses of the runs that begin at the start point.
    """
    known = [loss for loss in losses if 0.0 < loss < math.inf]
    begun = [run for run in runs if run.curve and run.stretches and not run.stretches[0][0]]
    firsts = sorted(loss for run in begun if 0 < (loss := run.curve[0][1]) < math.inf)
    top = _CLIP * firsts[len(firsts) // 4] if firsts else math.inf
    shown = [loss for loss in known if loss <= top] or known or [0.1, 1.0]
    room = max((max(shown) / min(shown)) ** 0.05, 1.05)
    return min(shown) / room, max(shown) * room


def _plotly() -> Any:
    return need("plotly.graph_objects", "report", "a figure")


def _height(result: Result, run: Run) -> float:
    """Return where a run stands in the figure of scores."""
    own = [row.score for row in result.candidates if row.arm == run.arm]
    if scores := [score for score in own if math.isfinite(score)]:
        return min(scores)
    losses = result.choice.by == "value" and result.metric is None
    return run.last_loss if losses else math.nan


def _decades(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis, with as many powers of ten as fit; a plain one for values < 0."""
    known = [value for value in values if 0.0 < value < math.inf]
    if not known or any(value < 0.0 for value in values):
        return {}
    decades = math.log10(max(known) / min(known))
    if decades < 2.0:  # marks that are numbers in full, some of them between powers of ten
        low, high = min(known) / 1.5, max(known) * 1.5
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        for steps in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3)):
            marks = [step * 10.0**power for power in powers for step in steps]
            marks = [mark for mark in marks if low <= mark <= high]
            if len(marks) <= 6:
                break
        marks = marks if decades else known[:1]
        words = [f"{mark:.3g}" if mark < 100 else f"{mark:g}" for mark in marks]
        return {"type": "log", "tickvals": marks, "ticktext": words}
    return {"type": "log", "dtick": math.ceil(decades / 7), "exponentformat": "power"}


def _layout(x_title: str, y_title: str, *, legend: bool = False) -> dict[str, Any]:
    return {
        "template": "plotly_white",
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "xaxis_title": x_title,
        "yaxis_title": y_title,
        "hovermode": "closest",
        "showlegend": legend,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0},
    }
