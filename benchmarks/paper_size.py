"""The paper's non-convex experiment at its own size: ResNet-18, CIFAR-10, batch 64, T = 10^4.

    python -m benchmarks.paper_size --data FOLDER                 all runs without a row
    python -m benchmarks.paper_size --data FOLDER sgd-0.1 paper   only these

Both schedules with one pair of inputs, and SGD at five learning rates with all of T each. A run
takes 1,000 s to 5,000 s on one core and is saved when it ends.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

import grasp_tune as gt
from benchmarks import datasets, models
from benchmarks.bases import run_base
from benchmarks.measures import judge
from benchmarks.pool import run_jobs
from benchmarks.records import RESULTS, fingerprint, sizes_table
from benchmarks.workload import Bundle, Workload

BUDGET, SEED = 10_000, 10
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
SCHEDULES = ("paper", "promote")
RUNS = (*(f"sgd-{rate:g}" for rate in RATES), *SCHEDULES)

WORKLOAD = Workload(
    "paper-resnet18",
    "ResNet-18 on all of CIFAR-10",
    False,
    partial(datasets.cifar_images, every=1),
    models.resnet18,
    models.cross_entropy,
    (datasets.CIFAR_ARCHIVE,),
    budget=BUDGET,
    sample=10_000,
)


def run(name: str, bundle: Bundle) -> str:
    """Make one run, save its row and return a line about it."""
    begun = time.perf_counter()
    tensors, note = _trained(name, bundle)
    seconds = round(time.perf_counter() - begun)
    row = {"run": name, "seed": SEED, "budget": BUDGET, "seconds": seconds, "note": note}
    if tensors is not None:
        found = judge(bundle, tensors, SEED)
        row |= {"loss": found.loss, "gradient": found.gradient}
        row |= {"accuracy": found.accuracy, "test_loss": found.test_loss}
    sizes_table(RESULTS).append(row | {"source": fingerprint()})
    return f"{name}: {row}"


def _trained(name: str, bundle: Bundle) -> tuple[Mapping[str, Tensor] | None, str]:
    if name not in SCHEDULES:
        rate = float(name.removeprefix("sgd-"))
        tensors = run_base(bundle.problem, "sgd", rate, BUDGET, SEED)
        return tensors, "" if tensors is not None else "diverged"
    paper = name == "paper"
    result = gt.minimize(
        bundle.problem,
        budget=BUDGET,
        method=gt.NonConvex(L_eps=0.01, F_eps=0.01, probe=0.25 if paper else None),
        schedule=name,
        seed=SEED,
        ensemble="window" if paper else "resample",
        progress=False,
    )
    chosen = result.choice.chosen
    return result.tensors, "x0" if result.cell is None else f"{chosen.base} {chosen.value:.3g}"


def main() -> int:
    """Make the requested runs that have no row yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_size")
    parser.add_argument("runs", nargs="*", choices=[*RUNS, []], help="by default all without a row")
    parser.add_argument("--data", type=Path, default=os.environ.get("GRASP_TUNE_DATA"))
    options = parser.parse_args()
    if missing := WORKLOAD.missing(options.data):
        parser.error(f"{missing} is not in --data")
    done = {key[0] for key in sizes_table(RESULTS).rows()}
    wanted = options.runs or [name for name in RUNS if name not in done]
    bundle = WORKLOAD.bundle(options.data)
    return int(run_jobs(wanted, partial(run, bundle=bundle), processes=1) > 0)


if __name__ == "__main__":
    sys.exit(main())
