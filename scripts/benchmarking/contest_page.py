"""The part of the page about peers: standings, losses by workload, gradient norms, ablation."""

from collections.abc import Callable, Sequence

from grasp_tune.peers import PEERS
from scripts.benchmarking.ablation import VARIANTS
from scripts.benchmarking.contest import GRASP, METHODS
from scripts.benchmarking.markdown import accuracy, markdown_table, number, percent
from scripts.benchmarking.records import Record
from scripts.benchmarking.standings import CAP, Row, Total, collect, totals
from scripts.benchmarking.workloads import WORKLOADS

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
            f"{total.firsts} of {total.workloads}",
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
    if not variants:
        return ""
    names = ("grasp-promote", *VARIANTS)
    # The best of all methods stays the yardstick: peers take part, and are not shown.
    tried = {record.workload for record in variants}
    order = [name for name in WORKLOADS if name in tried]
    rows = collect([*records, *variants], order, (*METHODS, *VARIANTS))
    away, fitted = [row for row in rows if not row.fitted], [row for row in rows if row.fitted]
    lines = [
        "## Ablation",
        "",
        "The default with one ingredient changed; behind the best of all methods and variants, on",
        f"{', '.join(row.workload for row in away)}. Losses stand beside it where the best is",
        "near 0.",
        "",
        *markdown_table(
            ["schedule", "mean behind, %", "worst behind, %", *(row.workload for row in fitted)],
            [
                [
                    TITLES[total.method],
                    percent(total.mean_behind),
                    percent(total.worst_behind),
                    *(
                        number(row.entries[total.method].loss)
                        if total.method in row.entries
                        else ""
                        for row in fitted
                    ),
                ]
                for total in totals(away, names)
            ],
        ),
        "",
    ]
    return "\n".join(lines)
