"""A whole sweep inside one trial of another search, for example over layers or batch sizes."""

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from grasp_tune.core.methods import Method
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, TrainOutcome
from grasp_tune.engine.metrics import Validated, compared, loss_and_outputs
from grasp_tune.engine.problem import TorchProblem, checked_problem, row_count
from grasp_tune.engine.streams import full_batches
from grasp_tune.executors.local import InProcess
from grasp_tune.runtime.callbacks import Reporter
from grasp_tune.runtime.driver import run_sweep
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.paper import for_a_loss

VALUE_SHARE = 8  # at most one in this many calls of a trial goes to the loss that it returns


class _Parts(Reporter):
    """Reports the best mean loss after each part; `report` may end the trial by an exception."""

    def __init__(self, report: Callable[[int, float, int], None]) -> None:
        super().__init__()
        self._report, self._parts, self._best, self._spent = report, 0, math.inf, 0

    def ended(self, outcome: object) -> None:
        """Report after each part; its loss is the mean over its last quarter."""
        self._spent += getattr(outcome, "calls", 0)  # 0 for a task that failed
        if isinstance(outcome, ProbeOutcome) and math.isfinite(outcome.value):
            self._best = outcome.value  # the first part, the ramp, tries steps until one diverges
        for item in outcome.segments if isinstance(outcome, TrainOutcome) else ():
            self._parts += 1
            if losses := [point.loss for point in item.curve if math.isfinite(point.loss)]:
                self._best = min(self._best, fmean(losses[-max(1, len(losses) // 4) :]))
            self._report(self._parts, self._best, self._spent)


def _value(problem: TorchProblem, model: nn.Module, data: Any, drawn: Tensor | None) -> float:
    """Return the loss, or 1 - metric, over all rows or the drawn ones, in evaluation mode.

    Gradients are enabled as in the oracle, because a loss may compute derivatives itself.
    """
    device, metric = problem.chosen_device, problem.metric
    model.to(device).eval()
    parts = list(full_batches(data if drawn is None else data.part(drawn), device))
    if metric is not None and problem.choose_by == "metric":
        seen = Validated(metric)
        for batch, _ in parts:
            loss, outputs = loss_and_outputs(model, problem.loss, batch)
            seen.add(float(loss.detach()), outputs, compared(metric, batch))
        return 1.0 - seen.metric
    total = sum(float(problem.loss(model, batch).detach()) * count for batch, count in parts)
    return total / sum(count for _, count in parts)


def train_in_trial(
    problem: TorchProblem,
    budget: int,
    report: Callable[[int, float, int], None],
    method: Method | None = None,
    schedule: AnySchedule = "promote",
    seed: int = 0,
    **how: Any,
) -> tuple[Result, dict[str, float]]:
    """Return the result, and the values to report: loss, oracle calls and chosen step.

    A few fresh minibatches suffice to compare the runs of a trial, but not to compare trials: the
    luckiest would win. So a part of the budget goes to the loss over all held-out rows.

    report: called with the number of ended parts, the best mean loss and the oracle calls so far.
    """
    checked_problem(problem)
    data = problem.data if problem.validation is None else problem.validation
    rows, size = row_count(data) or 0, problem.batch_size
    spare = min(-(-rows // size), budget // VALUE_SHARE)
    schedule = for_a_loss(schedule)
    spec, bases = SweepSpec.assemble(method, budget - spare, schedule, seed, fused="auto", **how)
    result = run_sweep(problem, spec, InProcess, bases=bases, progress=_Parts(report))
    loss = math.inf if math.isnan(result.loss) else result.loss
    if spare and math.isfinite(loss):
        # If there are too many rows, the same sample of them in every trial.
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
        drawn = order[: spare * size] if spare * size < rows else None
        loss = _value(problem, result.model, data, drawn)
    calls = spare + sum(count for name, count in result.calls.items() if name != "repeated")
    return result, {"loss": loss, "oracle_calls": calls, "step": result.choice.chosen.value}
