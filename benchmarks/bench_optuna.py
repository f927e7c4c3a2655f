"""Milliseconds per trial of GraspSampler, RandomSampler, GridSampler and TPESampler.

    python benchmarks/bench_optuna.py [--trials 200] [--repeats 3] [--storages memory,journal]

The objective is trivial, so this measures the sampler and the storage. Both halves of a study are
timed, to show whether the cost grows with the number of trials.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from grasp_tune.core.plan import Cell, Plan, Recipe
from grasp_tune.optuna import GraspSampler

LIMIT = 2.5  # times RandomSampler's time, in memory


def even_plan(count: int) -> Plan:
    """Return a plan of `count` cells over the range of the other samplers."""
    ratio = (1.0 / 1e-6) ** (1.0 / (count - 1))
    cells = tuple(Cell(at + 1, 1e-6 * ratio**at, 10) for at in range(count))
    return Plan(
        method=Recipe("nonconvex"),
        budget=10 * count,
        range=(1e-6, 2.0),
        cells=cells,
        skipped=(),
        probe_gradients=0,
        probe_values=0,
        candidates_per_cell=1,
        samples_per_candidate=0,
        score="gradient",
        quantity="step size",
        ensemble="window",
    )


def samplers(count: int) -> dict[str, Callable[[], BaseSampler]]:
    plan = even_plan(count)
    values = [cell.value for cell in plan.cells]
    return {
        "Random": lambda: RandomSampler(seed=0),
        "Grid": lambda: GridSampler({"lr": values}, seed=0),
        "TPE": lambda: TPESampler(seed=0),
        "Grasp": lambda: GraspSampler(plan, "lr"),
    }


def open_storage(kind: str, folder: Path) -> BaseStorage | None:
    if kind == "memory":
        return None
    if kind == "journal":
        return JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    if kind == "sqlite":
        return optuna.storages.get_storage(f"sqlite:///{folder}/study.db")
    raise SystemExit(f"--storages: got {kind!r}, expected memory, journal or sqlite")


def timed(make: Callable[[], BaseSampler], kind: str, trials: int) -> tuple[float, float]:
    """Return the milliseconds per trial in the first and in the second half of a study."""
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(kind, Path(folder))
        study = optuna.create_study(sampler=make(), storage=storage)
        marks = [time.perf_counter()]

        def objective(trial: optuna.Trial) -> float:
            if trial.number == trials // 2:
                marks.append(time.perf_counter())
            return trial.suggest_float("lr", 1e-6, 2.0, log=True)

        study.optimize(objective, n_trials=trials)
        marks.append(time.perf_counter())
        if len(study.trials) != trials:
            raise SystemExit(f"{len(study.trials)} trials were run in place of {trials}")
        backend = getattr(storage, "_backend", None)
        if isinstance(backend, RDBStorage):
            backend.engine.dispose()
    first, second = marks[1] - marks[0], marks[2] - marks[1]
    return 1e3 * first / (trials // 2), 1e3 * second / (trials - trials // 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--storages", default="memory,journal,sqlite")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    best: dict[tuple[str, str], float] = {}
    print(f"{'storage':<9} {'sampler':<8} {'ms/trial':>9} {'x Random':>9} {'2nd/1st half':>13}")
    for kind in options.storages.split(","):
        for name, make in samplers(options.trials).items():
            halves = [timed(make, kind, options.trials) for _ in range(options.repeats)]
            # The minimum is the least disturbed: other programs only add time.
            first, second = (min(half[at] for half in halves) for at in (0, 1))
            best[kind, name] = (first + second) / 2
            times = best[kind, name] / best[kind, "Random"]
            row = f"{kind:<9} {name:<8} {best[kind, name]:>9.3f} {times:>9.2f}"
            print(f"{row} {second / first:>13.2f}", flush=True)
    if ("memory", "Grasp") in best:
        times = best["memory", "Grasp"] / best["memory", "Random"]
        print(f"in memory GraspSampler costs {times:.2f} times RandomSampler; limit {LIMIT}")
        return int(times > LIMIT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
