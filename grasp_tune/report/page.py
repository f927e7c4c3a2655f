"""The report of a run: what was tried, what it cost, why this model was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grasp_tune.config.run_folder import REPORT, yaml_text
from grasp_tune.core.choice import Candidate
from grasp_tune.optimizers.registry import quantity
from grasp_tune.report import html as page
from grasp_tune.report.charts import (
    call_chart,
    curve_chart,
    quantity_of,
    score_chart,
)
from grasp_tune.report.formatting import duration, number, percent, plural
from grasp_tune.report.plotly_figures import curve_figure, score_figure
from grasp_tune.report.run_metadata import Facts
from grasp_tune.runtime.result import Result

_SHOWN = 12  # rows of a table before the rest is folded away

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
    folder: Path, result: Result, facts: Facts | None, config: Mapping[str, Any]
) -> Path:
    """Write `report.html` into the folder; return its path. `config` is shown as it is given."""
    path = folder / REPORT
    page.write_page(path, report_text(folder, result, facts, config))
    return path


def report_text(
    folder: Path, result: Result, facts: Facts | None, config: Mapping[str, Any]
) -> str:
    """The report as HTML."""
    title = str(config.get("title") or folder.name or "A run of grasp_tune")
    charts = _charts(result)
    body = [
        *_opening(title, result, facts),
        *_choice(result),
        *_figures(charts),
        *_tables(result),
        *_loading(folder),
        *_setting(folder, result, facts, config),
    ]
    return page.document(title, body, charts)


def summary(result: Result, facts: Facts | None) -> str:
    """The run in two sentences."""
    cell = result.cell
    spent = sum(amount for key, amount in result.calls.items() if key != "repeated")
    tried = plural(len(result.runs), "run")
    if cell is None:
        what = f"None of {tried} beat the start point, which is returned as it was"
    else:
        base = result.choice.chosen.base
        what = f"Of {tried}, {base} with {quantity_word(result)} {number(cell.value, 3)} won"
    text = f"{what}; {spent:,} of {int(result.spec['budget']):,} oracle calls were spent."
    quality = None if facts is None else facts.quality
    if quality is None:
        return text
    if quality.test_accuracy is not None:
        return f"{text} It gets {percent(quality.test_accuracy)} of the test rows right."
    return f"{text} Its loss over all training rows is {number(quality.train_loss)}."


def quantity_word(result: Result) -> str:
    """What the chosen run's value is called."""
    return quantity(result.choice.chosen.base)


def _opening(title: str, result: Result, facts: Facts | None) -> list[str]:
    when = "" if facts is None else f"{facts.started} UTC"
    kind = "loss" if result.choice.by == "value" else "gradient norm"
    cards = []
    if facts is not None and (quality := facts.quality) is not None:
        if quality.test_accuracy is not None:
            cards.append(("right on test rows", percent(quality.test_accuracy)))
        if quality.test_loss is not None:
            cards.append(("loss on test rows", number(quality.test_loss)))
        cards.append(("loss on training rows", number(quality.train_loss)))
    cards.append((f"{kind} on fresh samples", number(result.score)))
    if result.cell is not None:
        cards.append((f"chosen {quantity_word(result)}", number(result.cell.value, 3)))
    if facts is not None:
        cards.append(("time", duration(facts.seconds)))
    warnings = ["This run was stopped before its end."] if result.partial else []
    return [
        page.paragraph(when, "eyebrow") if when else "",
        page.title_line(title),
        page.paragraph(summary(result, facts), "lead"),
        page.note(warnings, "warm"),
        page.numbers(cards),
    ]


def _choice(result: Result) -> list[str]:
    scored = sum(1 for row in result.candidates if math.isfinite(row.score))
    texts = [
        f"{_WAYS.get(result.choice.way, '')} {plural(scored, 'candidate')} took part, the start "
        "point among them."
    ]
    pieces = [page.heading("Why this model"), *(page.paragraph(text) for text in texts)]
    if result.certificate is not None:
        pieces.append(page.note([result.certificate.text]))
    pieces.append(page.note(result.notes, "warm"))
    return pieces


def _charts(result: Result) -> tuple[page.Chart, ...]:
    quantity = quantity_of(result)
    return (
        page.Chart(
            "scores",
            score_chart(result),
            f"Every run at its {quantity}, the larger the more calls it was given. Small dots are "
            "where it stood at the end of earlier stretches; the chosen one is coloured, a cross "
            "is a run that diverged.",
            score_figure(result),
        ),
        page.Chart(
            "curves",
            curve_chart(result),
            "Mean training loss of each run along its own oracle calls; the chosen one is "
            "coloured.",
            curve_figure(result),
        ),
        page.Chart(
            "calls",
            call_chart(result),
            "An oracle call is the gradient or the loss of one minibatch.",
        ),
    )


def _figures(charts: tuple[page.Chart, ...]) -> list[str]:
    titles = ("What was tried", "How the runs went", "Where the oracle calls went")
    pieces = []
    for title, chart in zip(titles, charts, strict=True):
        if chart.drawing:
            pieces += [page.heading(title), page.figure(chart)]
    return pieces


def _tables(result: Result) -> list[str]:
    kind = "loss" if result.choice.by == "value" else "gradient norm"
    rows = sorted(result.candidates, key=_place)
    lines = [_candidate_row(row) for row in rows]
    head = ("candidate ", "optimizer ", "value", "after calls", kind, "samples", "remark ")
    marks = [row.key == result.choice.key for row in rows]
    shown = page.table(head, lines[:_SHOWN], marks)
    pieces = [page.heading("The candidates"), shown]
    if len(lines) > _SHOWN:
        rest = page.table(head, lines[_SHOWN:], marks[_SHOWN:])
        pieces.append(page.folded(f"{len(lines) - _SHOWN} more candidates", rest))
    runs = sorted(result.runs, key=lambda run: (-run.calls, run.value))
    if runs:
        chosen = result.choice.chosen.arm
        inside = page.table(
            ("run ", "optimizer ", "value", "calls", "stretches", "last loss", "remark "),
            [
                (
                    str(run.arm),
                    run.base + (f", scaled^{run.power:g}" if run.power else ""),
                    number(run.value),
                    f"{run.calls:,}",
                    str(len(run.stretches)),
                    number(run.losses[-1] if run.losses else None),
                    "" if run.finite else "diverged",
                )
                for run in runs
            ],
            [run.arm == chosen for run in runs],
        )
        pieces.append(page.folded(f"All {plural(len(runs), 'run')}", inside))
    return pieces


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


def _loading(folder: Path) -> list[str]:
    ours = (
        "from grasp_tune.config import load_run\n\n"
        f"result = load_run({str(folder)!r})  # needs no data\n"
        "model = result.model  # a torch.nn.Module at the chosen point, in evaluation mode\n"
        "print(result.score, result.cell)\n"
    )
    plain = (
        "from safetensors.torch import load_file\n\n"
        f"tensors = load_file({str(folder / 'model.safetensors')!r})\n"
        'state = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}\n'
        "model.load_state_dict(state, strict=False)  # into a model with the same layers\n"
    )
    return [
        page.heading("Using the model"),
        page.code(ours),
        page.folded("Without grasp_tune", page.code(plain)),
    ]


def _setting(
    folder: Path, result: Result, facts: Facts | None, config: Mapping[str, Any]
) -> list[str]:
    pieces = [page.heading("How to repeat it")]
    if facts is not None:
        pieces.append(
            page.paragraph(
                f"{facts.spec.name}: {facts.rows:,} training rows, {facts.test_rows:,} test rows; "
                f"{facts.model} with {facts.parameters:,} parameters; loss {facts.loss}; "
                f"minibatches of {facts.batch:,}; seed {result.spec['seed']}."
            )
        )
    pieces.append(
        page.folded("The config, every key filled in", page.code(yaml_text(dict(config))))
    )
    command = f"grasp-tune run {folder / 'config.yaml'} --out another-folder"
    pieces.append(page.code(command))
    if facts is not None:
        words = ", ".join(f"{name} {version}" for name, version in facts.versions)
        pieces.append(page.footer(words))
    return pieces
