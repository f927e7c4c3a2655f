"""A result as three drawings: scores against the searched value, curves, where the calls went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from grasp_tune.report.formatting import number, percent, quantities
from grasp_tune.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Drawing, Scale, span
from grasp_tune.runtime.result import Result, Run

_CLIP = 4.0  # losses above so many times the start's are drawn at the edge


def score_chart(result: Result) -> str:
    """Loss of every run at the end of each of its stretches, against its value; log scales."""
    runs = [run for run in result.runs if run.value > 0 and math.isfinite(run.value)]
    drawing = Drawing("The loss of every run against the value it was given")
    if not runs:
        return ""
    losses = [loss for run in runs for loss in run.losses]
    x = Scale(*span([run.value for run in runs]), LEFT, WIDTH - RIGHT)
    y = Scale(*axis_ends(losses, result), HEIGHT - BOTTOM, TOP)
    drawing.axes(x, y, quantity_of(result), "mean loss of a stretch")
    most = max(run.calls for run in runs)
    chosen = result.choice.chosen.arm
    for run in sorted(runs, key=lambda item: item.arm == chosen):
        at, kind = x(run.value), "mark chosen" if run.arm == chosen else "mark"
        tip = run_words(run)
        known = [loss for loss in run.losses if math.isfinite(loss) and loss > 0]
        drawing.path([(at, y(loss)) for loss in known], f"thread {kind}")
        for loss in known[:-1]:
            drawing.dot(at, y(loss), 2.2, f"{kind} early", tip)
        if not run.finite or not known:
            drawing.cross(at, TOP + 6, "lost", f"{tip}, diverged")
        else:
            radius = 3.5 + 8.5 * math.sqrt(run.calls / most)
            drawing.dot(at, y(known[-1]), radius, kind, tip)
    return drawing.text()


def curve_chart(result: Result) -> str:
    """Mean training loss of every run along its own oracle calls; log scales."""
    runs = [run for run in result.runs if run.curve]
    if not runs:
        return ""
    losses = [loss for run in runs for _, loss, _ in run.curve]
    last = max(call for run in runs for call, _, _ in run.curve)
    drawing = Drawing("Training loss of every run along its oracle calls")
    x = Scale(1.0, float(max(last, 2)), LEFT, WIDTH - RIGHT)
    y = Scale(*axis_ends(losses, result), HEIGHT - BOTTOM, TOP)
    drawing.axes(x, y, "oracle calls of the run", "training loss")
    chosen = result.choice.chosen.arm
    for run in sorted(runs, key=lambda item: item.arm == chosen):
        points = [
            (x(max(call, 1)), y(loss))
            for call, loss, _ in run.curve
            if math.isfinite(loss) and loss > 0
        ]
        kind = "curve chosen" if run.arm == chosen else "curve" if run.finite else "curve lost"
        drawing.path(points, kind, run_words(run))
    return drawing.text()


def call_chart(result: Result) -> str:
    """One bar, what the budget was spent on, and a list that names its parts."""
    budget = int(result.spec["budget"])
    parts = call_parts(result)
    drawing = Drawing("Where the oracle calls went", height=28, kind="bar-only")
    scale = Scale(0.0, float(max(budget, sum(calls for _, calls, _ in parts))), 0, WIDTH, False)
    start, keys = 0, []
    for name, calls, kind in parts:
        words = f"{name}: {calls:,} ({percent(calls / budget)})"
        left, right = scale(start), scale(start + calls)
        drawing.box(left, 2, right - left, 24, kind, words)
        start += calls
        keys.append(f'<li><span class="key {kind}"></span>{escape(words)}</li>')
    return f'{drawing.text()}<ul class="keys">{"".join(keys)}</ul>'


def call_parts(result: Result) -> list[tuple[str, int, str]]:
    """What the calls were for: (words, calls, kind of bar), in the order of the run."""
    calls, chosen = result.calls, result.choice.chosen.arm
    won = [run for run in result.runs if run.arm == chosen]
    # A run whose step changes has a new number from there on; its calls are counted from x0.
    winner = sum(run.calls + (run.stretches[0][0] if run.stretches else 0) for run in won)
    others = sum(run.calls for run in result.runs) - winner
    parts = [
        ("looking at the start point", calls.get("probe", 0), "a"),
        ("training the runs that lost", others, "b"),
        ("training the run that won", winner, "c"),
        ("choosing, on fresh samples", calls.get("ensemble", 0), "d"),
    ]
    spent = sum(amount for _, amount, _ in parts)
    parts.append(("not needed", max(0, int(result.spec["budget"]) - spent), "e"))
    parts.append(("repeated after a fault, not counted", calls.get("repeated", 0), "f"))
    return [part for part in parts if part[1] > 0]


def quantity_of(result: Result) -> str:
    """What a run's value is called."""
    return quantities(run.base for run in result.runs)


def run_words(run: Run) -> str:
    """A run in one line."""
    loss = next((x for x in reversed(run.losses) if math.isfinite(x)), math.nan)
    name = f"run {run.arm}, {run.base} {number(run.value, 3)}"
    return f"{name}: {run.calls:,} calls, loss {number(loss)}"


def axis_ends(losses: Sequence[float], result: Result) -> tuple[float, float]:
    """The ends of an axis of losses: explosions do not squeeze the rest into a line.

    What is high is measured by the first losses of the runs that begin at the start point.
    """
    known = [loss for loss in losses if math.isfinite(loss) and loss > 0]
    begun = [run for run in result.runs if run.curve and run.stretches and not run.stretches[0][0]]
    firsts = [run.curve[0][1] for run in begun]
    sound = sorted(loss for loss in firsts if math.isfinite(loss) and loss > 0)
    top = _CLIP * sound[len(sound) // 4] if sound else math.inf
    return span([loss for loss in known if loss <= top] or known)
