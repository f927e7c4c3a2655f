"""The paper's three tables with its own protocol, for both schedules.

rho = (quality of the output - quality of the tuned base) / quality of the tuned base. Quality is
the gradient's norm (non-convex) or the loss (convex) on the fixed sample. Runs are compared by the
window of the last 100 minibatches; inputs are {0.001, 0.01, 0.1}^2, probes are T/4 to T/4096.

The base is tuned by its loss. By gradient norm, a learning rate that kills the network would win:
its gradient is small, but its loss is that of guessing. The smallest norm is reported, too.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import grasp_tune as gt
from benchmarks.bases import run_base, tune
from benchmarks.measures import judge
from benchmarks.records import Key, Row, fingerprint
from benchmarks.records import Table as ResultTable
from benchmarks.workload import Bundle
from benchmarks.workloads import WORKLOADS

SCHEDULES = ("paper", "promote")
INPUTS = (0.001, 0.01, 0.1)
PAIRS = tuple((first, second) for first in INPUTS for second in INPUTS)
SHARES = tuple(4**power for power in range(1, 7))  # M = T / share

Kind = Literal["smooth", "universal", "nonconvex"]


@dataclass(frozen=True, slots=True)
class Table:
    """One of the paper's tables, on a workload of ours."""

    name: str
    title: str
    kind: Kind
    workload: str
    budget: int
    inputs: tuple[str, str]

    @property
    def base(self) -> str:
        """The paper's base optimizer."""
        return "sgd" if self.kind == "nonconvex" else "unixgrad"

    def method(self, pair: tuple[float, float], share: int) -> gt.Convex | gt.NonConvex:
        """Return the method of one cell."""
        first, second = pair
        if self.kind == "nonconvex":
            return gt.NonConvex(L_eps=first, F_eps=second, delta=0.05, probe=1 / share)
        return gt.Convex(d_eps=first, L_eps=second, option=self.kind, probe=1 / share)


_ALL = (
    Table(
        "convex-option1",
        "GRASP-C Option I, CIFAR-10 probe",
        "smooth",
        "cifar-probe",
        10_000,
        ("d_eps", "L_eps"),
    ),
    Table(
        "convex-option2",
        "GRASP-C Option II, CIFAR-10 probe",
        "universal",
        "cifar-probe",
        10_000,
        ("d_eps", "L_eps"),
    ),
    Table(
        "nonconvex-cnn",
        "GRASP-NC, CNN on MNIST",
        "nonconvex",
        "mnist-cnn",
        2_000,
        ("L_eps", "F_eps"),
    ),
    Table(
        "nonconvex-resnet18",
        "GRASP-NC, ResNet-18 on CIFAR-10",
        "nonconvex",
        "cifar-resnet18",
        150,
        ("L_eps", "F_eps"),
    ),
)
TABLES: Mapping[str, Table] = {table.name: table for table in _ALL}


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table, or its tuned base if the schedule is `tuned`."""

    table: str
    schedule: str
    pair: tuple[float, float]
    share: int
    seed: int
    data: Path | None = None
    results: ResultTable | None = None  # where its row goes

    def __str__(self) -> str:
        if self.schedule == "tuned":
            return f"{self.table} tuned base, seed {self.seed}"
        return f"{self.table} {self.schedule} {self.pair} M=T/{self.share} seed {self.seed}"

    @property
    def key(self) -> Key:
        """The key of its row."""
        return (self.table, self.schedule, *self.pair, self.share, self.seed)


def yardstick(
    table: str, seed: int, data: Path | None = None, results: ResultTable | None = None
) -> Cell:
    """Return the tuned base of a table."""
    return Cell(table, "tuned", (0.0, 0.0), 1, seed, data, results)


def plan_cells(
    tables: Sequence[str],
    schedules: Sequence[str],
    seeds: Sequence[int],
    data: Path | None,
    results: ResultTable,
    *,
    again: bool,
) -> Iterator[Cell]:
    """Yield the cells still to run, the tuned base first."""
    done = set(results.rows())
    for table in tables:
        for seed in seeds:
            tuned = yardstick(table, seed, data, results)
            cells = [
                Cell(table, schedule, pair, share, seed, data, results)
                for share in SHARES
                for pair in PAIRS
                for schedule in schedules
            ]
            if tuned.key not in done:
                yield tuned
            yield from (cell for cell in cells if again or cell.key not in done)


def run_cell(cell: Cell) -> str:
    """Run one cell, save it and return a line about it."""
    table = TABLES[cell.table]
    bundle = _bundle(table.workload, cell.data)
    begun = time.perf_counter()
    if cell.schedule == "tuned":
        found = _tune(table, bundle, cell.seed)
    else:
        found = _sweep(table, bundle, cell)
    found["seconds"] = round(time.perf_counter() - begun, 2)
    if cell.results is not None:
        cell.results.append({**dict(zip(cell.results.key, cell.key, strict=True)), **found})
    return f"{cell}: quality {found['quality']:.5g}, {found['seconds']:.1f} s"


def _judged(table: Table, bundle: Bundle, tensors: Any, seed: int) -> dict[str, float]:
    """Return the table's quality, and the loss."""
    if tensors is None:
        return {"quality": math.inf, "loss": math.inf}
    found = judge(bundle, tensors, seed)
    quality = found.gradient if table.kind == "nonconvex" else found.loss
    return {"quality": quality, "loss": found.loss}


def _tune(table: Table, bundle: Bundle, seed: int) -> dict[str, Any]:
    tried: dict[float, dict[str, float]] = {}

    def loss(value: float) -> float:
        tensors = run_base(bundle.problem, table.base, value, table.budget, seed)
        tried[value] = _judged(table, bundle, tensors, seed)
        return tried[value]["loss"]

    value = tune(loss).value
    shown = {f"{rate:.6g}": found["quality"] for rate, found in sorted(tried.items())}
    least = min(tried, key=lambda rate: tried[rate]["quality"])
    smallest = {"value": least, **tried[least]}
    return {**tried[value], "value": value, "tried": shown, "smallest": smallest}


def _sweep(table: Table, bundle: Bundle, cell: Cell) -> dict[str, Any]:
    try:
        result = gt.minimize(
            bundle.problem,
            budget=table.budget,
            method=table.method(cell.pair, cell.share),
            schedule=cell.schedule,
            seed=cell.seed,
            ensemble="window",
            progress=False,
        )
    except gt.BudgetTooSmall as error:
        note = f"T too small, needs {error.smallest}"
        unknown = {"quality": math.nan, "loss": math.nan}
        return {**unknown, "calls": 0, "note": note, "source": fingerprint()}
    calls = sum(count for kind, count in result.calls.items() if kind != "repeated")
    chosen = result.choice.chosen
    return {
        **_judged(table, bundle, result.tensors, cell.seed),
        "calls": calls,
        "note": "x0" if result.cell is None else f"{chosen.base} {chosen.value:.3g}",
        "source": fingerprint(),
    }


@lru_cache(maxsize=1)
def _bundle(name: str, data: Path | None) -> Bundle:
    return WORKLOADS[name].bundle(data)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a cell or of the tuned base, averaged over the seeds."""

    quality: float
    loss: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The finished part of one table."""

    table: Table
    tuned: Found
    value: float  # of the tuned base
    smallest: Found  # of all values of the base, by quality
    cells: Mapping[tuple[str, tuple[float, float], int], Found]
    seeds: tuple[int, ...]

    def rho(self, schedule: str, pair: tuple[float, float], share: int) -> float | None:
        """Return the relative excess over the tuned base, None if the cell was not run."""
        found = self.cells.get((schedule, pair, share))
        if found is None:
            return None
        return (found.quality - self.tuned.quality) / self.tuned.quality

    def rhos(self, schedule: str) -> list[float]:
        """Return the excess of every cell of a schedule that was run; NaN if T is too small."""
        own = [(pair, share) for (name, pair, share) in self.cells if name == schedule]
        found = [self.rho(schedule, pair, share) for pair, share in own]
        return [rho for rho in found if rho is not None]


def read_tables(results: ResultTable) -> list[Finished]:
    """Return the finished part of every table."""
    rows = results.rows()
    found = [_read_table(table, rows) for table in TABLES.values()]
    return [item for item in found if item is not None]


def _read_table(table: Table, rows: Mapping[Key, Row]) -> Finished | None:
    """Return the finished part of a table, None without its tuned base."""
    seeds = sorted(key[-1] for key in rows if key[:2] == (table.name, "tuned"))
    if not seeds:
        return None
    cells: dict[tuple[str, tuple[float, float], int], Found] = {}
    for schedule in SCHEDULES:
        for pair in PAIRS:
            for share in SHARES:
                keys = [Cell(table.name, schedule, pair, share, seed).key for seed in seeds]
                if all(key in rows for key in keys):
                    cells[schedule, pair, share] = _mean([rows[key] for key in keys])
    tuned = [rows[yardstick(table.name, seed).key] for seed in seeds]
    smallest = _mean([item.get("smallest", item) for item in tuned])
    return Finished(table, _mean(tuned), tuned[0]["value"], smallest, cells, tuple(seeds))


def _mean(items: Sequence[Row]) -> Found:
    """Return the mean; in a convex table the quality is the loss."""
    losses = [item.get("loss", item["quality"]) for item in items]
    return Found(sum(item["quality"] for item in items) / len(items), sum(losses) / len(items))
