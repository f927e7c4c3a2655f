"""A comparison as a page: a strip of dots per method, and a table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from grasp_tune.config.paths import masked_config
from grasp_tune.config.run_folder import yaml_text
from grasp_tune.report.compare import OURS, Comparison, MethodSummary, test_metric
from grasp_tune.report.figures import strip_figure
from grasp_tune.report.formatting import duration, number, percent
from grasp_tune.report.rendering import plotly_library, render, write_page

FILE = "comparison.html"


def write_comparison(comparison: Comparison) -> Path:
    """Write the page into the comparison's folder; return its path."""
    return write_page(comparison.folder / FILE, comparison_text(comparison))


def comparison_text(comparison: Comparison) -> str:
    """The comparison as HTML."""
    figures = {} if plotly_library() is None else {"losses": loss_figure(comparison)}
    return render(
        "comparison.html",
        comparison.experiment.title or "A comparison",
        figures,
        comparison=comparison,
        seeds=max((len(item.records) for item in comparison.methods), default=0),
        head=head(comparison),
        rows=[row(item, comparison.metric) for item in comparison.methods],
        marks=[item.method in OURS for item in comparison.methods],
        config=yaml_text(masked_config(comparison.experiment)),
    )


def head(comparison: Comparison) -> tuple[str, ...]:
    """The columns of the table; a space at the end marks words, which are set to the left."""
    metric = f"test {comparison.metric}"
    numbers = ("training loss", "from ... to", "test loss", metric, "calls", "time")
    return ("method ", *numbers, "remark ")


def row(item: MethodSummary, metric: str) -> tuple[str, ...]:
    """One line of the table."""
    losses, mean = item.losses, item.mean_of(test_metric)
    return (
        item.title,
        number(item.median_loss),
        f"{number(min(losses))} to {number(max(losses))}" if losses else "–",
        number(item.mean_of(lambda quality: quality.test_loss)),
        percent(mean) if metric == "accuracy" else number(mean),
        f"{max((record.calls for record in item.records), default=0):,}",
        duration(item.seconds),
        item.remark,
    )


def loss_figure(comparison: Comparison) -> Any:
    """A dot per method and seed at its training loss."""
    return strip_figure(
        [
            (
                item.title,
                item.method in OURS,
                [
                    (f"{item.title}, seed {record.seed}", record.quality.train_loss)
                    for record in item.records
                    if record.quality is not None and math.isfinite(record.quality.train_loss)
                ],
            )
            for item in comparison.methods
        ],
        "loss over all training rows",
    )
