"""The paper's three tables in its own protocol, for both schedules.

rho = (quality of the output - quality of the tuned base) / the latter; quality is the gradient's
norm (non-convex) or the loss (convex), on the fixed sample. The choice is by the window of the
last 100 minibatches, the two inputs go over {0.001, 0.01, 0.1}^2, the probe from T/4 to T/4096.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import grasp_tune as gt
from grasp_tune.method.statefile import read_json, write_json_atomic
from scripts.benchmarking.bases import run_base, tune
from scripts.benchmarking.measures import judge
from scripts.benchmarking.records import fingerprint, from_json, to_json
from scripts.benchmarking.workloads import WORKLOADS, Bundle

SCHEDULES = ("paper", "promote")
INPUTS = (0.001, 0.01, 0.1)
PAIRS = tuple((first, second) for first in INPUTS for second in INPUTS)
SHARES = tuple(4**power for power in range(1, 7))  # M = T / share

Kind = Literal["smooth", "universal", "nonconvex"]


@dataclass(frozen=True, slots=True)
class Table:
    """One of the paper's tables on data at hand."""

    name: str
    title: str
    kind: Kind
    workload: str
    budget: int
    inputs: tuple[str, str]

    @property
    def base(self) -> str:
        """The base optimizer of the paper."""
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
    """One number of a table, or its yardstick where the schedule is `tuned`."""

    table: str
    schedule: str
    pair: tuple[float, float]
    share: int
    seed: int
    data: Path | None
    results: Path

    def __str__(self) -> str:
        if self.schedule == "tuned":
            return f"{self.table} tuned base, seed {self.seed}"
        return f"{self.table} {self.schedule} {self.pair} M=T/{self.share} seed {self.seed}"

    @property
    def path(self) -> Path:
        """Where its result is kept."""
        name = f"{self.schedule}.{self.pair[0]:g}.{self.pair[1]:g}.M{self.share}.{self.seed}.json"
        if self.schedule == "tuned":
            name = f"tuned.{self.seed}.json"
        return self.results / self.table / name


def plan_cells(
    tables: Sequence[str],
    schedules: Sequence[str],
    seeds: Sequence[int],
    data: Path | None,
    results: Path,
    *,
    again: bool,
) -> Iterator[Cell]:
    """Yield what is still to be run, the yardstick first."""
    for table in tables:
        for seed in seeds:
            tuned = Cell(table, "tuned", (0.0, 0.0), 1, seed, data, results)
            cells = [
                Cell(table, schedule, pair, share, seed, data, results)
                for share in SHARES
                for pair in PAIRS
                for schedule in schedules
            ]
            if not tuned.path.exists():
                yield tuned
            yield from (cell for cell in cells if again or not cell.path.exists())


def run_cell(cell: Cell) -> str:
    """Run one cell, save it, return a line about it."""
    table = TABLES[cell.table]
    bundle = _bundle(table.workload, cell.data)
    begun = time.perf_counter()
    if cell.schedule == "tuned":
        found = _tune(table, bundle, cell.seed)
    else:
        found = _sweep(table, bundle, cell)
    found["seconds"] = round(time.perf_counter() - begun, 2)
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(cell.path, {key: to_json(value) for key, value in found.items()})
    return f"{cell}: quality {found['quality']:.5g}, {found['seconds']:.1f} s"


def _quality(table: Table, bundle: Bundle, tensors: Any, seed: int) -> float:
    if tensors is None:
        return math.inf
    judged = judge(bundle, tensors, seed)
    return judged.gradient if table.kind == "nonconvex" else judged.loss


def _tune(table: Table, bundle: Bundle, seed: int) -> dict[str, Any]:
    def quality(value: float) -> float:
        tensors = run_base(bundle.problem, table.base, value, table.budget, seed)
        return _quality(table, bundle, tensors, seed)

    tuned = tune(quality)
    tried = {f"{value:.6g}": to_json(found) for value, found in tuned.tried.items()}
    return {"quality": tuned.quality, "value": tuned.value, "tried": tried}


def _sweep(table: Table, bundle: Bundle, cell: Cell) -> dict[str, Any]:
    try:
        result = gt.minimize(
            bundle.problem,
            budget=table.budget,
            method=table.method(cell.pair, cell.share),
            schedule=cell.schedule,  # type: ignore[arg-type]
            seed=cell.seed,
            ensemble="window",
            progress=False,
        )
    except gt.BudgetTooSmall as error:
        note = f"T too small, needs {error.smallest}"
        return {"quality": math.nan, "calls": 0, "note": note, "source": fingerprint()}
    calls = sum(count for kind, count in result.calls.items() if kind != "repeated")
    chosen = result.choice.chosen
    return {
        "quality": _quality(table, bundle, result.tensors, cell.seed),
        "calls": calls,
        "note": "x0" if result.cell is None else f"{chosen.base} {chosen.value:.3g}",
        "source": fingerprint(),
    }


@lru_cache(maxsize=1)
def _bundle(name: str, data: Path | None) -> Bundle:
    return WORKLOADS[name].bundle(data)


@dataclass(frozen=True, slots=True)
class Finished:
    """One table as far as it has been run, averaged over the seeds."""

    table: Table
    tuned: float
    value: float  # of the tuned base
    quality: Mapping[tuple[str, tuple[float, float], int], float]

    def rho(self, schedule: str, pair: tuple[float, float], share: int) -> float | None:
        """Return the relative excess over the tuned base, None where it was not run."""
        found = self.quality.get((schedule, pair, share))
        return None if found is None else (found - self.tuned) / self.tuned


def read_table(table: Table, seeds: Sequence[int], results: Path) -> Finished | None:
    """Return what there is of a table, None without its yardstick."""
    quality: dict[tuple[str, tuple[float, float], int], float] = {}
    yardsticks = [_read(Cell(table.name, "tuned", (0.0, 0.0), 1, s, None, results)) for s in seeds]
    ready = [(seed, item) for seed, item in zip(seeds, yardsticks, strict=True) if item]
    if not ready:
        return None
    for schedule in SCHEDULES:
        for pair in PAIRS:
            for share in SHARES:
                cells = [
                    Cell(table.name, schedule, pair, share, seed, None, results)
                    for seed, _ in ready
                ]
                found = [item["quality"] for item in map(_read, cells) if item]
                if len(found) == len(ready):
                    quality[schedule, pair, share] = sum(found) / len(found)
    tuned = sum(item["quality"] for _, item in ready) / len(ready)
    return Finished(table, tuned, ready[0][1]["value"], quality)


def _read(cell: Cell) -> dict[str, Any] | None:
    if not cell.path.exists():
        return None
    data: Any = read_json(cell.path, 1 << 20)
    return {key: from_json(value) for key, value in data.items() if key != "tried"}
