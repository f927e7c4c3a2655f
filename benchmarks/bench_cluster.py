"""How many workers save how much time: on Ray, against rivals, and in the simulator.

    python -m benchmarks.bench_cluster ray [--budget 10000] [--pause 0.1] [--only WORDS]
    python -m benchmarks.bench_cluster rivals [--budget 10000] [--pause 0.1] [--only WORDS]
    python -m benchmarks.bench_cluster predict [--budget 10000] [--only WORDS]
    python -m benchmarks.bench_cluster curve
    python -m benchmarks.bench_cluster local [--budget 1200]

`ray`: an oracle that sleeps, on real Ray with eight logical CPUs. For each workload and schedule:
seconds with eight workers and with one (once all of them have started), their ratio, both losses,
the share of worker time that is busy, the depth, and the simulator's times for both. Sweeps with
one worker run at the same time, each in its own process, since they only sleep.

`rivals`: the loss of the default with eight workers, and of Ray's ASHA and PBT and Optuna's TPE
with eight processes after the same time, over learning rates from 1e-5 to 10. Starting processes
counts for all; the rivals compare the loss over all data, which costs them no time.

`predict`: only the simulator, on the rounds of a real sweep: 1 to 256 workers, in units of calls.
`curve`: the same for two budgets and both schedules, as a figure: docs/figures/workers.svg.

`local`: a convolutional network on one and two processes of this machine, with the simulator's
times for them and for up to 256 workers. All figures are ratios within one run.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional

import grasp_tune as gt
from benchmarks.cluster_rivals import WORKERS, WORKLOADS, sleeping, tpe, tune_rival, whole_loss
from benchmarks.figures import growth_plot
from grasp_tune.core.spec import SweepSpec
from grasp_tune.report.cost_estimate import measure, timed_exchange
from grasp_tune.report.dry_run import Costs, DryRun, dry_run, simulate, start_point
from grasp_tune.runtime.sweep_folder import STATE, load_search

ROOT = Path(__file__).resolve().parents[1]
SIZES = tuple(2**power for power in range(9))  # numbers of workers that are simulated


def schedule_of(word: str, lanes: int | None) -> Any:
    """Return the schedule for its name in the table."""
    if word == "paper":
        return gt.Paper()
    return gt.Promote() if lanes is None else gt.Promote(most_lanes=lanes)


def rounds(options: argparse.Namespace, name: str, word: str) -> DryRun:
    """Return the rounds of a real sweep, whose oracle does not sleep."""
    problem, schedule = sleeping(WORKLOADS[name], 0.0), schedule_of(word, options.lanes)
    with tempfile.TemporaryDirectory() as folder:
        how: Any = {"schedule": schedule, "fused": False, "progress": False}
        gt.minimize(problem, options.budget, gt.NonConvex(), out=f"{folder}/out", **how)
        search = load_search(Path(folder) / "out" / STATE)
    return dry_run(search.spec, start_point(1.0, 1.0), search.outcomes)


CALLS = Costs(1.0)


def predict(options: argparse.Namespace) -> None:
    """Print the simulator's times if a call takes a second and everything else none."""
    for name, word in wanted_rows(options):
        run = rounds(options, name, word)
        alone = simulate(run, CALLS, 1).seconds
        print(f"{name} | {word} | {alone:.0f} calls, depth {run.depth}", flush=True)
        for count in SIZES:
            found = simulate(run, CALLS, count)
            times = alone / found.seconds
            print(f"  {count} workers: {times:.2f} times, busy/held {found.share:.2f}", flush=True)
        found = simulate(run, CALLS, WORKERS)
        for item, seconds in zip(run.rounds, found.rounds, strict=True):
            if (lost := seconds - item.calls / WORKERS) > 0.005 * found.seconds:
                first, count = item.tasks[0].id, len(item.tasks)
                print(f"    {lost:.0f} of {seconds:.0f} lost with 8: {count} tasks from {first}")


def curve(options: argparse.Namespace) -> None:
    """Draw the simulated speed-up of training a network with 1 to 256 workers."""
    lines = {}
    for word in ("default", "paper"):
        for options.budget in (10_000, 100_000):
            run = rounds(options, "network", word)
            alone = simulate(run, CALLS, 1).seconds
            found = [(count, alone / simulate(run, CALLS, count).seconds) for count in SIZES]
            lines[f"{word}, T = {options.budget:,}"] = found
            print(word, options.budget, [round(times, 1) for _, times in found], flush=True)
    text = growth_plot("What workers buy", ("workers", "times as fast as one"), lines)
    (ROOT / "docs" / "figures" / "workers.svg").write_text(text)


def wanted_rows(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the requested workloads and schedules."""
    rows = [(name, word) for name in WORKLOADS for word in ("default", "paper")]
    return [row for row in rows if options.only in " ".join(row)]


def sweep(options: argparse.Namespace, name: str, word: str, workers: int) -> dict[str, float]:
    """Return seconds, loss, depth and busy share of a sweep, once its workers have started."""
    from grasp_tune.executors.local import InProcess
    from grasp_tune.executors.ray import RayBackend, RayExecutor
    from grasp_tune.runtime.driver import run_sweep

    begun, starting = [0.0], [0.0]

    class Ready(RayExecutor):
        def __init__(self, *rest: Any) -> None:
            super().__init__(*rest)
            while not self.members or not all(member.address for member in self.members):
                list(self.poll(0.1))
            starting[0], begun[0] = time.monotonic() - begun[0], time.monotonic()
            folder = rest[1]
            folder.sharing = self.sharing = type(folder.sharing)()

    problem = sleeping(WORKLOADS[name], options.pause)
    spec, _ = SweepSpec.assemble(gt.NonConvex(), options.budget, schedule_of(word, options.lanes))
    begun[0] = time.monotonic()
    if workers == 1:
        result = run_sweep(problem, spec, InProcess)
    else:
        executor = partial(Ready, RayBackend(workers=workers))
        result = run_sweep(problem, spec, executor)
    seconds = time.monotonic() - begun[0]
    busy = math.nan if result.usage is None else result.usage.share
    loss = whole_loss(result.model, problem)
    found = {"seconds": seconds, "loss": loss, "depth": result.depth, "busy": busy}
    return {**found, "start": starting[0]}


def on_ray(options: argparse.Namespace) -> None:
    """Print the table for an oracle that sleeps."""
    rows = wanted_rows(options)
    own = [sys.executable, "-m", "benchmarks.bench_cluster", "one", *sys.argv[2:], "--row"]
    alone = {
        row: subprocess.Popen([*own, "/".join(row)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for row in rows
    }
    many: dict[tuple[str, str], dict[str, float]] = {}
    with eight_cpus():
        for row in rows:
            many[row] = sweep(options, *row, WORKERS)
            print(*row, many[row], file=sys.stderr, flush=True)
    print(
        "workload | schedule | seconds 8 | 1 | times faster | simulated | loss 8 | 1 | "
        "busy/held 8 | simulated | depth"
    )
    for row, process in alone.items():
        run = rounds(options, *row)
        said = [simulate(run, CALLS, count) for count in (1, WORKERS)]
        one, eight = json.loads(process.communicate()[0].splitlines()[-1]), many[row]
        print(
            f"{row[0]} | {row[1]} | {eight['seconds']:.1f} | {one['seconds']:.1f} | "
            f"{one['seconds'] / eight['seconds']:.2f} | {said[0].seconds / said[1].seconds:.2f} | "
            f"{eight['loss']:.4f} | {one['loss']:.4f} | {eight['busy']:.2f} | "
            f"{said[1].share:.2f} | {eight['depth']}",
            flush=True,
        )


@contextlib.contextmanager
def eight_cpus() -> Iterator[None]:
    """Keep a Ray session with eight logical CPUs open."""
    import ray

    ray.init(
        address="local",
        num_cpus=WORKERS,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()


def against(options: argparse.Namespace) -> None:
    """Print the losses of the default and its rivals after the same time on eight workers."""
    print("workload | seconds | default | ASHA | PBT | TPE: loss, on eight workers", flush=True)
    for name, word in wanted_rows(options):
        if word != "default":
            continue
        with eight_cpus():
            own = sweep(options, name, word, WORKERS)
            seconds = own["start"] + own["seconds"]
            losses = [
                tune_rival(name, options.pause, options.budget, seconds, kind)
                for kind in ("ASHA", "PBT")
            ]
        losses.append(tpe(name, options.pause, options.budget, seconds))
        shown = " | ".join(f"{loss:.4f}" for loss in losses)
        print(f"{name} | {seconds:.0f} | {own['loss']:.4f} | {shown}", flush=True)


def alone(options: argparse.Namespace) -> None:
    """Print the result of a sweep with one worker as JSON."""
    torch.set_num_threads(1)
    name, word = options.row.split("/")
    print(json.dumps(sweep(options, name, word, 1)))


def cnn() -> nn.Module:
    """Return a convolutional network that keeps a core busy."""
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
        batch_size=64,
        device="cpu",
    )
    schedule = schedule_of("default", options.lanes)
    spec = SweepSpec(gt.NonConvex(), options.budget, schedule)
    measured = measure(problem, spec, {})
    start, run = measured.start, measured.run
    costs = Costs(measured.call, timed_exchange(start.parameters))
    print(f"{costs.call:.4f} s a call, {costs.exchange:.4f} s an exchange", flush=True)
    print(f"depth in a dry run: {run.depth}", flush=True)
    real: dict[int, float] = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            how: Any = {"schedule": schedule, "fused": False, "workers": workers, "out": folder}
            result = gt.minimize(problem, options.budget, progress=False, **how)
            real[workers] = time.monotonic() - begun
            if workers == 1:  # simulate the recorded rounds
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
    for count in SIZES:
        found = simulate(run, costs, count)
        print(f"{count} workers: {found.seconds:.1f} s, busy/held {found.share:.2f}")


COMMANDS = {
    "ray": on_ray,
    "rivals": against,
    "predict": predict,
    "curve": curve,
    "local": on_cores,
}


def main() -> None:
    """Run the requested command."""
    parser = argparse.ArgumentParser(description="What workers buy.")
    parser.add_argument("where", choices=(*COMMANDS, "one"))
    parser.add_argument("--budget", type=int, default=10_000)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of an oracle call")
    parser.add_argument("--lanes", type=int, help="most_lanes of the default schedule")
    parser.add_argument("--only", default="", help="a word of the workload and schedule")
    parser.add_argument("--row", default="", help="of `one`: workload/schedule")
    options = parser.parse_args()
    COMMANDS.get(options.where, alone)(options)


if __name__ == "__main__":
    main()
