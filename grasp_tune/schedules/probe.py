"""The first phase of every schedule: independent samples at x0."""

import math
from collections.abc import Generator
from dataclasses import replace
from functools import partial

from grasp_tune.core.errors import BudgetTooSmall, ProblemError, SearchError
from grasp_tune.core.plan import Plan
from grasp_tune.core.rounds import Known, Round
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask

Probing = Generator[Round, Known, ProbeOutcome]

MOST_PARTS = 16
LEAST_CALLS = 32  # of a part: a shorter one costs more to hand out than it saves


def parts_of(calls: int) -> int:
    """Return how many tasks share a probe of so many calls, whoever runs it: the bits depend on it.

    The paper's probe is a quarter of the budget, which one task would keep from all other workers.
    """
    return max(1, min(MOST_PARTS, calls // LEAST_CALLS))


def probing(
    gradients: int, values: int, *, parts: int = 1, moments: bool = False, exact: bool = False
) -> Probing:
    """Yield the probe, in one task or in parts that are merged; return what it saw at x0.

    Raises where x0 is not finite: nothing can be trained from there.
    """
    parts = min(parts, max(gradients, values, 1))
    if parts == 1:
        task = ProbeTask("probe", (0, gradients), (0, values), moments=moments, exact=exact)
        return (yield from _finish(task))
    pieces = tuple(
        ProbeTask(
            f"probe-part{part:03d}",
            _slice(gradients, part, parts),
            _slice(values, part, parts),
            moments=moments,
            exact=exact,
            part=part,
        )
        for part in range(parts)
    )
    known = yield Round(pieces)
    merge = ProbeTask("probe-merge", moments=moments, merge=parts)
    del known  # the sums travel through the checkpoints; the numbers come from the merge
    outcome = yield from _finish(merge)
    # The merge itself is free; what was spent at x0 is what the parts spent.
    return replace(outcome, calls=sum(piece.calls for piece in pieces))


def _finish(task: ProbeTask) -> Probing:
    known = yield Round((task,))
    outcome = known[task.id]
    if not isinstance(outcome, ProbeOutcome):
        raise SearchError("the probe is lost, so nothing can be trained")
    if outcome.gradients and not math.isfinite(outcome.gradient_norm):
        raise ProblemError(
            f"the gradient at the start point has norm {outcome.gradient_norm}: start from "
            "finite weights and check the loss on one batch"
        )
    if outcome.values and not math.isfinite(outcome.value):
        raise ProblemError(
            f"the loss at the start point is {outcome.value}: start from finite weights and "
            "check the loss on one batch"
        )
    return outcome


def _slice(count: int, part: int, parts: int) -> tuple[int, int]:
    return count * part // parts, count * (part + 1) // parts


def plan_after(
    spec: SweepSpec, norm: float | None, value: float | None, ensemble: str = "resample"
) -> Plan:
    """Return the paper's plan for the whole budget and what the probe has measured.

    Where the budget is too small, the one that `BudgetTooSmall` names has room for a larger
    gradient: the probe of that budget is longer and measures another norm.
    """
    plan = partial(spec.method.plan, spec.budget, ensemble=ensemble)
    try:
        return plan(grad_norm=norm, value=value)
    except BudgetTooSmall:
        plan(grad_norm=norm and 2 * norm, value=value and value + abs(value))
        raise
