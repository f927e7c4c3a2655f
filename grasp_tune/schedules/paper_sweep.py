"""The paper's own sweep inside `promote`, on a small share of the budget.

What the default schedule runs has no theorem. So a share of T goes through the paper's plan, cell
by cell, and its choice joins the last race: the theorem then holds for that candidate with T times
the share, and what is returned has no higher loss, up to the error of the race.
"""

from collections.abc import Generator
from dataclasses import dataclass

from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import Tally, best, uniform_samples
from grasp_tune.core.errors import BudgetTooSmall, InputError
from grasp_tune.core.plan import Plan
from grasp_tune.core.rounds import Known, Round, score_tasks, train_tasks
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome, TrainTask
from grasp_tune.schedules.paper import paper_segments, scored, train_candidates
from grasp_tune.schedules.race import collect

SHARES = (1 / 64, 1 / 32, 1 / 16)  # of T: the first that pays for one sample a candidate


@dataclass(frozen=True, slots=True)
class Floor:
    """The paper's plan for its share of the budget, ready to run."""

    share: float  # of T
    plan: Plan
    tasks: tuple[TrainTask, ...]

    @property
    def samples(self) -> int:
        """Samples of the ensemble's stream that its choice uses."""
        return self.plan.ensemble_calls

    @property
    def calls(self) -> int:
        """Oracle calls that training and choosing may use."""
        return self.plan.training_calls + self.plan.ensemble_calls


def floor_plan(spec: SweepSpec, start: ProbeOutcome, first_arm: int) -> Floor | None:
    """Return the floor, None where every share is too small for one sample a candidate.

    The probe is shared: it has at least as many samples as the small plan would take.
    """
    for share in SHARES:
        try:
            norm, value = start.gradient_norm, start.value
            plan = spec.method.plan(int(spec.budget * share), grad_norm=norm, value=value)
        except (BudgetTooSmall, InputError):
            continue
        segments = paper_segments(spec, plan, spec.method.paper_base, first_arm)
        norms, exact = plan.score == "gradient", spec.method.exact
        tasks = train_tasks("floor", segments, spec.width, exact=exact, norms=norms)
        return Floor(share, plan, tasks)
    return None


def floor_choice(
    spec: SweepSpec, floor: Floor, known: Known, plan: Plan, leader: str
) -> Generator[Round, Known, Candidate | None]:
    """Yield the floor's ensemble; return the paper's choice, None where no cell stayed finite."""
    exact, by = spec.method.exact, floor.plan.score
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
