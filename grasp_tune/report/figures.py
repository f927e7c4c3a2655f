"""A sweep as plotly figures, for notebooks and reports.

Plotly is loaded when a figure is wanted, not before: training needs none of it.
"""

import math
from typing import TYPE_CHECKING, Any

from grasp_tune.core.errors import MissingExtra
from grasp_tune.optimizers.registry import quantity

if TYPE_CHECKING:
    from grasp_tune.runtime.result import Result, Run

TOP = 8  # curves in one figure; more cannot be told apart
SMALL, LARGE = 7.0, 26.0  # pixels: the markers of the shortest and the longest run
CHOSEN, OTHER, GREY = "#c0392b", "#2c6e9b", "#9aa5ad"


def result_figures(result: "Result") -> dict[str, Any]:
    """Return `scores`, `curves` and `calls`; `MissingExtra` where plotly is not installed."""
    return {
        "scores": score_figure(result),
        "curves": curve_figure(result),
        "calls": call_figure(result),
    }


def score_figure(result: "Result") -> Any:
    """Return how each run ended against its step size or distance; the choice has a star.

    A run that was scored stands at its score; where losses are compared, the others stand at their
    last mean loss. The size of a marker is the run's share of the calls.
    """
    plot = _plotly()
    figure = plot.Figure()
    chosen = result.choice.chosen
    most = max((run.calls for run in result.runs), default=1)
    for base in dict.fromkeys(run.base for run in result.runs):
        places = [(run, *_end(result, run)) for run in result.runs if run.base == base]
        places = [place for place in places if math.isfinite(place[1])]
        figure.add_trace(
            plot.Scatter(
                x=[run.value for run, _, _ in places],
                y=[height for _, height, _ in places],
                mode="markers",
                name=base,
                marker={
                    "size": [SMALL + (LARGE - SMALL) * run.calls / most for run, _, _ in places],
                    "opacity": 0.75,
                },
                text=[f"run {run.arm}: {run.calls:,} calls, {word}" for run, _, word in places],
                hovertemplate="%{text}<br>%{x:.3g}: %{y:.5g}<extra></extra>",
            )
        )
    if chosen.arm and math.isfinite(chosen.score):
        star = {"symbol": "star", "size": 18, "color": CHOSEN}
        line = plot.Scatter(
            x=[chosen.value], y=[chosen.score], mode="markers", name="chosen", marker=star
        )
        figure.add_trace(line)
    start = result.candidates[0].score
    if math.isfinite(start):
        figure.add_hline(y=start, line_dash="dot", line_color=GREY, annotation_text="start point")
    heights = [value for trace in figure.data for value in trace.y]
    return _dressed(figure, _quantity(result), _measure(result), heights, log_x=True)


def curve_figure(result: "Result", top: int = TOP) -> Any:
    """Return the losses of the `top` runs with the lowest last loss, by their oracle calls."""
    plot = _plotly()
    figure = plot.Figure()
    winner = result.choice.chosen.arm
    ended = [run for run in result.runs if run.finite and run.curve and run.losses]
    ended = [run for run in ended if math.isfinite(run.losses[-1])]
    best = sorted(ended, key=lambda run: (run.arm != winner, run.losses[-1]))[:top]
    heights: list[float] = []
    for run in best:
        won = run.arm == winner
        heights += [loss for _, loss, _ in run.curve]
        figure.add_trace(
            plot.Scatter(
                x=[call for call, _, _ in run.curve],
                y=[loss for _, loss, _ in run.curve],
                mode="lines",
                name=f"run {run.arm}: {run.base} {run.value:.3g}" + (" (chosen)" if won else ""),
                line={"width": 3, "color": CHOSEN} if won else {"width": 1.5},
            )
        )
    return _dressed(figure, "oracle calls of the run", "mean loss", heights)


def call_figure(result: "Result") -> Any:
    """Return where the oracle calls went: a bar for each purpose, training cut by its use."""
    plot = _plotly()
    chosen = result.choice.chosen.arm
    won = sum(run.calls for run in result.runs if run.arm == chosen)
    lost = sum(run.calls for run in result.runs if not run.finite and run.arm != chosen)
    train = result.calls.get("train", 0)
    spent = {name: result.calls.get(name, 0) for name in ("probe", "train", "ensemble")}
    rest = max(0, int(result.spec["budget"]) - sum(spent.values()))
    parts = [
        ("probe", "probe", spent["probe"], OTHER),
        ("train", "chosen run", won, CHOSEN),
        ("train", "other runs", train - won - lost, OTHER),
        ("train", "runs that diverged", lost, GREY),
        ("ensemble", "ensemble", spent["ensemble"], OTHER),
        ("not used", "not used", rest, GREY),
    ]
    if repeated := result.calls.get("repeated", 0):
        parts.append(("repeated", "repeated after a fault", repeated, GREY))
    figure = plot.Figure(
        [
            plot.Bar(y=[row], x=[calls], name=name, orientation="h", marker={"color": color})
            for row, name, calls, color in parts
            if calls > 0
        ]
    )
    figure.update_layout(barmode="stack", yaxis={"autorange": "reversed"})
    return _dressed(figure, "oracle calls", "", [])


def _plotly() -> Any:
    try:
        import plotly.graph_objects as graph_objects
    except ImportError:
        raise MissingExtra(
            "figures need plotly, which is not installed: pip install 'grasp_tune[report]'"
        ) from None
    return graph_objects


def _end(result: "Result", run: "Run") -> tuple[float, str]:
    """Return where a run stands in the figure of scores, and what that number is."""
    own = [row.score for row in result.candidates if row.arm == run.arm]
    scores = [score for score in own if math.isfinite(score)]
    if scores:
        return min(scores), "scored"
    if result.choice.by == "value" and run.losses and run.finite:
        return run.losses[-1], "last loss"
    return math.nan, "not scored"


def _quantity(result: "Result") -> str:
    names = dict.fromkeys(quantity(run.base) for run in result.runs)
    return " or ".join(names) or "step size"


def _measure(result: "Result") -> str:
    return "mean loss" if result.choice.by == "value" else "norm of the mean gradient"


def _dressed(
    figure: Any, x_title: str, y_title: str, heights: list[float], *, log_x: bool = False
) -> Any:
    figure.update_layout(
        template="plotly_white",
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis_title=x_title,
        yaxis_title=y_title,
        legend={"orientation": "h", "y": -0.2},
    )
    if log_x:
        figure.update_xaxes(type="log")
    # Losses spread over decades while runs fail; a log axis needs them all positive.
    if heights and all(value > 0.0 for value in heights):
        figure.update_yaxes(type="log")
    return figure
