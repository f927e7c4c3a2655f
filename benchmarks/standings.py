"""How far each method is behind the best, computed from raw records.

The losses of a workload are averaged over the seeds. `behind` is (loss - best) / best in per cent,
where best is the smallest loss of all methods. If the best loss is nearly 0, this says little.
`missed` is the share, in per cent, of the decrease from x0 to the best that a method did not reach;
100 is no better than x0.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.records import Record

CLOSE = 2.0  # at most so many per cent behind the best is close
CAP = 1_000.0  # per cent; a diverged run counts as this far behind
NEAR_ZERO = 1e-3  # a best loss below this share of the start's is fitted
NEARLY = 0.75  # of the rows of the most frequent method


@dataclass(frozen=True, slots=True)
class Entry:
    """One method on one workload, averaged over its seeds."""

    loss: float
    spread: float  # standard deviation over the seeds; NaN for a single one
    gradient: float
    accuracy: float
    seeds: int
    diverged: int  # number of seeds with a diverged run
    test_loss: float = math.nan  # NaN if a seed has none


@dataclass(frozen=True, slots=True)
class Row:
    """All methods on one workload."""

    workload: str
    budget: int
    start: float
    entries: Mapping[str, Entry]

    @property
    def best(self) -> float:
        """The smallest loss of all methods."""
        return min(entry.loss for entry in self.entries.values())

    @property
    def best_method(self) -> str:
        """The method with the smallest loss."""
        return min(self.entries, key=lambda name: self.entries[name].loss)

    @property
    def fitted(self) -> bool:
        """Whether the best loss is nearly 0, so that ratios of losses say little."""
        return self.best < NEAR_ZERO * self.start

    def behind(self, method: str, measure: Callable[[Entry], float] | None = None) -> float:
        """Return how many per cent the loss, or another measure, is behind the best."""
        measure = measure or (lambda entry: entry.loss)
        best = min(measure(entry) for entry in self.entries.values())
        mine = measure(self.entries[method])
        if mine == best:
            return 0.0
        return 100.0 * (mine - best) / best if best > 0 and math.isfinite(mine) else math.inf

    def missed(self, method: str) -> float:
        """Return how many per cent of the possible decrease were missed."""
        mine, gain = self.entries[method].loss, self.start - self.best
        return 100.0 * (mine - self.best) / gain if math.isfinite(mine) and gain > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Total:
    """One method over several workloads."""

    method: str
    workloads: int
    mean_behind: float  # each capped at CAP
    median_behind: float
    worst_behind: float
    mean_missed: float  # each capped at 100
    worst_missed: float
    close: int  # workloads at most CLOSE behind the best
    diverged: int  # workloads with a run that diverged


def collect(
    records: Iterable[Record], order: Sequence[str], methods: Sequence[str], least: int = 1
) -> list[Row]:
    """Return a row per workload, in the given order.

    Only seeds that all methods of a workload have are averaged. Methods with fewer than `least`
    seeds are left out, and so are workloads without a shared seed.
    """
    found: dict[str, dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record.method in methods:
            found[record.workload][record.method][record.seed] = record
    rows = []
    for workload in order:
        have = found.get(workload)
        if not have:
            continue
        full = {name: seeds for name, seeds in have.items() if len(seeds) >= least}
        shared = set.intersection(*(set(seeds) for seeds in full.values())) if full else set()
        if not shared:
            continue
        entries = {
            name: _entry([full[name][seed] for seed in sorted(shared)])
            for name in methods
            if name in full
        }
        some = next(iter(full.values()))
        start = fmean(some[seed].start_loss for seed in shared)
        rows.append(Row(workload, next(iter(some.values())).budget, start, entries))
    return rows


def _entry(records: Sequence[Record]) -> Entry:
    losses = [record.loss for record in records]
    mean = fmean(losses)
    spread = math.nan
    if len(losses) > 1 and math.isfinite(mean):
        spread = math.sqrt(sum((loss - mean) ** 2 for loss in losses) / (len(losses) - 1))
    return Entry(
        mean,
        spread,
        fmean(record.gradient for record in records),
        fmean(record.accuracy for record in records),
        len(records),
        sum(record.diverged for record in records),
        fmean(record.test_loss for record in records),
    )


def totals(rows: Sequence[Row], methods: Sequence[str]) -> list[Total]:
    """Return the totals of the methods that took part in every row that counts, best mean first.

    A row counts if it has all methods that took part in nearly as many rows as the most frequent.
    """
    counts = {name: sum(name in row.entries for row in rows) for name in methods}
    most = max(counts.values(), default=0)
    core = [name for name, count in counts.items() if most and count >= NEARLY * most]
    rows = [row for row in rows if all(name in row.entries for name in core)]
    made = []
    for method in methods:
        if not rows or not all(method in row.entries for row in rows):
            continue
        behind = [min(CAP, row.behind(method)) for row in rows]
        missed = [min(100.0, row.missed(method)) for row in rows]
        made.append(
            Total(
                method,
                len(rows),
                fmean(behind),
                median(behind),
                max(row.behind(method) for row in rows),
                fmean(missed),
                max(missed),
                sum(value <= CLOSE for value in behind),
                sum(row.entries[method].diverged > 0 for row in rows),
            )
        )
    return sorted(made, key=lambda total: total.mean_behind)
