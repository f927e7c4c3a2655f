"""The speed of the local body against a bare loop, and of a race against a uniform ensemble.

    python benchmarks/bench_local.py [--repeats 6]

Everything runs on one core. Times are the process's own CPU seconds, the best of several turns
taken in alternation, so that other programs disturb the ratios as little as possible.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import grasp_tune as gt
from grasp_tune.core.ensemble import (
    Tally,
    best,
    halving,
    paired_samples,
    survivors,
    tallied,
    uniform_samples,
)
from grasp_tune.core.tasks import Arm, Sample, ScoreOutcome, ScoreTask, Segment, TrainTask
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.store import TemporaryStore

BATCH = 64
Work = Callable[[], int]  # does something and returns its number of oracle calls


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of a classifier."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def probe_data() -> tuple[str, tuple[Tensor, Tensor]]:
    """Return the name and the rows of the linear probe."""
    path = Path(os.environ.get("GRASP_TUNE_DATA", "-"), "cifar10-probe512.npz")
    if path.is_file():
        with np.load(path) as file:
            x, y = file["x_train"].astype(np.float32), file["y_train"].astype(np.int64)
        return "CIFAR-10 probe, 512 features", (torch.from_numpy(x), torch.from_numpy(y))
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    return "digits, 64 features", (x, torch.tensor(digits.target))


def cnn() -> nn.Module:
    """Return a small convolutional network for images of 3 x 32 x 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def bare(model: nn.Module, data: tuple[Tensor, Tensor], steps: int) -> Work:
    """Return a training loop as one would write it by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def work() -> int:
        for _ in range(steps):
            rows = torch.randint(0, len(data[0]), (BATCH,))
            optimizer.zero_grad()
            loss = cross_entropy(model, (data[0][rows], data[1][rows]))
            loss.backward()
            optimizer.step()
        return steps

    return work


def rates(works: dict[str, Work], repeats: int) -> dict[str, float]:
    """Return the oracle calls per CPU second of each, best of `repeats` turns after a warm-up."""
    found = dict.fromkeys(works, 0.0)
    for turn in range(repeats + 1):
        for name, work in works.items():
            start = time.process_time()
            calls = work()
            rate = calls / (time.process_time() - start)
            if turn:
                found[name] = max(found[name], rate)
    return found


def runs(count: int, steps: int, base: str = "sgd") -> tuple[Segment, ...]:
    """Return segments of `count` runs with different step sizes."""
    return tuple(Segment(Arm.of(at + 1, base, 1e-4 * 1.3**at), 0, steps) for at in range(count))


def cnn_rates(repeats: int) -> dict[str, float]:
    """Return the rates of the bare loop, a worker's run and a sweep with its folder, for a CNN."""
    draw = torch.Generator().manual_seed(0)
    data = (
        torch.randn(2000, 3, 32, 32, generator=draw),
        torch.randint(0, 10, (2000,), generator=draw),
    )
    problem = gt.TorchProblem(
        model=cnn, loss=cross_entropy, data=data, batch_size=BATCH, device="cpu"
    )
    worker = Worker(problem, 0, TemporaryStore())

    def one() -> int:
        return worker.run(TrainTask("one", runs(1, 30))).calls

    def sweep() -> int:
        with tempfile.TemporaryDirectory() as folder:
            result = gt.minimize(problem, 500, out=folder, progress=False)
        return sum(result.calls.values())

    return rates({"bare": bare(cnn(), data, 30), "run": one, "sweep": sweep}, repeats)


def linear_rates(data: tuple[Tensor, Tensor], repeats: int) -> dict[str, float]:
    """Return the rates of the bare loop and of a worker's runs, for a linear probe."""
    features = data[0].shape[1]
    problem = gt.TorchProblem(
        model=lambda: nn.Linear(features, 10),
        loss=cross_entropy,
        data=data,
        batch_size=BATCH,
        device="cpu",
    )
    worker = Worker(problem, 0, TemporaryStore())

    def task(count: int, steps: int, base: str) -> Work:
        return lambda: worker.run(TrainTask("task", runs(count, steps, base))).calls

    works = {
        "bare": bare(nn.Linear(features, 10), data, 300),
        "one by one": task(1, 300, "sgd"),
        "one by one, UniXGrad": task(1, 300, "unixgrad"),
    }
    return rates(works, repeats)


class Choosing:
    """Candidates of one sweep, and ways to choose among them."""

    def __init__(self, data: tuple[Tensor, Tensor], seed: int) -> None:
        features = data[0].shape[1]
        problem = gt.TorchProblem(
            model=lambda: nn.Linear(features, 10),
            loss=cross_entropy,
            data=data,
            batch_size=BATCH,
            device="cpu",
        )
        self._worker = Worker(problem, seed, TemporaryStore())
        segments = tuple(
            Segment(Arm.of(at + 1, "adam", 1e-4 * 1.5**at), 0, 150, keep=(150,)) for at in range(24)
        )
        self._worker.run(TrainTask("train", segments))
        self.keys = [str(segment.candidates[0]) for segment in segments]
        self.truth = dict(zip(self.keys, self._exact(data), strict=True))

    def _exact(self, data: tuple[Tensor, Tensor]) -> list[float]:
        found = []
        for key in self.keys:
            self._worker.place(key)
            with torch.no_grad():
                found.append(float(cross_entropy(self._worker.model, data)))
        return found

    def _tally(self, tallies: dict[str, Tally], samples: tuple[Sample, ...]) -> int:
        outcome = self._worker.run(ScoreTask("score", "value", samples))
        assert isinstance(outcome, ScoreOutcome)
        tallied(outcome.samples, tallies)
        return outcome.calls

    def uniform(self, samples: int) -> tuple[int, float]:
        """Return the calls used and the true loss of the choice, with fresh samples for each."""
        tallies: dict[str, Tally] = {}
        calls = self._tally(tallies, uniform_samples(self.keys, samples))
        return calls, self.truth[self.keys[best([tallies[key].mean for key in self.keys])]]

    def race(self, calls: int) -> tuple[int, float]:
        """Return the calls used and the true loss of the choice, by halving on paired samples."""
        keys, tallies, used, start = self.keys, dict[str, Tally](), 0, 0
        for rung in halving(len(keys), calls):
            keys = survivors(keys, tallies, rung.survivors) if tallies else keys
            used += self._tally(tallies, paired_samples(keys, start, start + rung.samples))
            start += rung.samples
        return used, self.truth[keys[best([tallies[key].mean for key in keys])]]


def ensemble_share(data: tuple[Tensor, Tensor]) -> tuple[int, int, float, float]:
    """Return the calls of a uniform choice and of the cheapest equal race, and both mean losses."""
    sweeps = [Choosing(data, seed) for seed in range(5)]

    def mean(way: Callable[[Choosing], tuple[int, float]]) -> tuple[int, float]:
        found = [way(sweep) for sweep in sweeps]
        return max(calls for calls, _ in found), sum(loss for _, loss in found) / len(found)

    calls, loss = mean(lambda sweep: sweep.uniform(32))
    size = 48
    while True:
        used, reached = mean(lambda sweep, size=size: sweep.race(size))  # type: ignore[misc]
        if reached <= loss + 1e-6 or size >= calls:
            return calls, used, loss, reached
        size = size * 3 // 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=6)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    name, data = probe_data()
    found = cnn_rates(repeats)
    print(f"{'what':<52} {'calls/s':>8} {'ratio':>6}  target")
    rows = [("bare", "CNN, bare loop", ""), ("run", "CNN, one run", ">= 0.95")]
    rows.append(("sweep", "CNN, a whole sweep with its folder", ""))
    for key, words, target in rows:
        print(f"{words:<52} {found[key]:>8.0f} {found[key] / found['bare']:>6.2f}  {target}")
    found = linear_rates(data, repeats)
    for key, rate in found.items():
        print(f"{name + ': ' + key:<52} {rate:>8.0f} {rate / found['bare']:>6.2f}")
    calls, used, loss, reached = ensemble_share(data)
    print(f"{'choice among 24: uniform':<52} {calls:>8} {1.0:>6.2f}  (calls; loss {loss:.5f})")
    share = used / calls
    print(f"{'choice among 24: the race':<52} {used:>8} {share:>6.2f}  (calls; loss {reached:.5f})")


if __name__ == "__main__":
    main()
