"""The figures of a sweep: one set of plotly figures for reports, notebooks and dashboards.

Plotly is loaded when a figure is wanted, not before: training needs none of it. `curve_lines` is
the same picture of the curves as plain numbers, for a report without plotly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from grasp_tune.core.ensemble import Tally
from grasp_tune.extras import need
from grasp_tune.report.formatting import number, quantities

if TYPE_CHECKING:
    from grasp_tune.core.choice import Candidate
    from grasp_tune.runtime.result import Result, Run

TOP = 8  # curves in one figure of a notebook; more cannot be told apart
SMALL, LARGE = 7.0, 26.0  # pixels: the markers of the shortest and the longest run
CHOSEN, OTHER, LOST, EDGE = "#0b6e75", "#8fa1b3", "#b4532a", "#ffffff"
_CROSS = {"color": LOST, "symbol": "x-thin-open", "size": 9}
_CLIP = 4.0  # losses above so many times the start's are drawn at the edge
_FAR = 100.0  # a method whose number is so many times the median is drawn at the edge


def result_figures(result: Result) -> dict[str, Any]:
    """Return `scores`, `curves` and `calls`; `MissingExtra` where plotly is not installed."""
    figures = {"scores": score_figure, "curves": curve_figure, "calls": call_figure}
    return {name: draw(result) for name, draw in figures.items()}


def score_figure(result: Result) -> Any:
    """Return how each run ended against its step size or distance, the chosen one marked.

    Where losses of training minibatches are compared, a run that was scored stands at its score
    and the others at their last mean loss. Where validation data scored them, all stand at their
    training loss, so that like is compared with like.
    """
    chosen, start = result.choice.chosen, result.candidates[0].score
    losses = result.choice.by == "value"
    trained = losses and result.validation is not None
    heights = {run.arm: run.last_loss if losses else math.nan for run in result.runs}
    for row in () if trained else sorted(result.candidates, key=lambda row: -row.score):
        if math.isfinite(row.score):
            heights[row.arm] = row.score  # the lowest of its scores comes last
    height = heights.get(chosen.arm, math.nan)
    figure = run_scatter(
        result.runs,
        heights,
        (chosen.value, height) if chosen.arm and math.isfinite(height) else None,
        quantities(run.base for run in result.runs),
        "norm of the mean gradient" if not losses else f"mean {'training ' * trained}loss",
    )
    if math.isfinite(start) and not trained:
        figure.add_hline(y=start, line_dash="dot", line_color=OTHER, annotation_text="start point")
        low, high = axis_ends(list(heights.values()), result.runs)
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
    low, high = axis_ends(list(heights.values()), runs)
    good = [run for run in runs if heights[run.arm] <= high]
    bad = [run for run in runs if not run.finite or heights[run.arm] > high]
    most = max((run.calls for run in runs), default=1)
    sizes = [SMALL + (LARGE - SMALL) * math.sqrt(run.calls / most) for run in good]
    trail = [(run.value, loss) for run in good for loss in run.losses[:-1] if low <= loss <= high]
    figure = _figure(x_title, y_title)
    dots = {"color": OTHER, "opacity": 0.85, "size": sizes, "line": {"width": 1, "color": EDGE}}
    star = {"symbol": "star", "color": CHOSEN, "size": 18}
    places = [(run.value, heights[run.arm]) for run in good]
    faint = {"color": OTHER, "opacity": 0.5, "size": 4}
    _add(figure, "on the way", trail, mode="markers", marker=faint)
    _add(figure, "runs", places, map(run_words, good), mode="markers", marker=dots)
    lost = [(run.value, high) for run in bad]
    _add(figure, "diverged", lost, map(run_words, bad), mode="markers", marker=_CROSS)
    _add(figure, "chosen", [chosen] if chosen else [], mode="markers", marker=star)
    figure.update_xaxes(**_log_axis([run.value for run in runs]))
    figure.update_yaxes(**_log_axis([height for height in heights.values() if height <= high]))
    return figure


def curve_figure(result: Result, top: int = TOP) -> Any:
    """Return the losses of the `top` runs with the lowest last loss, by their oracle calls.

    The chosen run is drawn from the start point on, whatever its number was at first. Where it was
    looked at on validation data, these points are drawn, too, with their standard errors.
    """
    winner = result.choice.chosen.arm
    ended = [run for run in result.runs if run.curve and math.isfinite(run.last_loss)]
    best = sorted(ended, key=lambda run: (run.arm != winner, run.last_loss))[:top]
    lines = [(run, [(call, loss) for call, loss, _ in curve_of(result, run)]) for run in best]
    figure = line_figure(lines, winner, "oracle calls of the run", "mean loss")
    if rows := validation_looks(result):
        _add(
            figure,
            "validation loss" if result.metric is None else f"validation: 1 − {result.metric}",
            [(max(1, row.call), row.score) for row in rows],  # a logarithmic axis has no zero
            mode="lines+markers",
            line={"width": 2, "color": LOST, "dash": "dot"},
            error_y={"type": "data", "array": [error_bar(row) or 0.0 for row in rows]},
        )
        ends = [math.log10(row.score) for row in rows if 0 < row.score < math.inf]
        if shown := figure.layout.yaxis.range:
            figure.update_yaxes(range=[min(*shown, *ends), max(*shown, *ends)])
    return figure


def line_figure(
    lines: Sequence[tuple[Run, Sequence[tuple[float, float]]]],
    winner: int,
    x_title: str,
    y_title: str,
    mode: str = "lines",
) -> Any:
    """Return a line for each run through its points (calls, loss), the winner's on top."""
    figure = _figure(x_title, y_title)
    for run, points in sorted(lines, key=lambda line: line[0].arm == winner):
        won = run.arm == winner
        look = {"width": 3, "color": CHOSEN} if won else {"width": 1.5, "color": OTHER}
        name = f"run {run.arm}: {run.base} {run.value:.3g}" + " (chosen)" * won
        faint = 1.0 if won else 0.6
        _add(figure, escape(name), points, (), mode=mode, line=look, opacity=faint, showlegend=won)
    losses = [loss for _, points in lines for _, loss in points]
    figure.update_xaxes(**_log_axis([call for _, points in lines for call, _ in points]))
    figure.update_yaxes(**_log_axis(losses))
    if losses and min(losses) >= 0.0:
        low, high = axis_ends(losses, [run for run, _ in lines])
        figure.update_yaxes(range=[math.log10(low), math.log10(high)])
    return figure


def call_figure(result: Result) -> Any:
    """Return where the oracle calls went: a bar for each purpose, training cut by its use."""
    colours, figure = {"c": CHOSEN, "f": LOST}, _figure("oracle calls", "")
    for row, words, calls, kind in call_parts(result):
        marker = {"color": colours.get(kind, OTHER), "opacity": 0.4 if kind in "be" else 1}
        figure.add_bar(y=[row], x=[calls], name=words, orientation="h", marker=marker)
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return figure


def strip_figure(rows: Sequence[tuple[str, bool, Sequence[tuple[str, float]]]], title: str) -> Any:
    """Return a line of dots for each method: (name, whether it is ours, its (words, number)s).

    A number far above the others is a cross at the right edge: it would squeeze them into a line.
    """
    figure = _figure(title, "")
    values = [value for _, _, dots in rows for _, value in dots]
    positive = bool(values) and min(values) > 0
    edge = _FAR * median(values) if positive else math.inf
    shown = [value for value in values if value <= edge]
    dot = {"size": 10, "opacity": 0.8}
    looks = {"ours": {**dot, "color": CHOSEN}, "others": {**dot, "color": OTHER}}
    for kind, look in {**looks, "off the scale": _CROSS}.items():
        places, told = [], []
        for name, ours, dots in rows:
            for words, value in dots:
                if kind == ("off the scale" if value > edge else "ours" if ours else "others"):
                    places.append((min(value, 1.5 * max(shown)), escape(name)))
                    told.append(f"{words}: {number(value)}")
        _add(figure, kind, places, told, mode="markers", marker=look)
    if positive and max(shown) > 3 * min(shown):
        figure.update_xaxes(**_log_axis(shown))
    names = [escape(name) for name, _, _ in rows]  # every one, also of those without a dot
    axis = {"categoryorder": "array", "categoryarray": names, "tickvals": names}
    figure.update_yaxes(autorange="reversed", **axis)
    figure.update_layout(height=110 + 22 * len(names))
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


def curve_of(result: Result, run: Run) -> Sequence[tuple[int, float, float]]:
    """The curve of a run, the chosen one's from the start point on."""
    return winning_curve(result) if run.arm == result.choice.chosen.arm else run.curve


def validation_looks(result: Result) -> list[Candidate]:
    """The chosen run on validation data along its calls, the start point first; [] without such."""
    line = {0, *(run.arm for run, _ in lineage(result))}
    rows = [row for row in result.candidates if row.samples and not row.average]
    seen = [] if result.validation is None else [row for row in rows if row.arm in line]
    return sorted(seen, key=lambda row: row.call)


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
    runs = sorted(result.runs, key=lambda run: run.arm == chosen)
    points = [point for run in runs for point in curve_of(result, run)]
    if not points:
        return None
    last = max(call for call, _, _ in points)
    low, high = axis_ends([loss for _, loss, _ in points], result.runs)

    def place(call: int, loss: float) -> str:
        x = 64 + (width - 80) * math.log(max(call, 1)) / math.log(max(last, 2))
        y = math.log(high / min(max(loss, low), high)) / math.log(high / low)
        return f"{x:.1f},{16 + (height - 68) * y:.1f}"

    lines = []
    for run in runs:
        seen = [place(at, loss) for at, loss, _ in curve_of(result, run) if 0 < loss < math.inf]
        kind = "chosen" if run.arm == chosen else "" if run.finite else "lost"
        lines.append({"kind": kind, "points": " ".join(seen), "title": run_words(run)})
    ends = {"low": number(low, 2), "high": number(high, 2), "last": f"{last:,}"}
    return {"width": width, "height": height, "lines": lines, **ends}


def run_words(run: Run) -> str:
    """A run in one line."""
    loss = next((x for x in reversed(run.losses) if math.isfinite(x)), math.nan)
    end = f"loss {number(loss)}" if run.finite else "diverged"
    return f"run {run.arm}, {run.base} {number(run.value, 3)}: {run.calls:,} calls, {end}"


def error_bar(row: Candidate) -> float | None:
    """The standard error of a candidate's mean loss; None where it has fewer than two samples."""
    spread = Tally(row.samples, row.score, row.square).variance
    return math.sqrt(spread / row.samples) if math.isfinite(spread) else None


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


def _figure(x_title: str, y_title: str) -> Any:
    return need("plotly.graph_objects", "report", "a figure").Figure(
        layout={
            "template": "plotly_white",
            "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
            "xaxis": {"title": {"text": x_title}},
            "yaxis": {"title": {"text": y_title}},
            "hovermode": "closest",
            "showlegend": True,
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0},
        }
    )


def _add(
    figure: Any,
    name: str,
    points: Sequence[tuple[float, Any]],
    words: Iterable[str] = (),
    **look: Any,
) -> None:
    """Add marks or a line, where there are points; `words` are shown at each."""
    if points:
        told = [escape(text) for text in words]
        hover = "%{text}" if told else f"{name}<br>%{{x:,}}: %{{y:.4g}}"
        x, y = (list(side) for side in zip(*points, strict=True))
        hover += "<extra></extra>"
        figure.add_scatter(x=x, y=y, name=name, text=told or None, hovertemplate=hover, **look)


def _log_axis(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis, with as many powers of ten as fit; a plain one for values < 0."""
    known = [value for value in values if 0.0 < value < math.inf]
    if not known or any(value < 0.0 for value in values):
        return {}
    decades = math.log10(max(known) / min(known))
    if decades < 2.0:  # marks between powers of ten, too, written in full
        return {"type": "log", "dtick": "D1" if decades < 0.5 else "D2", "tickformat": "~g"}
    return {"type": "log", "dtick": math.ceil(decades / 7), "exponentformat": "power"}
