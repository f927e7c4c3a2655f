"""The figures of a sweep: one set of plotly figures for reports, notebooks and dashboards.

Plotly is loaded when a figure is wanted, not before: training needs none of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from grasp_tune.extras import need
from grasp_tune.report.formatting import number, quantities
from grasp_tune.runtime.result import Look, Result, Run

TOP = 8  # curves in one figure of a notebook; more cannot be told apart
SMALL, LARGE = 7.0, 26.0  # pixels: the markers of the shortest and the longest run
CHOSEN, OTHER, LOST, EDGE = "#0b6e75", "#8fa1b3", "#b4532a", "#ffffff"
CROSS = {"color": LOST, "symbol": "x-thin-open", "size": 9}
_CLIP = 4.0  # losses above so many times the start's are drawn at the edge
_FAR = 10.0  # validation losses of other candidates above so many times the start's are left out
_DEEP = 1e-3  # of the lowest validation loss: training losses below it are not drawn beside it


def result_figures(result: Result) -> dict[str, Any]:
    """Return `scores`, `curves` and `calls`; `MissingExtra` where plotly is not installed."""
    figures = {"scores": score_figure, "curves": curve_figure, "calls": call_figure}
    return {name: draw(result) for name, draw in figures.items()}


def score_figure(result: Result) -> Any:
    """Return how each run ended against its step size or distance, the chosen one marked.

    A run that was scored stands at its score and the others at their last mean loss; where
    validation data scored them, all stand at their training loss: like is compared with like.
    """
    losses = result.choice.by == "value"
    trained = losses and result.validation is not None
    heights = {run.arm: run.last_loss if losses else math.nan for run in result.runs}
    for row in () if trained else sorted(result.candidates, key=lambda row: -row.score):
        if math.isfinite(row.score):
            heights[row.arm] = row.score  # the lowest of its scores comes last; x0 is run 0
    across = quantities(run.base for run in result.runs)
    up = f"mean {'training ' * trained}loss" if losses else "norm of the mean gradient"
    return run_scatter(result.steady_runs, heights, result.choice.chosen.arm, across, up)


def run_scatter(
    runs: Sequence[Run], heights: Mapping[int, float], chosen: int, x_title: str, y_title: str
) -> Any:
    """Return a marker for each run at its value, the larger the more calls it was given.

    heights: where each run stands, by its number, the start point's is 0; NaN leaves it out. A run
        that diverged, or one far above the losses that runs begin with, is a cross at the top.
    """
    start = heights.get(0, math.nan)
    low, high = axis_ends([start, *(heights[run.arm] for run in runs)], runs)
    good = [run for run in runs if heights[run.arm] <= high]
    lost = [run for run in runs if not run.finite or heights[run.arm] > high]
    most = max((run.calls for run in runs), default=1)
    sizes = [SMALL + (LARGE - SMALL) * math.sqrt(run.calls / most) for run in good]
    trail = [(run.value, loss) for run in good for loss in run.losses[:-1] if low <= loss <= high]
    places = {run.arm: (run.value, max(low, heights[run.arm])) for run in good}
    star = [places[chosen]] if chosen in places else []
    values = [run.value for run in runs] or [math.nan]
    level = [(value, start) for value in (0.8 * min(values), 1.25 * max(values)) if start <= high]
    dots = {"color": OTHER, "opacity": 0.85, "size": sizes, "line": {"width": 1, "color": EDGE}}
    figure, ends = new_figure(x_title, y_title), [(run.value, high) for run in lost]
    faint = {"color": OTHER, "opacity": 0.5, "size": 4}
    look = {"symbol": "star", "color": CHOSEN, "size": 18}
    add_trace(figure, "on the way", trail, marker=faint)
    add_trace(figure, "runs", [*places.values()], map(run_words, good), marker=dots)
    add_trace(figure, "diverged", ends, map(run_words, lost), marker=CROSS)
    add_trace(figure, "chosen", star, marker=look)
    add_trace(figure, "start point", level, mode="lines", line={"dash": "dot", "color": OTHER})
    figure.update_xaxes(**axis(values))
    shown = [low, *(y for _, y in [*ends, *level, *places.values()])]
    return figure.update_yaxes(**axis(shown))


def curve_figure(result: Result, top: int = TOP) -> Any:
    """Return the losses of the `top` runs with the lowest last loss, by their oracle calls.

    The chosen run is drawn from the start point on, with its losses on validation data, if there
    are any, their standard errors, and the metric below them; a star is the chosen point.
    """
    winner, looks = result.choice.chosen.arm, validation_looks(result)
    ended = [run for run in result.runs if run.curve and math.isfinite(run.last_loss)]
    lines = []
    for run in sorted(ended, key=lambda run: (run.arm != winner, run.last_loss))[:top]:
        curve = winning_curve(result) if run.arm == winner else run.curve
        lines.append((run, [(call, loss) for call, loss, _ in curve]))
    others = [look for look in result.looks or () if look not in looks]
    most = _FAR * looks[0].loss if looks else 0.0
    held_out = [look.loss for look in looks if math.isfinite(look.loss)]
    held_out += [look.loss for look in others if look.loss <= most]
    figure = line_figure(lines, winner, "oracle calls of the run", "mean loss", held_out=held_out)
    if not looks:
        return figure
    figure.for_each_trace(lambda trace: trace.update(name="training loss"), {"showlegend": True})
    chosen, more, name = chosen_look(result), " of other candidates", result.measured or "metric"
    how: dict[str, Any]
    for kind, mode, seen in ("", "lines+markers", looks), (more, "markers", others):
        points = [(max(1, look.call), look.loss) for look in seen]  # a log axis has no zero
        bars = [look.error if math.isfinite(look.error) else 0.0 for look in seen]
        marks = [("star", 16) if look is chosen else ("circle", 6) for look in seen]
        look = {"symbol": [mark for mark, _ in marks], "size": [pixels for _, pixels in marks]}
        how = {"error_y": {"type": "data", "array": bars}, "marker": look, "showlegend": True}
        line = {"width": 2, "color": LOST, "dash": "dot"}
        add_trace(figure, f"validation loss{kind}", points, mode=mode, line=line, **how)
    figure.update_xaxes(**axis([call for trace in figure.data for call in trace.x]))
    points = [(max(1, look.call), look.metric) for look in looks if math.isfinite(look.metric)]
    if points:  # in a panel below the losses
        # The start may be far off, as the R2 of an untrained model: it does not set the scale.
        known = [value for call, value in points if call > 1] or [value for _, value in points]
        room = max(max(known) - min(known), 0.1 * abs(max(known)), 1e-3)
        low = max(min(known) - room, min(value for _, value in points) - 0.1 * room)
        ends = [low, max(value for _, value in points) + 0.1 * room]
        below = {"domain": [0.0, 0.24], "title": {"text": escape(name)}, "range": ends}
        figure.update_layout(yaxis_domain=[0.34, 1.0], yaxis2=below, xaxis_anchor="y2", height=480)
        how = {"line": {"width": 2, "color": LOST}, "yaxis": "y2"}
        add_trace(figure, f"validation {escape(name)}", points, mode="lines+markers", **how)
    return figure


def line_figure(
    lines: Sequence[tuple[Run, Sequence[tuple[float, float]]]],
    winner: int,
    x_title: str,
    y_title: str,
    mode: str = "lines",
    held_out: Sequence[float] = (),
) -> Any:
    """Return a line for each run through its points (calls, loss), the winner's on top.

    held_out: losses that are drawn beside them; lines far below run along the lower edge.
    """
    losses = (loss for _, points in lines for _, loss in points)
    low, high = axis_ends(losses, [run for run, _ in lines])
    if held_out and min(held_out) > 0.0:
        low = max(low, min(_DEEP * min(held_out), high))
    figure = new_figure(x_title, y_title)
    for run, points in sorted(lines, key=lambda line: line[0].arm == winner):
        won = run.arm == winner
        look = {"width": 3, "color": CHOSEN} if won else {"width": 1.5, "color": OTHER}
        name = f"run {run.arm}: {run.base} {run.value:.3g}" + " (chosen)" * won
        how: dict[str, Any] = {"line": look, "opacity": 1.0 if won else 0.6, "showlegend": won}
        words: list[str] = []
        if any(loss < low for _, loss in points):
            words = [f"{name}, {call:,} calls: {number(loss)}" for call, loss in points]
            points = [(call, max(loss, low)) for call, loss in points]  # NaN stays a gap
        add_trace(figure, escape(name), points, words, mode=mode, **how)
    figure.update_xaxes(**axis([call for _, points in lines for call, _ in points]))
    return figure.update_yaxes(**axis([low, high, *held_out]))


def call_figure(result: Result) -> Any:
    """Return where the oracle calls went: a bar for each purpose, training cut by its use."""
    colours, figure = {"c": CHOSEN, "f": LOST}, new_figure("oracle calls", "")
    for row, words, calls, kind in call_parts(result):
        marker = {"color": colours.get(kind, OTHER), "opacity": 0.4 if kind in "be" else 1}
        figure.add_bar(y=[row], x=[calls], name=words, orientation="h", marker=marker)
    figure.update_layout(barmode="stack")
    return figure.update_yaxes(autorange="reversed")


def call_parts(result: Result) -> list[tuple[str, str, int, str]]:
    """What the calls were for: (purpose, words, calls, kind of bar), in the order of the run."""
    calls = result.calls
    # A run whose step changes has a new number from there on; its calls are counted from x0.
    won = lineage(result, result.choice.chosen.arm)
    parts = [(first, min(last, stop)) for run, stop in won for first, last in run.stretches]
    winner = int(sum(max(0, last - first) for first, last in parts))
    others = sum(run.calls for run in result.runs) - winner
    probe, ensemble = calls.get("probe", 0), calls.get("ensemble", 0)
    fresh = "fresh samples" if result.validation is None else "validation rows"
    spare = int(result.spec["budget"]) - probe - others - winner - ensemble
    rows = [
        ("probe", "looking at the start point", probe, "a"),
        ("train", "training the runs that lost", others, "b"),
        ("train", "training the run that won", winner, "c"),
        ("ensemble", f"choosing, on {fresh}", ensemble, "d"),
        ("not used", "left" if result.partial else "not needed", spare, "e"),
        ("repeated", "repeated after a fault, not counted", calls.get("repeated", 0), "f"),
    ]
    return [row for row in rows if row[2] > 0]


def winning_curve(result: Result) -> list[tuple[int, float, float]]:
    """The curve of the chosen run from the start point on: (call, loss, gradient norm).

    A part that was undone leaves a gap, a point that is not a number.
    """
    points, end = list[tuple[int, float, float]](), 0.0
    for run, stop in reversed(lineage(result, result.choice.chosen.arm)):
        if points and run.stretches and run.stretches[0][0] > end:
            points.append((run.stretches[0][0], math.nan, math.nan))
        points += [point for point in run.curve if point[0] <= stop]
        end = stop
    return points


def chosen_look(result: Result) -> Look | None:
    """What validation data said of the chosen point."""
    row = result.choice.chosen
    at = row.arm, row.call, row.average
    return next((x for x in result.looks or () if at == (x.arm, x.call, x.average)), None)


def validation_looks(result: Result) -> list[Look]:
    """The chosen run on validation data along its calls, the start point first; [] without such.

    Where a run went on from it and lost, that one, too: it shows what the choice rests on.
    """
    looks, chosen = result.looks or (), result.choice.chosen.arm
    last = max(looks, key=lambda look: look.call, default=None)
    longest = [run.arm for run, _ in lineage(result, last.arm if last else 0)]
    own = [run.arm for run, _ in lineage(result, chosen)]
    line = {0, *(longest if chosen in longest else own)}
    seen = [look for look in looks if look.arm in line and not look.average]
    return sorted(seen, key=lambda look: look.call)


def lineage(result: Result, arm: int) -> list[tuple[Run, float]]:
    """A run and those from whose states it went on, each with the call up to which it counts."""
    runs = {run.arm: run for run in result.runs}
    run, stop = runs.get(arm), math.inf
    found = []
    while run is not None:
        found.append((run, stop))
        stop = run.stretches[0][0] if run.stretches else 0
        run = runs.get(run.parent) if stop else None
        if run is not None:  # its last stretches may have been undone
            ends = zip(run.stretches, run.losses, strict=False)
            stood = [end for (_, end), loss in ends if end <= stop and math.isfinite(loss)]
            stop = max(stood, default=stop)
    return found


def run_words(run: Run) -> str:
    loss = next((x for x in reversed(run.losses) if math.isfinite(x)), math.nan)
    end = f"loss {number(loss)}" if run.finite else "diverged"
    return f"run {run.arm}, {run.base} {number(run.value, 3)}: {run.calls:,} calls, {end}"


def axis_ends(losses: Iterable[float], runs: Sequence[Run]) -> tuple[float, float]:
    """The ends of an axis of losses, measured by the first ones: explosions are left outside.

    A loss of 0 among positive ones is drawn below them, as if it were a tenth of the smallest.
    """
    known = [loss for loss in losses if math.isfinite(loss)]
    begun = [run for run in runs if run.curve and run.stretches and not run.stretches[0][0]]
    firsts = sorted(loss for run in begun if math.isfinite(loss := run.curve[0][1]))
    usual = firsts[len(firsts) // 4] if firsts else math.inf
    top = usual + (_CLIP - 1.0) * abs(usual)
    shown = [loss for loss in known if loss <= top] or known or [0.1, 1.0]
    above = [loss for loss in shown if loss > 0.0]
    low = min(shown)
    return (low if low or not above else min(above) / 10.0), max(shown)


def new_figure(x_title: str, y_title: str) -> Any:
    layout = {
        "template": "plotly_white",
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {"title": {"text": y_title}},
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0},
    }
    return need("plotly.graph_objects", "report", "a figure").Figure(layout=layout)


def add_trace(
    figure: Any,
    name: str,
    points: Sequence[tuple[Any, Any]],
    words: Iterable[str] = (),
    mode: str = "markers",
    **look: Any,
) -> None:
    """Add marks or a line, where there are points; `words` are shown at each."""
    if points:
        told = [escape(text) for text in words]
        hover = ("%{text}" if told else f"{name}<br>%{{x:,}}: %{{y:.4g}}") + "<extra></extra>"
        x, y = (list(side) for side in zip(*points, strict=True))
        figure.add_scatter(
            x=x, y=y, name=name, mode=mode, text=told or None, hovertemplate=hover, **look
        )


def axis(values: Iterable[float]) -> dict[str, Any]:
    """An axis that shows the values, logarithmic where they are positive and ten times apart."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return {}
    low, high = min(known), max(known)
    if low <= 0.0 or high < 10.0 * low:
        room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        return {"range": [low - room, high + room], "exponentformat": "power"}
    decades = math.log10(high / low)
    ends = [math.log10(low) - 0.05 * decades, math.log10(high) + 0.05 * decades]
    marks = {"dtick": math.ceil(decades / 7), "exponentformat": "power"}
    if decades < 2.0:  # marks between powers of ten, too, written in full
        marks = {"dtick": "D2", "tickformat": "~g"}
    return {"type": "log", "range": ends, **marks}
