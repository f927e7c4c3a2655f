"""The parts of the results page about the paper's tables and the final choice."""

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks import figures, tables
from benchmarks.markdown import accuracy, markdown_table, number
from benchmarks.records import Table


def tables_part(done: Sequence[tables.Finished], pictures: Path) -> str:
    """Return the finished parts of the paper's tables, and draw their figure."""
    if not done:
        return ""
    seeds = sorted({seed for item in done for seed in item.seeds})
    lines = [
        "## The paper's tables",
        "",
        "rho = (quality of the output - quality of the tuned base optimizer with all of T) / the",
        "latter; quality is the loss (convex) or the gradient's norm (non-convex). The base is",
        "tuned by its true loss: 15 values a factor of 4 apart, six more around the best.",
        "Choice by the window of the last 100 minibatches, M calls for the probe, "
        f"seeds {', '.join(map(str, seeds))}. Each cell: rho (quality).",
        "",
        "![Range of rho](figures/tables.svg)",
        "",
    ]
    ranges: dict[str, list[float]] = {}
    for item in done:
        table = item.table
        lines += [
            f"### {table.title}, T = {table.budget:,}",
            "",
            _yardstick(item),
            "",
        ]
        for schedule in tables.SCHEDULES:
            cells = item.rhos(schedule)
            whole = [rho for rho in cells if math.isfinite(rho)]
            if not cells:
                continue
            ranges[f"{table.title}: {schedule}"] = whole
            summary = _summary(cells, whole) + _losses(item, schedule)
            lines += [f"`{schedule}`: {summary}", "", *_cells(item, schedule), ""]
    picture = figures.range_plot("rho over the cells: smallest, mean, largest", "rho", ranges)
    (pictures / "tables.svg").write_text(picture, encoding="utf-8")
    return "\n".join(lines)


def _yardstick(item: tables.Finished) -> str:
    base, tuned = item.table.base, item.tuned
    text = f"Tuned {base}: {number(tuned.quality)} at {item.value:.3g}"
    if item.table.kind != "nonconvex":
        return f"{text}."
    least = item.smallest
    return (
        f"{text}, with a loss of {number(tuned.loss)}. The smallest norm of all values tried is "
        f"{number(least.quality)}, with a loss of {number(least.loss)}."
    )


def _losses(item: tables.Finished, schedule: str) -> str:
    """Return the losses of a non-convex table, since dead networks have small gradients, too."""
    if item.table.kind != "nonconvex":
        return ""
    own = [found for (name, *_), found in item.cells.items() if name == schedule]
    losses = [found.loss for found in own if math.isfinite(found.loss)]
    if not losses:
        return ""
    below = sum(found.quality <= item.smallest.quality for found in own)
    mean = sum(losses) / len(losses)
    return (
        f"; losses from {number(min(losses))} to {number(max(losses))}, mean {number(mean)}; at or "
        f"below the smallest norm tried in {below}"
    )


def _summary(cells: Sequence[float], whole: Sequence[float]) -> str:
    if not whole:
        return f"T is too small for all of {len(cells)} cells"
    below = sum(rho <= 0 for rho in whole)
    refused = f", T too small in {len(cells) - len(whole)}" if len(whole) < len(cells) else ""
    mean = sum(whole) / len(whole)
    return (
        f"rho from {min(whole):.4f} to {max(whole):.4f}, mean {mean:.4f}; at most 0 in {below} of "
        f"{len(cells)} cells{refused}"
    )


def _cells(item: tables.Finished, schedule: str) -> list[str]:
    first, second = item.table.inputs
    head = [f"{first}, {second}", *(f"M = T/{share}" for share in tables.SHARES)]
    body = []
    for pair in tables.PAIRS:
        row = [f"{pair[0]:g}, {pair[1]:g}"]
        for share in tables.SHARES:
            rho = item.rho(schedule, pair, share)
            if rho is None:
                row.append("")
            else:
                quality = item.cells[schedule, pair, share].quality
                row.append(f"{rho:.4f} ({number(quality)})" if math.isfinite(rho) else "-")
        body.append(row)
    return markdown_table(head, body)


def sizes_part(results: Table) -> str:
    """Return the finished runs at the paper's own size, empty without any."""
    rows = results.rows()
    if not rows:
        return ""
    head = ["run", "training loss", "gradient norm", "test accuracy, %", "test loss", "chosen"]
    body = []
    for (name, _), row in rows.items():
        found = [row.get(key, math.inf) for key in ("loss", "gradient", "accuracy", "test_loss")]
        loss, gradient, right, test = found
        shown = accuracy(right) or "diverged"
        body.append([name, number(loss), number(gradient), shown, number(test), row["note"]])
    lines = [
        "### GRASP-NC at the paper's own size: ResNet-18, all of CIFAR-10, batch 64, T = 10,000",
        "",
        "`sgd-RATE` has all of T at one rate; runs that are not listed were not made. Both inputs",
        "are 0.01; seed 10; no augmentation (`python -m benchmarks.paper_size`).",
        "",
    ]
    return "\n".join([*lines, *markdown_table(head, body), ""])


def ensemble_part(results: Table) -> str:
    """Return the cost of the final choice, empty without results."""
    rows = results.rows()
    if not rows:
        return ""
    lines = [
        "## What the final choice costs",
        "",
        "Real candidates of the paper's plan (T = 10,000), 2,000 simulated choices each. *Excess*:",
        "how much worse than the best candidate the choice truly is; *failure*: more than 1 %",
        "worse (loss) or 5 % (gradient norm). `uniform` is the paper's ensemble, `race` paired",
        "halving.",
        "",
    ]
    head = [
        "candidates",
        "by",
        "way",
        "share of the calls",
        "calls",
        "mean excess, %",
        "failures, %",
    ]
    body: list[list[str]] = []
    for row in rows.values():
        for cost in row["costs"]:
            body.append(
                [
                    f"{cost['pool']} ({cost['candidates']})",
                    cost["by"],
                    cost["way"],
                    f"{cost['share']:g}",
                    f"{cost['calls']:,}",
                    f"{cost['excess']:.3f}",
                    f"{cost['failures']:.1f}",
                ]
            )
    return "\n".join([*lines, *markdown_table(head, body), ""])
