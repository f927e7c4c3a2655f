"""The part of the results page about the default schedule's targets, and those it missed."""

import math
from collections.abc import Sequence
from statistics import median

from benchmarks import tables
from benchmarks.contest import GRASP, METHODS
from benchmarks.contest_page import PLAIN, Hindsight
from benchmarks.markdown import markdown_table, number, percent
from benchmarks.standings import CLOSE, Row, Total, totals
from benchmarks.workloads import WORKLOADS

OURS = "grasp-promote"
FAR = 5.0  # per cent behind the best, at most, on every workload
MOSTLY = 0.9  # of the workloads are to be at most CLOSE behind


def targets_part(
    rows: Sequence[Row], done: Sequence[tables.Finished], line: Hindsight | None = None
) -> str:
    """Return each target with its result, and every workload on which it was missed.

    line: hindsight's loss by workload.
    """
    lines = [
        "## Targets of `promote`",
        "",
        "Why they are missed where they are: [limits.md](limits.md).",
        "",
        *markdown_table(
            ["target", "found", "met"],
            [
                *_contest_targets(rows),
                *_hindsight_target(rows, line or {}),
                *(_table_target(item) for item in done),
            ],
        ),
        "",
    ]
    misses = [row for row in rows if OURS in row.entries and row.behind(OURS) > CLOSE]
    if misses:
        lines += [
            f"Workloads on which it is more than {CLOSE:g} % behind:",
            "",
            *markdown_table(
                ["workload", "T", "`promote`", "best", "by", "behind, %", "missed, %"],
                [_miss(row) for row in misses],
            ),
            "",
        ]
    return "\n".join(lines)


def _contest_targets(rows: Sequence[Row]) -> list[list[str]]:
    own = [row for row in rows if OURS in row.entries]
    if not own:
        return []
    groups = [
        ("all workloads", own),
        ("those whose best loss stays away from 0", [row for row in own if not row.fitted]),
        ("modern ones", [row for row in own if WORKLOADS[row.workload].group == "modern"]),
        ("those held out", [row for row in own if WORKLOADS[row.workload].held_out]),
    ]
    found = []
    for title, group in groups:
        if not group:
            continue
        behind = [row.behind(OURS) for row in group]
        within = sum(value <= CLOSE for value in behind)
        found += [
            [
                f"never more than {FAR:g} % behind the best of all methods, {title}",
                f"{percent(max(behind))} %",
                _word(max(behind) <= FAR),
            ],
            [
                f"at most {CLOSE:g} % behind the best of all methods, {title}",
                f"{within} of {len(group)}",
                _word(within >= MOSTLY * len(group)),
            ],
        ]
        found += _against_peers(totals(group, METHODS), title)
    return found


def _against_peers(found: Sequence[Total], title: str) -> list[list[str]]:
    """Return whether no peer is better on the mean, on the median, or in the worst case."""
    own = next((total for total in found if total.method == OURS), None)
    peers = [total for total in found if total.method not in GRASP]
    if own is None or not peers:
        return []
    lines = []
    for words, values in (
        ("on the mean", {total.method: total.mean_behind for total in [own, *peers]}),
        ("on the median", {total.method: total.median_behind for total in [own, *peers]}),
        ("in the worst case", {total.method: total.worst_behind for total in [own, *peers]}),
    ):
        mine = values.pop(OURS)
        next_one = min(values, key=lambda name: values[name])
        lines.append(
            [
                f"ahead of every peer {words}, {title}",
                f"{percent(mine)} %; {PLAIN[next_one]} {percent(values[next_one])} %",
                _word(mine < values[next_one]),
            ]
        )
    return lines


def _hindsight_target(rows: Sequence[Row], line: Hindsight) -> list[list[str]]:
    own = [row for row in rows if OURS in row.entries and row.workload in line]
    if not own:
        return []
    behind = [100.0 * (row.entries[OURS].loss / line[row.workload][0] - 1.0) for row in own]
    middle = median(behind)
    words = f"on the median at most {CLOSE:g} % behind hindsight, {len(own)} workloads"
    return [[words, f"{percent(middle)} %", _word(middle <= CLOSE)]]


def _table_target(item: tables.Finished) -> list[str]:
    cells = item.rhos("promote")
    below = sum(rho <= 0.0 for rho in cells)
    largest = max(cells, default=math.nan)
    return [
        f"rho at most 0 in every cell, {item.table.title}",
        f"{below} of {len(cells)}, largest {largest:.3f}",
        _word(bool(cells) and below == len(cells)),
    ]


def _miss(row: Row) -> list[str]:
    return [
        WORKLOADS[row.workload].title,
        f"{row.budget:,}",
        number(row.entries[OURS].loss),
        number(row.best),
        PLAIN[row.best_method],
        percent(row.behind(OURS)),
        f"{row.missed(OURS):.2g}",
    ]


def _word(met: bool) -> str:
    return "yes" if met else "**no**"
