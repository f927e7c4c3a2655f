"""Digests of final models, to check that a refactoring changes no number.

    python -m benchmarks.digests check                 run every case and compare
    python -m benchmarks.digests check --only mlp      only cases with this word in their names
    python -m benchmarks.digests record                run every case and write results/digests.json

Each case is a small sweep: a problem, a method, a schedule, a backend and a seed. Its digest covers
every bit of the final model, the score, and the oracle calls of each kind. All cases take three
minutes. Digests depend on the version of torch and on the processor: record them on the commit
before a change, and check them after it.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import grasp_tune as gt
from benchmarks.records import RESULTS

Batch = tuple[Tensor, Tensor]
Digest = list[Any]  # the model's hash, the score, the calls of probe, training and ensemble


# ---- problems ------------------------------------------------------------------------------------


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _squared(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def softmax() -> gt.TorchProblem:
    """Return a linear classifier of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return gt.TorchProblem(
        model=lambda: nn.Linear(64, 10),
        loss=_cross_entropy,
        data=(torch.tensor(x).float() / 16, torch.tensor(y)),
        batch_size=32,
    )


def mlp() -> gt.TorchProblem:
    """Return a small tanh network that learns the outputs of a random one."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(400, 10, generator=draw)
    y = torch.tanh(x @ torch.randn(10, 2, generator=draw))
    return gt.TorchProblem(
        model=lambda: nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 2)),
        loss=_squared,
        data=(x, y),
        batch_size=16,
    )


def batchnorm() -> gt.TorchProblem:
    """Return a convolution with batch statistics, dropout and validation rows."""
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(300, 1, 8, 8, generator=draw)
    y = (x.mean((1, 2, 3)) > 0).long()
    return gt.TorchProblem(
        model=lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Flatten(),
            nn.Linear(144, 2),
        ),
        loss=_cross_entropy,
        data=(x, y),
        batch_size=16,
        validation=(x[:60], y[:60]),
    )


def linear() -> gt.TorchProblem:
    """Return least squares with columns of different sizes."""
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(200, 6, generator=draw) * torch.tensor([1.0, 10.0, 0.1, 1.0, 3.0, 0.3])
    return gt.TorchProblem(
        model=lambda: nn.Linear(6, 1),
        loss=lambda model, batch: F.mse_loss(model(batch[0]).squeeze(1), batch[1]),
        data=(x, x.sum(1)),
    )


# ---- cases ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One sweep whose digest is kept."""

    name: str
    problem: Callable[[], gt.TorchProblem]
    budget: int
    method: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `minimize`

    def digest(self) -> Digest:
        """Run the case and return its digest; an error also counts as one, and must not change."""
        try:
            result = gt.minimize(
                self.problem(), self.budget, self.method, progress=False, **self.options
            )
        except Exception as error:
            return [f"{type(error).__name__}: {error}"[:200]]
        found = hashlib.blake2b(digest_size=12)
        for name, item in sorted(result.tensors.items()):
            found.update(name.encode() + item.contiguous().numpy().tobytes())
        calls = (result.calls[kind] for kind in ("probe", "train", "ensemble"))
        return [found.hexdigest(), repr(result.score), *calls]


def cases() -> Iterator[Case]:
    """Yield every case: both schedules, every method and base, every backend."""
    convex, universal = gt.Convex(), gt.Convex(option="universal")
    for seed in (0, 1):
        promote: dict[str, Any] = {"seed": seed}
        paper: dict[str, Any] = {"schedule": "paper", "seed": seed}
        yield Case(f"softmax-promote-{seed}", softmax, 1500, convex, promote)
        yield Case(f"softmax-promote-long-{seed}", softmax, 4200, convex, promote)
        yield Case(f"mlp-promote-{seed}", mlp, 1500, None, promote)
        yield Case(f"bn-promote-{seed}", batchnorm, 600, None, promote)
        yield Case(f"softmax-paper-c-{seed}", softmax, 3000, convex, paper)
        yield Case(f"mlp-paper-nc-{seed}", mlp, 4000, None, paper)
        yield Case(f"softmax-paper-u-{seed}", softmax, 3000, universal, paper)
        yield Case(f"softmax-free-{seed}", softmax, 3000, gt.ConvexFree(), paper)
        yield Case(f"linear-det-{seed}", linear, 600, gt.Deterministic(), paper)
        yield Case(f"linear-det-promote-{seed}", linear, 600, gt.Deterministic(), promote)
    for base in ("sgd", "momentum", "adam", "adamw", "adagrad", "unixgrad"):
        yield Case(f"linear-promote-{base}", linear, 1500, gt.Convex(base=base))
        plain = gt.NonConvex(base=base)
        yield Case(f"mlp-promote-{base}-plain", mlp, 1200, plain, {"fused": False})
    yield Case("mlp-promote-big", mlp, 9000)
    yield Case("linear-challengers", linear, 2000, convex, {"challengers": ("sgd", "adamw")})
    window: dict[str, Any] = {"ensemble": "window"}
    yield Case("softmax-window", softmax, 2000, convex, window)
    yield Case("softmax-window-paper", softmax, 2000, convex, {"schedule": "paper", **window})
    yield Case("softmax-parts", softmax, 2000, convex, {"schedule": "paper", "probe_parts": 4})
    yield Case("tiny-promote", mlp, 60)
    share = gt.NonConvex(probe=0.01)
    yield Case("probe-share", mlp, 1500, share, {"schedule": "paper", "fused": False})
    for name, body in _BODIES.items():
        yield Case(f"softmax-paper-{name}", softmax, 1500, convex, {"schedule": "paper", **body})
        yield Case(f"mlp-promote-{name}", mlp, 4100, None, body)


_BODIES: Mapping[str, Mapping[str, Any]] = {
    "workers2": {"workers": 2},
    "optuna": {"backend": "optuna"},
    "optuna2": {"backend": "optuna", "workers": 2},
    "ray2": {"backend": "ray", "workers": 2},
}


# ---- command -------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or check digests; return 1 if one differs."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.digests",
        description="Checks that a change left every bit of the final models alone.",
    )
    parser.add_argument("command", choices=("record", "check"))
    parser.add_argument("--file", type=Path, default=RESULTS / "digests.json")
    parser.add_argument("--only", default="", help="a word that the names of the cases contain")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kept: dict[str, Digest] = json.loads(options.file.read_text()) if options.file.exists() else {}
    chosen = [case for case in cases() if options.only in case.name]
    differ = 0
    for case in chosen:
        begun = time.perf_counter()
        found = case.digest()
        seconds = time.perf_counter() - begun
        if options.command == "record":
            kept[case.name] = found
            options.file.write_text(json.dumps(kept, indent=0) + "\n")
            print(f"{case.name}: {found[0]}, {seconds:.1f} s", flush=True)
        elif kept.get(case.name) != found:
            differ += 1
            print(f"{case.name} differs: was {kept.get(case.name)}, is {found}", flush=True)
    print(f"{options.command}: {len(chosen)} cases, {differ} differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
