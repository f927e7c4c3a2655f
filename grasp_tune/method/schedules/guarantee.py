"""The paper's own sweep inside `promote`, on a small share of the budget.

What the default schedule runs has no theorem. So a share of T goes through the paper's plan, cell
by cell, and its choice joins the last race: the theorem then holds for that candidate with T times
the share, and what is returned has no higher loss, up to the error of the race.
"""

from collections.abc import Generator
from dataclasses import dataclass

from grasp_tune.method.choice import Candidate
from grasp_tune.method.ensemble import Tally, best, uniform_samples
from grasp_tune.method.errors import BudgetTooSmall
from grasp_tune.method.plan import Plan
from grasp_tune.method.rounds import Known, Round, score_tasks, train_tasks
from grasp_tune.method.schedules.paper import paper_segments, scored, train_candidates
from grasp_tune.method.schedules.racing import collect
from grasp_tune.method.setting import Setting
from grasp_tune.method.tasks import ProbeOutcome, TrainTask

SHARE = 1 / 16  # of T


@dataclass(frozen=True, slots=True)
class Floor:
    """The paper's plan for its share of the budget, ready to run."""

    plan: Plan
    tasks: tuple[TrainTask, ...]

    @property
    def calls(self) -> int:
        """Oracle calls that training and choosing may use."""
        return self.plan.training_calls + self.plan.ensemble_calls


def floor_plan(setting: Setting, start: ProbeOutcome, first_arm: int) -> Floor | None:
    """Return the floor, None where the share is too small for one sample a candidate.

    The probe is shared: it has at least as many samples as the small plan would take.
    """
    budget = int(setting.budget * SHARE)
    if budget < 1:
        return None
    try:
        plan = setting.method.plan(budget, grad_norm=start.gradient_norm, value=start.value)
    except BudgetTooSmall:
        return None
    segments = paper_segments(setting, plan, first_arm)
    norms = plan.score == "gradient"
    exact = setting.method.exact
    return Floor(plan, train_tasks("floor", segments, setting.width, exact=exact, norms=norms))


def floor_choice(
    setting: Setting, floor: Floor, known: Known, plan: Plan, leader: str
) -> Generator[Round, Known, Candidate | None]:
    """Yield the floor's ensemble; return the paper's choice, None where no cell stayed finite."""
    exact, by = setting.method.exact, floor.plan.score
    rows = [row for row in train_candidates(floor.tasks, known, by) if not row.note]
    if not rows:
        return None
    samples = uniform_samples([row.key for row in rows], floor.plan.samples_per_candidate or 1)
    tasks = score_tasks("floor-score", samples, by, exact=exact)
    told = yield Round(tasks, plan=plan, leader=leader)
    tallies: dict[str, Tally] = {}
    collect(tasks, told, tallies)
    rows = [scored(row, tallies) for row in rows]
    return rows[best([row.score for row in rows])]
