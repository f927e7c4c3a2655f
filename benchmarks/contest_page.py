"""The part of the page about peers: standings, losses by workload, gradient norms, ablation."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.ablation import VARIANTS
from benchmarks.contest import GRASP, METHODS
from benchmarks.markdown import accuracy, markdown_table, number, percent
from benchmarks.records import Record
from benchmarks.standings import CAP, Row, Total, collect, totals
from benchmarks.workloads import WORKLOADS
from grasp_tune.peers import PEERS

TITLES = {
    "grasp-promote": "**GRASP `promote`**",
    "grasp-paper": "GRASP `paper`",
    **{name: peer.title for name, peer in PEERS.items()},
    **{name: variant.title for name, variant in VARIANTS.items()},
}
SEEDS = 3  # a method needs so many for the table over several seeds
PLAIN = {name: title.replace("*", "").replace("`", "") for name, title in TITLES.items()}


def contest_part(rows: Sequence[Row], often: Sequence[Row]) -> str:
    """Return everything about methods and workloads; `often` are rows over several seeds."""
    parts = [_standings(rows, often), _workloads(rows), _losses(rows), _gradients(rows)]
    return "\n".join(parts)


def _standings(rows: Sequence[Row], often: Sequence[Row]) -> str:
    lines = [
        "## Peers at the same budget",
        "",
        "*Behind*: (loss - best) / best in per cent, best being the smallest loss of all methods",
        f"on that workload; in means a workload counts at most {CAP:g} %. Where the best loss is",
        "nearly 0 (separable data) that quotient says little, so *missed* stands beside it: the",
        "share of the decrease from x0 to the best that was not reached.",
        "",
        "![Per cent behind the best](figures/peers.svg)",
        "",
    ]
    away = [row for row in rows if not row.fitted]
    groups: list[tuple[str, list[Row]]] = [
        ("All workloads", list(rows)),
        ("Workloads whose best loss stays away from 0", away),
        ("Tuned on", [row for row in rows if not WORKLOADS[row.workload].held_out]),
        ("Held out", [row for row in rows if WORKLOADS[row.workload].held_out]),
    ]
    if any(entry.seeds < SEEDS for row in rows for entry in row.entries.values()):
        title = "Methods with three seeds or more, best loss away from 0"
        groups.append((title, [row for row in often if not row.fitted]))
    for title, group in groups:
        if group:
            found = totals(group, METHODS)
            count = found[0].workloads if found else 0
            lines += [f"### {title} ({count})", "", *_total_table(found), ""]
    return "\n".join(lines)


def _total_table(found: Sequence[Total]) -> list[str]:
    head = [
        "method",
        "mean behind, %",
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
            percent(total.worst_behind),
            f"{total.mean_missed:.2f}",
            f"{total.worst_missed:.1f}",
            f"{total.close} of {total.workloads}",
            str(total.diverged or ""),
        ]
        for total in found
    ]
    return markdown_table(head, body)


def _workloads(rows: Sequence[Row]) -> str:
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
        "<details><summary>Test accuracy, per cent, for information</summary>",
        "",
        *_matrix(rows, lambda row, name: accuracy(row.entries[name].accuracy)),
        "",
        "</details>",
        "",
    ]
    return "\n".join(parts)


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


def ablation_part(variants: Sequence[Record], records: Sequence[Record]) -> str:
    """Return the table of the schedule's ingredients, empty without results."""
    tried = {record.workload for record in variants}
    order = [name for name in WORKLOADS if name in tried]
    rows = collect([*records, *variants], order, ("grasp-promote", *VARIANTS))
    rows = [row for row in rows if "grasp-promote" in row.entries]
    if not rows:
        return ""
    away, fitted = [row for row in rows if not row.fitted], [row for row in rows if row.fitted]
    effects = sorted(_effects(away), key=lambda effect: fmean(effect.changes.values()))
    lines = [
        "## Ablation",
        "",
        "The default with one ingredient changed, and what that does to its loss, in per cent;",
        f"below 0 is better than the default. Seed {_seeds(variants)} of "
        f"{', '.join(row.workload for row in away)}.",
        "Losses stand beside it where the best is near 0. What can go wrong and did not on these",
        "workloads, a part of the run that has to be undone for example, shows no effect here.",
        "",
        *markdown_table(
            [
                "change",
                "workloads",
                "mean, %",
                "worst, %",
                "best, %",
                *(row.workload for row in fitted),
            ],
            [
                ["the default", "", "", "", "", *_near_zero(fitted, "grasp-promote")],
                *([*effect.cells(), *_near_zero(fitted, effect.name)] for effect in effects),
            ],
        ),
        "",
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Effect:
    """What one variant does to the loss of each workload, in per cent."""

    name: str
    changes: Mapping[str, float]

    def cells(self) -> list[str]:
        """The line of the table: title, how many workloads, mean, worst, best."""
        worst = max(self.changes, key=lambda name: self.changes[name])
        best = min(self.changes, key=lambda name: self.changes[name])
        return [
            TITLES[self.name],
            str(len(self.changes)),
            f"{fmean(self.changes.values()):+.1f}",
            f"{self.changes[worst]:+.1f} ({worst})",
            f"{self.changes[best]:+.1f} ({best})",
        ]


def _effects(rows: Sequence[Row]) -> Iterator[_Effect]:
    for name in VARIANTS:
        changes = {
            row.workload: _change(row.entries[name].loss, row.entries["grasp-promote"].loss)
            for row in rows
            if name in row.entries
        }
        if changes:
            yield _Effect(name, changes)


def _change(loss: float, before: float) -> float:
    """Return the change in per cent; as in the standings, divergence counts as a rise of `CAP`."""
    change = 100.0 * (loss - before) / before
    return min(CAP, change) if math.isfinite(change) else CAP


def _near_zero(rows: Sequence[Row], name: str) -> list[str]:
    return [number(row.entries[name].loss) if name in row.entries else "" for row in rows]


def _seeds(records: Sequence[Record]) -> str:
    return ", ".join(map(str, sorted({record.seed for record in records})))
