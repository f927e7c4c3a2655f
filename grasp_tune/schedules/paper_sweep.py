"""The paper's own sweep inside `promote`, on a small share of the budget.

No theorem covers the runs of the default schedule. So a share of T is spent on the paper's plan,
and the paper's choice joins the final race. The theorem holds for that candidate with its share of
T, and the returned model has no higher loss, up to the error of the race.
"""

from collections.abc import Generator
from dataclasses import dataclass

from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import best, tallied, uniform_samples
from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Plan
from grasp_tune.core.spec import Known, Round, score_tasks, scores, train_tasks
from grasp_tune.core.tasks import TrainTask
from grasp_tune.schedules.paper import paper_segments, scored, train_candidates
from grasp_tune.schedules.promote_state import PromoteState


@dataclass(frozen=True, slots=True)
class PaperSweep:
    """The paper's plan for its share of the budget, ready to run."""

    share: float  # of T
    plan: Plan
    tasks: tuple[TrainTask, ...]


def plan_paper_sweep(state: PromoteState) -> PaperSweep | None:
    """Return the sweep and reserve its calls; None if no share pays for a sample per candidate.

    It uses the schedule's probe, which has at least as many samples as the small plan would take.
    """
    spec, start = state.spec, state.start
    for share in state.options.paper_shares:
        calls = int(spec.budget * share)
        try:
            plan = spec.method.plan(calls, grad_norm=start.gradient_norm, value=start.value)
        except InputError:  # for example, too small a budget
            continue
        if plan.training_calls + plan.ensemble_calls > state.left:
            continue
        segments = paper_segments(spec, plan, spec.method.paper_base, state.next_run)
        norms, exact = plan.score == "gradient", spec.method.exact
        tasks = train_tasks("paper", segments, spec.task_width(start), exact=exact, norms=norms)
        state.left -= plan.training_calls + plan.ensemble_calls
        state.next_run += len(plan.cells)
        return PaperSweep(share, plan, tasks)
    return None


def paper_choice(
    state: PromoteState, sweep: PaperSweep, known: Known
) -> Generator[Round, Known, Candidate | None]:
    """Yield the sweep's ensemble; return the paper's choice, None if no cell stayed finite.

    Later samples of the stream come after this ensemble and all earlier samples.
    """
    exact, by = state.spec.method.exact, sweep.plan.score
    rows = [row for row in train_candidates(sweep.tasks, known, by) if not row.note]
    if rows:
        count = sweep.plan.samples_per_candidate or 1
        samples = uniform_samples([row.key for row in rows], count, state.sampled)
        tasks = score_tasks("paper-score", samples, by, exact=exact)
        known = yield state.round(tasks)
        tallies = tallied(scores(tasks, known), by=by)
        rows = [scored(row, tallies) for row in rows]
    state.sampled += sweep.plan.ensemble_calls
    return rows[best([row.score for row in rows])] if rows else None
