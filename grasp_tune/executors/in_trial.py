"""A whole sweep inside one trial of somebody else's search, over layers, dropout or batch sizes."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from grasp_tune.core.methods import Method
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.engine.fused import fusion_width
from grasp_tune.engine.problem import TorchProblem, checked_problem
from grasp_tune.executors.local import InProcess
from grasp_tune.runtime.callbacks import Callback, Reporter
from grasp_tune.runtime.driver import run_sweep
from grasp_tune.runtime.result import Result


class _Parts(Callback):
    """Reports the best mean loss after each part of a run: the parts of equal budgets are alike."""

    def __init__(self, report: Callable[[int, float], None]) -> None:
        self._report, self._parts, self._best = report, 0, math.inf

    def on_run(self, run: int, curve: Sequence[tuple[int, float]]) -> None:
        """Report after each part, of which the last quarter counts."""
        self._parts += 1
        if curve:
            last = [loss for _, loss in curve[-max(1, len(curve) // 4) :]]
            self._best = min(self._best, fmean(last))
        self._report(self._parts, self._best)


def train_in_trial(
    problem: TorchProblem,
    budget: int,
    report: Callable[[int, float], None],
    method: Method | None = None,
    schedule: AnySchedule = "promote",
    seed: int = 0,
    **how: Any,
) -> tuple[Result, dict[str, float]]:
    """Return the result, and what a trial says of it: loss, oracle calls and chosen step.

    report: is told the parts that have ended and the best mean loss so far; may raise to end it.
    method, schedule, seed, how: as `minimize` takes them.
    """
    width = fusion_width(checked_problem(problem), method, "auto", seed)
    spec, bases = SweepSpec.assemble(method, budget, schedule, seed, width=width, **how)
    heard = Reporter([_Parts(report)])
    result = run_sweep(problem, spec, InProcess, bases=bases, reporter=heard)
    loss = math.inf if math.isnan(result.loss) else result.loss
    calls = sum(count for name, count in result.calls.items() if name != "repeated")
    return result, {"loss": loss, "oracle_calls": calls, "step": result.choice.chosen.value}
