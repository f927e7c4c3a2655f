"""The part of the results page about the ablation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.ablation import VARIANTS
from benchmarks.contest_page import TITLES
from benchmarks.markdown import markdown_table, number
from benchmarks.records import Record
from benchmarks.standings import CAP, Row, collect
from benchmarks.workloads import WORKLOADS


def ablation_part(variants: Sequence[Record], records: Sequence[Record]) -> str:
    """Return the table of the ablation, empty without results."""
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
    """How one variant changes the loss of each workload, in per cent."""

    name: str
    changes: Mapping[str, float]

    def cells(self) -> list[str]:
        """Return the row of the table: title, number of workloads, mean, worst, best."""
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
    """Return the change in per cent; divergence counts as a rise of `CAP`, as in the standings."""
    change = 100.0 * (loss - before) / before
    return min(CAP, change) if math.isfinite(change) else CAP


def _near_zero(rows: Sequence[Row], name: str) -> list[str]:
    return [number(row.entries[name].loss) if name in row.entries else "" for row in rows]


def _seeds(records: Sequence[Record]) -> str:
    return ", ".join(map(str, sorted({record.seed for record in records})))
