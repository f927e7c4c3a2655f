"""The tuned base optimizer with all of T, which the paper's tables compare with."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grasp_tune.engine.problem import TorchProblem
from grasp_tune.optimizers.registry import find_optimizer
from grasp_tune.peers.session import Session

# Values tried: steps of a factor of 4 over the range, then smaller ones around the best.
COARSE = tuple(4.0**power for power in range(-7, 8))  # 6e-5 .. 1.6e4
REFINEMENTS = (2.0, 2.0**0.5, 2.0**0.25)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best value found, and the result of every value tried."""

    value: float
    quality: float
    tried: Mapping[float, float]


def run_base(
    problem: TorchProblem, base: str, value: float, budget: int, seed: int
) -> Mapping[str, Tensor] | None:
    """Return the last point of a run with the whole budget, None if it diverges."""
    run = Session(problem, budget, seed).run()
    found = find_optimizer(base, {})
    optimizer = found.build(list(run.oracle.parameters), {found.value: value})

    def closure() -> Any:
        loss = run.oracle.gradient("train", run.call)
        run.call += 1
        run.finite = run.finite and math.isfinite(float(loss))
        return loss

    while run.finite and run.call + found.calls_per_step <= budget:
        optimizer.step(closure)
    result = run.result()
    return None if result.diverged else result.tensors


def tune(quality: Callable[[float], float], low: float = COARSE[0]) -> Tuned:
    """Return the best value by the true quality, which no user could know."""
    tried: dict[float, float] = {}

    def measure(value: float) -> float:
        if value not in tried:
            tried[value] = quality(value)
        return tried[value]

    best = min((value for value in COARSE if value >= low), key=measure)
    for factor in REFINEMENTS:
        best = min((best, best / factor, best * factor), key=measure)
    return Tuned(best, tried[best], dict(sorted(tried.items())))
