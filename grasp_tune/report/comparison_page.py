"""A comparison as a page: a drawing with one line per method, and a table."""

from __future__ import annotations

import math
from pathlib import Path

from grasp_tune.config.paths import masked_config
from grasp_tune.config.run_folder import yaml_text
from grasp_tune.report import html as page
from grasp_tune.report.compare import OURS, Comparison, Standing, spread
from grasp_tune.report.formatting import duration, number, percent, plural
from grasp_tune.report.svg import Drawing, Scale, span

FILE = "comparison.html"
HEAD = (
    "method ",
    "training loss",
    "from ... to",
    "test loss",
    "test, right",
    "calls",
    "time",
    "remark ",
)


def write_comparison(comparison: Comparison) -> Path:
    """Write the page into the comparison's folder; return its path."""
    path = comparison.folder / FILE
    page.write_page(path, comparison_text(comparison))
    return path


def comparison_text(comparison: Comparison) -> str:
    """The comparison as HTML."""
    experiment = comparison.experiment
    title = experiment.title or "A comparison"
    seeds = max((len(item.records) for item in comparison.standings), default=0)
    lead = (
        f"{plural(len(comparison.standings), 'method')}, {plural(seeds, 'seed')}, at most "
        f"{experiment.budget:,} oracle calls each. Everything a method does to find its step size "
        "is paid for out of those calls."
    )
    chart = page.Chart(
        "losses",
        loss_chart(comparison),
        "Loss over all training rows, logarithmic; a dot per seed, a bar at the median. Losses far "
        "above the best are drawn at the edge.",
    )
    body = [
        page.paragraph("Comparison", "eyebrow"),
        page.title_line(title),
        page.paragraph(lead, "lead"),
        page.heading("Training loss"),
        page.figure(chart),
        page.heading("In numbers"),
        page.paragraph("The median training loss, and the means of the other numbers.", "soft"),
        page.table(
            HEAD,
            [row(item) for item in comparison.standings],
            [item.method in OURS for item in comparison.standings],
        ),
    ]
    if comparison.left_out:
        words = ", ".join(comparison.left_out)
        body.append(page.paragraph(f"Left out, since they are not installed: {words}.", "soft"))
    config = yaml_text(masked_config(experiment))
    body += [page.heading("The config"), page.folded("Every key", page.code(config))]
    return page.document(title, body)


def row(standing: Standing) -> tuple[str, ...]:
    """One line of the table."""
    ends = [number(value) for value in spread(standing)]
    calls = max((item.calls for item in standing.records), default=0)
    seconds = [item.seconds for item in standing.records]
    return (
        standing.title,
        number(standing.middle),
        " to ".join(ends) or "–",
        number(standing.mean_of(lambda quality: quality.test_loss)),
        percent(standing.mean_of(lambda quality: quality.test_accuracy)),
        f"{calls:,}",
        duration(sum(seconds) / max(1, len(seconds))),
        standing.remark,
    )


def loss_chart(comparison: Comparison) -> str:
    """One line per method, a dot per seed."""
    standings = [item for item in comparison.standings if item.losses]
    losses = [loss for item in standings for loss in item.losses if loss > 0]
    if not losses:
        return ""
    best, worst = min(losses), max(losses)
    log = worst / best > 3
    top = min(worst, max(best * 1e4, sorted(losses)[len(losses) // 2]))
    low, high = span([loss for loss in losses if loss <= top], log=log)
    height = 62 + 24 * len(standings)
    drawing = Drawing("Training loss of every method and seed", height=height)
    x = Scale(low, high, 210, 700, log)
    y = Scale(0.0, 1.0, height - 44, 8, log=False)
    for tick in x.ticks():
        drawing.path([(x(tick), y.start), (x(tick), y.stop)], "grid")
        drawing.write(x(tick), y.start + 18, f"{tick:.3g}", "tick middle")
    for at, item in enumerate(standings):
        level = 22 + 24 * at
        kind = "mark chosen" if item.method in OURS else "mark"
        drawing.write(200, level + 4, item.title, "tick end")
        drawing.box(x(item.middle) - 1.5, level - 9, 3, 18, kind, f"median {number(item.middle)}")
        for record in item.records:
            if record.quality is not None and math.isfinite(record.quality.train_loss):
                loss = record.quality.train_loss
                tip = f"{item.title}, seed {record.seed}: {number(loss)}"
                drawing.dot(x(max(loss, low)), level, 4.5, kind, tip)
    return drawing.text()
