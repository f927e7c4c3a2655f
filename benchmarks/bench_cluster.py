"""What workers buy: wall-clock with many against one, time busy, and the simulator's forecast.

    python benchmarks/bench_cluster.py ray [--budget 10000] [--pause 0.01] [--lanes 8] [--seeds 1]
    python benchmarks/bench_cluster.py local [--budget 1200]

`ray`: an oracle that sleeps, on real Ray with eight logical CPUs. For each workload and schedule:
seconds with eight workers and with one, their quotient, the loss of both, and worker-seconds busy
over held. `local`: a convolutional network on one and two processes of this machine, beside what
the simulator says for them and for up to 256 workers. All figures are ratios inside one run.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional

import grasp_tune as gt
from grasp_tune.core.spec import SweepSpec
from grasp_tune.report.dry_run import Stopwatch, dry_run
from grasp_tune.report.simulation import Costs, simulate, timed_exchange
from grasp_tune.runtime.sweep_folder import STATE, load_search

WORKERS = 8
Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


def _softmax() -> nn.Module:
    return nn.Linear(20, 5)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))


WORKLOADS = {"noisy convex": _softmax, "network": _network}


def sleeping(model: Callable[[], nn.Module], pause: float) -> gt.TorchProblem:
    """Return a problem with a fifth of its labels wrong, whose oracle sleeps."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(4000, 20, generator=draw)
    y = (x @ torch.randn(20, 5, generator=draw) + 0.3 * torch.sin(3 * x[:, :5])).argmax(1)
    wrong = torch.rand(len(y), generator=draw) < 0.2
    y[wrong] = torch.randint(0, 5, (int(wrong.sum()),), generator=draw)

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        time.sleep(pause)
        return functional.cross_entropy(module(batch[0]), batch[1])

    return gt.TorchProblem(model=model, loss=loss, data=(x, y), batch_size=16, device="cpu")


def whole_loss(result: gt.Result, problem: gt.TorchProblem) -> float:
    """Return the loss of the chosen model over all rows."""
    x, y = problem.data  # type: ignore[misc]
    with torch.no_grad():
        return float(functional.cross_entropy(result.model(x), y))


def on_ray(options: argparse.Namespace) -> None:
    """Print the table of an oracle that sleeps."""
    import ray

    from grasp_tune.ray import RayBackend

    ray.init(
        address="local",
        num_cpus=WORKERS,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    print(
        "workload | schedule | seconds 8 | 1 | times faster | loss 8 | 1 | busy/held 8", flush=True
    )
    default = gt.Promote() if options.lanes is None else gt.Promote(most_lanes=options.lanes)
    schedules = {"default": default, "paper": gt.Paper()}
    for name, model in WORKLOADS.items():
        for word, schedule in schedules.items():
            if options.only not in f"{name} {word}":
                continue
            for seed in range(options.seeds):
                seconds, losses, share = {}, {}, 0.0
                for workers in (WORKERS, 1):
                    problem = sleeping(model, options.pause)
                    how: Any = {"schedule": schedule, "fused": False, "seed": seed}
                    begun = time.monotonic()
                    backend = RayBackend(workers=workers)
                    result = gt.minimize(
                        problem, options.budget, backend=backend, progress=False, **how
                    )
                    seconds[workers] = time.monotonic() - begun
                    losses[workers] = whole_loss(result, problem)
                    if workers == WORKERS and result.usage is not None:
                        share = result.usage.share
                print(
                    f"{name} | {word} | {seconds[WORKERS]:.1f} | {seconds[1]:.1f} | "
                    f"{seconds[1] / seconds[WORKERS]:.2f} | {losses[WORKERS]:.4f} | "
                    f"{losses[1]:.4f} | {share:.2f}",
                    flush=True,
                )
    ray.shutdown()


def cnn() -> nn.Module:
    """A convolutional network that keeps a core busy."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 4),
    )


def on_cores(options: argparse.Namespace) -> None:
    """Print real and simulated times of a network on one and two processes."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 3, 24, 24, generator=draw)
    y = 2 * (x[:, 0].mean((1, 2)) > 0).long() + (x[:, 1].mean((1, 2)) > 0).long()
    x[:, :2] += 0.3 * x[:, :2].mean((2, 3), keepdim=True).sign()
    problem = gt.TorchProblem(
        model=cnn,
        loss=lambda module, batch: functional.cross_entropy(module(batch[0]), batch[1]),
        data=(x, y),
        batch_size=16,
        device="cpu",
    )
    schedule = gt.Promote() if options.lanes is None else gt.Promote(most_lanes=options.lanes)
    spec = SweepSpec(gt.NonConvex(), options.budget, schedule)
    stopwatch = Stopwatch(problem, 0, {})
    start = stopwatch.start(exact=False)
    run = dry_run(spec, start)
    costs = Costs(stopwatch.speed(run, spec), timed_exchange(start.parameters))
    print(f"{costs.speed.single:.4f} s a call, {costs.exchange:.4f} s an exchange", flush=True)
    print(f"depth in a dry run: {run.depth}", flush=True)
    real: dict[int, float] = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            how: Any = {"schedule": schedule, "fused": False, "workers": workers, "out": folder}
            result = gt.minimize(problem, options.budget, progress=False, **how)
            real[workers] = time.monotonic() - begun
            if workers == 1:  # the rounds as they were, timed as they would be
                run = dry_run(spec, start, load_search(Path(folder) / STATE).outcomes)
                calls = sum(result.calls.values())
                scale = real[1] / simulate(run, costs, 1).seconds
                print(f"{real[1] / calls:.4f} s a call in the sweep: {scale:.2f} times", flush=True)
        said = simulate(run, costs, workers)
        share = "" if result.usage is None else f", busy/held {result.usage.share:.2f}"
        print(
            f"{workers} processes: {real[workers]:.1f} s, simulated {said.seconds:.1f} s; depth "
            f"{result.depth}, simulated {run.depth}{share}, simulated {said.share:.2f}",
            flush=True,
        )
    one, two = (simulate(run, costs, count).seconds for count in (1, 2))
    print(f"two against one: {real[1] / real[2]:.2f}, simulated {one / two:.2f}", flush=True)
    for count in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        found = simulate(run, costs, count)
        print(f"{count} workers: {found.seconds:.1f} s, busy/held {found.share:.2f}")


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description="What workers buy.")
    parser.add_argument("where", choices=("ray", "local"))
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds of an oracle call")
    parser.add_argument("--lanes", type=int, help="most_lanes of the default schedule")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="a word of the workload and schedule")
    options = parser.parse_args()
    (on_ray if options.where == "ray" else on_cores)(options)


if __name__ == "__main__":
    main()
