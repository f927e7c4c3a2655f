"""`gt.Grasp` in a plain loop against `gt.minimize`: the same schedule, so the same quality.

    python -m benchmarks.bench_loop [--calls 1500] [--seeds 3] [WORKLOAD]...

Both make the same number of oracle calls from the same start point; only the order of the data
differs. Prints each seed's training loss on the workload's fixed sample, and the ratio of medians.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

import grasp_tune as gt
from benchmarks.measures import judge
from benchmarks.workload import Bundle, Workload
from benchmarks.workloads import WORKLOADS
from grasp_tune.engine.checkpoints import model_tensors

SIX = ("digits", "a9a", "digits-mlp", "autoencoder", "sine", "table-resnet")


def by_loop(bundle: Bundle, workload: Workload, calls: int, seed: int) -> float:
    """Return the training loss after an ordinary training loop."""
    problem = bundle.problem
    assert isinstance(problem.data, tuple)
    rows = torch.utils.data.TensorDataset(*problem.data)
    shuffled = torch.Generator().manual_seed(seed)
    loader = torch.utils.data.DataLoader(
        rows, problem.batch_size, shuffle=True, generator=shuffled, drop_last=True
    )
    model = problem.build(seed)
    opt = gt.Grasp(model, calls, workload.method, seed=seed)
    while not opt.done:
        for batch in loader:
            opt.zero_grad()
            loss = problem.loss(model, batch)
            loss.backward()
            opt.step(loss)
            if opt.done:
                break
    return judge(bundle, model_tensors(model), seed).loss


def by_minimize(bundle: Bundle, workload: Workload, calls: int, seed: int) -> float:
    """Return the training loss after `minimize`."""
    result = gt.minimize(bundle.problem, calls, workload.method, seed=seed, progress=False)
    return judge(bundle, result.tensors, seed).loss


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="gt.Grasp in a loop against gt.minimize.")
    parser.add_argument("workloads", nargs="*", default=SIX, help=f"names; {', '.join(SIX)}")
    parser.add_argument("--calls", type=int, default=1_500, help="oracle calls of each (1500)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (3)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder = Path(os.environ["GRASP_TUNE_DATA"]) if "GRASP_TUNE_DATA" in os.environ else None
    print(f"{'workload':<16} {'minimize':<32} {'Grasp':<32} ratio of medians")
    for name in options.workloads:
        workload = WORKLOADS[name]
        if (missing := workload.missing(folder)) is not None:
            print(f"{name:<16} skipped: there is no {missing}")
            continue
        bundle, found = workload.bundle(folder), list[list[float]]()
        for way in (by_minimize, by_loop):
            found.append(
                [way(bundle, workload, options.calls, seed) for seed in range(options.seeds)]
            )
        texts = [" ".join(f"{value:.4g}" for value in row) for row in found]
        first, second = map(median, found)
        ratio = f"{second / first:.2f}" if first else "-"  # a loss of 0 has no ratio
        print(f"{name:<16} {texts[0]:<32} {texts[1]:<32} {ratio}", flush=True)


if __name__ == "__main__":
    main()
