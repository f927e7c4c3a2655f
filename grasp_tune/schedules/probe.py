"""The probe, the first phase of a schedule: independent samples at x0."""

import math
from collections.abc import Generator
from dataclasses import replace
from functools import partial

from grasp_tune.core.errors import BudgetTooSmall, ProblemError, SearchError
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import Known, Round, SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask

MOST_PARTS = 16
LEAST_CALLS = 32  # of a part; submitting a shorter one costs more than it saves


def parts_of(calls: int) -> int:
    """Return how many tasks share a probe of so many calls; the same for every backend.

    The paper's probe is a quarter of the budget. As one task it would leave other workers idle.
    """
    return max(1, min(MOST_PARTS, calls // LEAST_CALLS))


def probing(
    gradients: int, values: int, *, parts: int = 1, moments: bool = False, exact: bool = False
) -> Generator[Round, Known, ProbeOutcome]:
    """Yield the probe, as one task or as parts that are merged; return its outcome.

    Raises if the loss or gradient at x0 is not finite: nothing can be trained from there.
    """
    parts = min(parts, max(gradients, values, 1))
    task = ProbeTask("probe", (0, gradients), (0, values), moments=moments, exact=exact)
    calls = task.calls
    if parts > 1:
        spans = [
            tuple((n * part // parts, n * (part + 1) // parts) for n in (gradients, values))
            for part in range(parts)
        ]
        yield Round(
            tuple(
                replace(
                    task, id=f"probe-part{part:03d}", gradients=span[0], values=span[1], part=part
                )
                for part, span in enumerate(spans)
            )
        )
        # Checkpoints hold the sums of the parts; merging them costs no calls.
        task = ProbeTask("probe-merge", moments=moments, merge=parts)
    outcome = (yield Round((task,)))[task.id]
    if not isinstance(outcome, ProbeOutcome):
        raise SearchError("the probe is lost, so nothing can be trained")
    advice = "start from finite weights, look for nan in the data, check the loss on one batch"
    if outcome.gradients and not math.isfinite(norm := outcome.gradient_norm):
        raise ProblemError(f"the gradient at the start point has norm {norm}: {advice}")
    if outcome.values and not math.isfinite(outcome.value):
        raise ProblemError(f"the loss at the start point is {outcome.value}: {advice}")
    return outcome if parts == 1 else replace(outcome, calls=calls)


def plan_after(
    spec: SweepSpec, norm: float | None, value: float | None, ensemble: str = "resample"
) -> Plan:
    """Return the paper's plan for the whole budget, given what the probe measured.

    If the budget is too small, `BudgetTooSmall` names one that is enough for a larger gradient,
    too: the probe of that budget is longer and measures another norm.
    """
    plan = partial(spec.method.plan, spec.budget, ensemble=ensemble)
    try:
        return plan(grad_norm=norm, value=value)
    except BudgetTooSmall:
        plan(grad_norm=norm and 2 * norm, value=value and value + abs(value))
        raise
