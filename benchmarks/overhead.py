"""The cost of the default compared with a bare AdamW loop: CPU time per call, and peak memory.

    python -m benchmarks.overhead [--repeats 4] [--calls 5000]

Compares AdamW by hand, `gt.Grasp` in the same loop, and `gt.minimize`. The targets are at most 1.05
times AdamW's CPU time for a step of `Grasp`, 1.1 times for a call of `minimize`, and two more
copies of the parameters. Times are CPU seconds of this process, the best of several turns taken in
alternation. Peak memory is that of a fresh process on a network with large parameters; `device` is
`Grasp(park="device")`. With `--calls` only the time of so many calls of each network is measured;
from 4,000 calls on, a step averages several minibatches.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grasp_tune as gt

TARGETS = {"grasp": 1.05, "minimize": 1.1}  # times AdamW's CPU time
COPIES = 2.0  # of the parameters, more than AdamW
_LARGE = 2_000  # the width of the network whose memory is measured; 32 MB of parameters


@dataclass(frozen=True, slots=True)
class Case:
    """A network, its data, and how many oracle calls are timed."""

    title: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one input
    classes: int
    batch_size: int
    calls: int

    def data(self) -> tuple[Tensor, Tensor]:
        """Return generated rows."""
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(1_000, *self.shape, generator=draw)
        return x, torch.randint(0, self.classes, (1_000,), generator=draw)


def _cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3600, 10)
    )


def _large() -> nn.Module:
    return nn.Sequential(
        nn.Linear(_LARGE, _LARGE), nn.ReLU(), nn.Linear(_LARGE, _LARGE), nn.Linear(_LARGE, 2)
    )


CASES: Mapping[str, Case] = {
    "small": Case("MLP 64-64-10", _small, (64,), 10, 64, 1_000),
    "wide": Case("wide, cheap MLP 784-1024-10", _wide, (784,), 10, 16, 300),
    "cnn": Case("CNN on 3 x 32 x 32", _cnn, (3, 32, 32), 10, 64, 200),
    "large": Case("MLP 2000-2000-2000-2", _large, (_LARGE,), 2, 8, 60),
}


def _train(case: Case, make: Callable[[nn.Module], Any]) -> None:
    """Run a loop as one would write it by hand, with any optimizer."""
    x, y = case.data()
    model = case.model()
    optimizer = make(model)
    grasp = isinstance(optimizer, gt.Grasp)
    for _ in range(case.calls):
        rows = torch.randint(0, len(x), (case.batch_size,))
        optimizer.zero_grad()
        loss = _cross_entropy(model, (x[rows], y[rows]))
        float(loss.detach())  # every loop reads its loss
        loss.backward()
        if not grasp:
            optimizer.step()
        elif not optimizer.done:
            optimizer.step(loss)


def run_adamw(case: Case) -> None:
    """Run AdamW with torch's defaults."""
    _train(case, lambda model: torch.optim.AdamW(model.parameters()))


def run_grasp(case: Case) -> None:
    """Run the whole method in the same loop."""
    _train(case, lambda model: gt.Grasp(model, case.calls))


def run_parked(case: Case) -> None:
    """Run the same with waiting runs kept on the model's device, not on disk."""
    _train(case, lambda model: gt.Grasp(model, case.calls, park="device"))


def run_default(case: Case) -> None:
    """Run the same number of oracle calls with `gt.minimize`."""
    problem = gt.TorchProblem(
        model=case.model,
        loss=_cross_entropy,
        data=case.data(),
        batch_size=case.batch_size,
        device="cpu",
    )
    gt.minimize(problem, case.calls, progress=False)


RUNS: Mapping[str, Callable[[Case], None]] = {
    "adamw": run_adamw,
    "grasp": run_grasp,
    "minimize": run_default,
}


def seconds(case: Case, repeats: int) -> dict[str, float]:
    """Return the CPU seconds of each way, the best of `repeats` turns after a warm-up."""
    best = dict.fromkeys(RUNS, float("inf"))
    for turn in range(repeats + 1):
        for name, run in RUNS.items():
            begun = time.process_time()
            run(case)
            if turn:
                best[name] = min(best[name], time.process_time() - begun)
    return best


def peak_memory(case: str, way: str) -> int:
    """Return the peak memory, in bytes, of a fresh process that runs the case in one way."""
    command = [sys.executable, "-m", "benchmarks.overhead", "--measure", case, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The default's cost beside a bare AdamW loop.")
    parser.add_argument("--repeats", type=int, default=4, help="turns of each, the best counts (4)")
    parser.add_argument("--calls", type=int, help="oracle calls of each; else a few hundred")
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.measure:
        case, way = options.measure
        {**RUNS, "device": run_parked}[way](CASES[case])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    print(f"{'CPU time per oracle call':<34} {'AdamW':>9}   times as much with")
    for name in ("small", "wide", "cnn"):
        case = replace(CASES[name], calls=options.calls or CASES[name].calls)
        found = seconds(case, options.repeats)
        each = 1e3 * found["adamw"] / case.calls
        ratios = [f"{way} {found[way] / found['adamw']:.2f} (<= {TARGETS[way]})" for way in TARGETS]
        print(f"{case.title:<34} {each:>6.2f} ms   {', '.join(ratios)}", flush=True)
    if options.calls:
        return
    copy = sum(item.numel() * item.element_size() for item in _large().parameters())
    peaks = {way: peak_memory("large", way) for way in (*RUNS, "device")}
    more = [f"{way} {(peaks[way] - peaks['adamw']) / copy:+.1f}" for way in peaks if way != "adamw"]
    print(f"peak memory, {CASES['large'].title}: {peaks['adamw'] / 2**20:.0f} MB; copies of the ")
    print(f"parameters more than AdamW (<= +{COPIES:g}): {', '.join(more)}")


if __name__ == "__main__":
    main()
