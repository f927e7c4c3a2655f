"""The part of the results page about peers: standings, losses by workload, gradient norms."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from benchmarks.ablation import VARIANTS
from benchmarks.contest import GRASP, METHODS
from benchmarks.hindsight import RATES, SWEEP
from benchmarks.markdown import accuracy, markdown_table, number, percent
from benchmarks.standings import CAP, CLOSE, Entry, Row, Total, totals
from benchmarks.workloads import WORKLOADS
from grasp_tune.peers import PEERS

TITLES = {
    "grasp-promote": "**GRASP `promote`**",
    "grasp-paper": "GRASP `paper`",
    **{name: peer.title for name, peer in PEERS.items()},
    **{name: variant.title for name, variant in VARIANTS.items()},
}
SEEDS = 3  # least number per method for the table over several seeds
Hindsight = Mapping[str, tuple[float, str]]  # workload -> loss and method at the best rate
PLAIN = {name: title.replace("*", "").replace("`", "") for name, title in TITLES.items()}


def contest_part(rows: Sequence[Row], often: Sequence[Row], line: Hindsight) -> str:
    """Return the tables of methods and workloads.

    rows: all workloads.
    often: rows over several seeds.
    line: hindsight's loss by workload.
    """
    parts = [_standings(rows, often, line), _workloads(rows, line), _losses(rows), _gradients(rows)]
    return "\n".join(parts)


def _standings(rows: Sequence[Row], often: Sequence[Row], line: Hindsight) -> str:
    lines = [
        "## Peers at the same budget",
        "",
        "*Behind*: (loss - best) / best in per cent, best being the smallest loss of all methods",
        f"on that workload; in means a workload counts at most {CAP:g} %. Where the best loss is",
        "nearly 0 (separable data) that quotient says little, so *missed* stands beside it: the",
        "share of the decrease from x0 to the best that was not reached. *Hindsight* is no",
        "competitor but the line to reach: AdamW with warm-up and cosine at the best of",
        f"{len(RATES)} learning rates, each of which has all of T.",
        "",
        "![Per cent behind the best](figures/peers.svg)",
        "",
    ]
    away = [row for row in rows if not row.fitted]
    groups: list[tuple[str, list[Row]]] = [
        (title, _chosen(rows, group, held))
        for group in ("modern", "classical")
        for title, held in (
            (f"{group.capitalize()} workloads to work on", False),
            (f"{group.capitalize()} workloads, held out", True),
        )
    ]
    groups += [
        ("All workloads", list(rows)),
        ("Workloads whose best loss stays away from 0", away),
    ]
    if any(entry.seeds < SEEDS for row in rows for entry in row.entries.values()):
        title = "Methods with three seeds or more, best loss away from 0"
        groups.append((title, [row for row in often if not row.fitted]))
    for title, group in groups:
        if group:
            found = totals(group, METHODS)
            count = found[0].workloads if found else 0
            lines += [f"### {title} ({count})", "", *_total_table(found)]
            lines += [*_hindsight_line(group, line), ""]
    return "\n".join(lines)


def _chosen(rows: Sequence[Row], group: str, held_out: bool) -> list[Row]:
    """Return the rows of one group, either the held-out ones or the others."""
    found = ((row, WORKLOADS[row.workload]) for row in rows)
    return [row for row, item in found if (item.group, item.held_out) == (group, held_out)]


def _hindsight_line(rows: Sequence[Row], line: Hindsight) -> list[str]:
    """Return hindsight's line for a table of totals, if all rows have it."""
    if not rows or any(row.workload not in line for row in rows):
        return []
    losses = [(line[row.workload][0], row.best) for row in rows]
    behind = [100.0 * (loss / best - 1.0) if best else CAP * (loss > 0.0) for loss, best in losses]
    close = sum(value <= CLOSE for value in behind)
    means = fmean(min(CAP, value) for value in behind), median(behind), max(behind)
    figures = [percent(value) for value in means]
    cells = ["*hindsight*", *figures, "", "", f"{close} of {len(rows)}", ""]
    return ["| " + " | ".join(cells) + " |"]


def _total_table(found: Sequence[Total]) -> list[str]:
    head = [
        "method",
        "mean behind, %",
        "median, %",
        "worst behind, %",
        "mean missed, %",
        "worst missed, %",
        "within 2 %",
        "diverged",
    ]
    body = [
        [
            TITLES[total.method],
            percent(total.mean_behind),
            percent(total.median_behind),
            percent(total.worst_behind),
            f"{total.mean_missed:.2f}",
            f"{total.worst_missed:.1f}",
            f"{total.close} of {total.workloads}",
            str(total.diverged or ""),
        ]
        for total in found
    ]
    return markdown_table(head, body)


def _workloads(rows: Sequence[Row], line: Hindsight) -> str:
    head = [
        "workload",
        "T",
        "seeds",
        "best",
        "by",
        "`promote`",
        "behind, %",
        "`paper`",
        "best peer",
        "its behind, %",
        "hindsight",
        "`promote` behind it, %",
    ]
    body = []
    for row in rows:
        peers = [name for name in row.entries if name not in GRASP]
        first = min(peers, key=lambda name: row.entries[name].loss) if peers else None
        held = ", *held out*" if WORKLOADS[row.workload].held_out else ""
        ours, paper = row.entries.get("grasp-promote"), row.entries.get("grasp-paper")
        body.append(
            [
                WORKLOADS[row.workload].title + held,
                f"{row.budget:,}",
                str(next(iter(row.entries.values())).seeds),
                number(row.best),
                PLAIN[row.best_method],
                number(ours.loss) if ours else "",
                percent(row.behind("grasp-promote")) if ours else "",
                number(paper.loss) if paper else "",
                PLAIN[first] if first else "",
                percent(row.behind(first)) if first else "",
                *_against_hindsight(row, line),
            ]
        )
    lines = [
        "### By workload",
        "",
        "Training losses, mean over the seeds.",
        "",
        *markdown_table(head, body),
    ]
    return "\n".join([*lines, ""])


def _against_hindsight(row: Row, line: Hindsight) -> list[str]:
    """Return hindsight's loss and learning rate, and how far the default is behind."""
    if row.workload not in line:
        return ["", ""]
    loss, method = line[row.workload]
    ours = row.entries.get("grasp-promote")
    rate = RATES[list(SWEEP).index(method)]
    behind = percent(100.0 * (ours.loss - loss) / loss) if ours else ""
    return [f"{number(loss)} ({rate:g})", behind]


def _losses(rows: Sequence[Row]) -> str:
    parts = [
        "<details><summary>All losses (training, mean over the seeds)</summary>",
        "",
        *_matrix(rows, lambda row, name: number(row.entries[name].loss)),
        "",
        "</details>",
        "",
        "<details><summary>All per cent behind the best</summary>",
        "",
        *_matrix(rows, lambda row, name: percent(row.behind(name))),
        "",
        "</details>",
        "",
        "<details><summary>Losses on test rows, for information</summary>",
        "",
        *_matrix(
            [row for row in rows if any(map(_test_loss, row.entries.values()))],
            lambda row, name: _test_loss(row.entries[name]),
        ),
        "",
        "</details>",
        "",
        "<details><summary>Test accuracy, per cent, for information</summary>",
        "",
        *_matrix(rows, lambda row, name: accuracy(row.entries[name].accuracy)),
        "",
        "</details>",
        "",
    ]
    return "\n".join(parts)


def _test_loss(entry: Entry) -> str:
    return "" if math.isnan(entry.test_loss) else number(entry.test_loss)


def _gradients(rows: Sequence[Row]) -> str:
    curved = [row for row in rows if not WORKLOADS[row.workload].convex]
    if not curved:
        return ""
    lines = ["### Gradient norm on the non-convex workloads", ""]
    lines += _matrix(curved, lambda row, name: number(row.entries[name].gradient))
    return "\n".join([*lines, ""])


def _matrix(rows: Sequence[Row], show: Callable[[Row, str], str]) -> list[str]:
    """Return a table with a line per method and a column per workload."""
    names = [name for name in METHODS if any(name in row.entries for row in rows)]
    head = ["method", *(row.workload for row in rows)]
    body = [
        [TITLES[name], *(show(row, name) if name in row.entries else "" for row in rows)]
        for name in names
    ]
    return markdown_table(head, body)
