"""The report of a run: what it did, whether it is good, whether to trust it, what to do next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_tune.config.run_folder import REPORT, yaml_text
from grasp_tune.core.choice import Candidate
from grasp_tune.optimizers.registry import quantity
from grasp_tune.report.figures import call_parts, curve_figure, curve_lines, score_figure
from grasp_tune.report.formatting import duration, number, percent, plural, quantities
from grasp_tune.report.rendering import plotly_library, render, write_page
from grasp_tune.report.run_metadata import RunMetadata
from grasp_tune.runtime.result import Result, Run

_SHOWN = 12  # rows of a table before the rest is folded away
_CURVES = 40  # curves in the figure, the best ones

_WAYS = {
    "race": "The candidates were compared on fresh minibatches, the same for all, in rounds that "
    "dropped the worst and looked longer at the rest.",
    "resample": "Every candidate was measured on fresh minibatches that no run had trained on.",
    "window": "The candidates were compared by the mean over the last 100 minibatches of their "
    "runs.",
    "exact": "The candidates were compared by exact values over all of the data.",
    "stationary": "The gradient at the start point is zero as far as the samples can see, so there "
    "was nothing to train.",
    "partial": "The run was stopped before its end: this is the best so far by training loss.",
}


def write_report(
    folder: Path, result: Result, metadata: RunMetadata | None, config: Mapping[str, Any]
) -> Path:
    """Write `report.html` into the folder; return its path. `config` is shown as it is given."""
    return write_page(folder / REPORT, report_text(folder, result, metadata, config))


def report_text(
    folder: Path, result: Result, metadata: RunMetadata | None, config: Mapping[str, Any]
) -> str:
    """The report as HTML."""
    figures: dict[str, Any] = {}
    if plotly_library() is not None and result.runs:
        figures = {"scores": score_figure(result), "curves": curve_figure(result, _CURVES)}
    rows = sorted(result.candidates, key=_place)
    runs = sorted(result.runs, key=lambda run: (-run.calls, run.value))
    chosen, budget = result.choice.chosen, int(result.spec["budget"])
    kind = "loss" if result.choice.by == "value" else "gradient norm"
    return render(
        "report.html",
        str(config.get("title") or folder.name or "A run of grasp_tune"),
        figures,
        result=result,
        metadata=metadata,
        summary=summary(result, metadata),
        cards=_cards(result, metadata, kind),
        way=_WAYS.get(result.choice.way, ""),
        scored=plural(sum(math.isfinite(row.score) for row in result.candidates), "candidate"),
        quantity=quantities(run.base for run in result.runs),
        curves=curve_lines(result),
        parts=[
            (f"{words}: {calls:,} ({percent(calls / budget)})", calls, look)
            for _, words, calls, look in call_parts(result)
        ],
        candidate_head=(
            *("candidate ", "optimizer ", "value", "after calls", kind, "samples", "remark "),
        ),
        candidates=[_candidate_row(row) for row in rows],
        candidate_marks=[row.key == result.choice.key for row in rows],
        shown=_SHOWN,
        runs=[_run_row(run) for run in runs],
        run_marks=[run.arm == chosen.arm for run in runs],
        folder=str(folder),
        config=yaml_text(dict(config)),
    )


def summary(result: Result, metadata: RunMetadata | None) -> str:
    """The run in two sentences."""
    cell = result.cell
    spent = sum(amount for key, amount in result.calls.items() if key != "repeated")
    tried = plural(len(result.runs), "run")
    if cell is None:
        what = f"None of {tried} beat the start point, which is returned as it was"
    else:
        base = result.choice.chosen.base
        what = f"Of {tried}, {base} with {quantity(base)} {number(cell.value, 3)} won"
    text = f"{what}; {spent:,} of {int(result.spec['budget']):,} oracle calls were spent."
    quality = None if metadata is None else metadata.quality
    if quality is None:
        return text
    if quality.test_accuracy is not None:
        return f"{text} It gets {percent(quality.test_accuracy)} of the test rows right."
    return f"{text} Its loss over all training rows is {number(quality.train_loss)}."


def _cards(result: Result, metadata: RunMetadata | None, kind: str) -> list[tuple[str, str]]:
    """Words and numbers that are seen first."""
    cards: list[tuple[str, str]] = []
    if metadata is not None and (quality := metadata.quality) is not None:
        if quality.test_accuracy is not None:
            cards.append(("right on test rows", percent(quality.test_accuracy)))
        if quality.test_loss is not None:
            cards.append(("loss on test rows", number(quality.test_loss)))
        cards.append(("loss on training rows", number(quality.train_loss)))
    cards.append((f"{kind} on fresh samples", number(result.score)))
    if result.cell is not None:
        base = result.choice.chosen.base
        cards.append((f"chosen {quantity(base)}", number(result.cell.value, 3)))
    if metadata is not None:
        cards.append(("time", duration(metadata.seconds)))
    return cards


def _place(row: Candidate) -> tuple[bool, float]:
    known = math.isfinite(row.score)
    return (not known, row.score if known else 0.0)


def _candidate_row(row: Candidate) -> tuple[str, ...]:
    what = "start point" if not row.arm else f"run {row.arm}{', average' if row.average else ''}"
    return (
        what,
        row.base or "–",
        number(row.value),
        f"{row.call:,}",
        number(row.score),
        f"{row.samples:,}",
        row.note,
    )


def _run_row(run: Run) -> tuple[str, ...]:
    return (
        str(run.arm),
        run.base + (f", scaled^{run.power:g}" if run.power else ""),
        number(run.value),
        f"{run.calls:,}",
        str(len(run.stretches)),
        number(run.losses[-1] if run.losses else None),
        "" if run.finite else "diverged",
    )
