"""The paper's algorithms to the letter: probe, one run per cell, ensemble.

Algorithm 1 (deterministic), 2 (GRASP-NC), 3 (GRASP-C) and 4 (GRASP-C without a lower bound) differ
only in their plans, so they share this schedule. Every number comes from the plan.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from grasp_tune.core.checkpoint_keys import START, part_key
from grasp_tune.core.choice import Candidate, Choice, start_won, stationary_start
from grasp_tune.core.ensemble import Tally, best, tallied, uniform_samples
from grasp_tune.core.plan import Plan
from grasp_tune.core.random_streams import trajectory_indices
from grasp_tune.core.spec import (
    Known,
    Round,
    Rounds,
    Schedule,
    SweepSpec,
    score_tasks,
    scores,
    train_tasks,
)
from grasp_tune.core.tasks import Arm, ProbeOutcome, Score, Segment, Task, ended_runs
from grasp_tune.schedules import find_schedule
from grasp_tune.schedules.probe import parts_of, plan_after, probing


@dataclass(frozen=True, slots=True)
class Paper:
    """The paper's algorithm to the letter.

    by_loss: compare final losses even where the paper compares norms of mean gradients, which are
        small for a dead network, too. No theorem covers this choice. None: only with validation
        data, or if the caller asks for a low loss (see `for_a_loss`).
    """

    by_loss: bool | None = None

    name: ClassVar[str] = "paper"
    default_base: ClassVar[str | None] = None  # the optimizer of the method's theorem

    def rounds(self, spec: SweepSpec) -> Rounds:
        """Yield the paper's rounds; return its choice."""
        method, exact = spec.method, spec.method.exact
        # One sample each if the budget is too small; the plan's error then says what is enough.
        counts = method.probe_counts(spec.budget)
        gradients, values = counts if any(counts) else (1, 1)
        gradients = min(gradients, spec.budget)
        values = min(values, spec.budget - gradients)
        parts = spec.probe_parts or parts_of(gradients + values)
        start = yield from probing(gradients, values, parts=parts, exact=exact)
        norm = start.gradient_norm if start.gradients else None
        plan = plan_after(spec, norm, start.value if start.values else None, spec.ensemble)
        held_out = start.held_out and spec.ensemble == "resample"
        by: Score = "value" if self.by_loss or (self.by_loss is None and held_out) else plan.score
        first = start_candidate(start, by)
        if plan.stationary:
            return stationary_start(first, by)

        segments = paper_segments(spec, plan, method.base_name(self))
        norms = plan.score == "gradient"
        tasks = train_tasks("train", segments, spec.task_width(start), exact=exact, norms=norms)
        sums = tuple(map(part_key, range(parts if parts > 1 else 0)))
        known = yield Round(tasks, plan=plan, discard=sums)
        rows = train_candidates(tasks, known, by)
        ended = [(run, item) for run, item in ended_runs(tasks, known) if item is not None]
        above = {item.arm: item.loss for _, item in ended if item.loss > start.value}
        above = above if by == "gradient" else {}
        if spec.ensemble == "window":
            return self._choose(spec, by, [first, *rows], "window", above)

        alive = [row.key for row in rows if not row.note]
        count = 1 if exact else plan.samples_per_candidate
        shared = count * len(alive) // (len(alive) + 1)
        apart = by == "value" and (held_out or plan.score != by)  # x0's probe differs
        if apart and shared and not exact:  # score x0 as well, within the same calls
            alive, count = [START, *alive], shared
        tallies: dict[str, Tally] = {}
        if alive:
            scoring = score_tasks("score", uniform_samples(alive, count), by, exact=exact)
            sound = [(i.loss, run.writes[-1]) for run, i in ended if i.finite and i.loss < math.inf]
            leader = min(sound, key=lambda pair: pair[0], default=(0.0, START))[1]
            known = yield Round(scoring, plan=plan, leader=leader)
            tallies = tallied(scores(scoring, known), by=by)
        first = scored(first, tallies) if START in tallies else first
        rows = [scored(replace(row, score=math.nan), tallies) for row in rows]
        return self._choose(spec, by, [first, *rows], "exact" if exact else "resample", above)

    def _choose(
        self, spec: SweepSpec, by: Score, rows: list[Candidate], way: str, above: dict[int, float]
    ) -> Choice:
        """Return the best candidate; `above` has the losses of runs that ended above x0's loss."""
        chosen = rows[best([row.score if not row.note else math.nan for row in rows])]
        notes = []
        if lost := sum(row.note == "lost" for row in rows):
            notes.append(f"{lost} candidates are lost: their tasks failed too often")
        if all(row.note for row in rows[1:]):
            notes.append("no run stayed finite, so x0 is returned")
        elif chosen.key == START:
            notes.append(start_won(rows))
        elif chosen.arm in above:
            notes.append(
                f"the chosen run ended with a loss of {above[chosen.arm]:.4g}, above that of x0: a "
                "small gradient may be that of a dead network; Paper(by_loss=True) compares losses"
            )
        covered = spec.method.covered(self) and by == spec.method.score
        return Choice(chosen.key, by, way, tuple(rows), covered=covered, notes=tuple(notes))


def for_a_loss(schedule: str | Schedule) -> Schedule:
    """Return the schedule for a caller who wants a low loss: `Paper` then compares losses."""
    found = find_schedule(schedule)
    undecided = isinstance(found, Paper) and found.by_loss is None
    return Paper(by_loss=True) if undecided else found


def paper_segments(spec: SweepSpec, plan: Plan, base: str, first_arm: int = 1) -> list[Segment]:
    """Return each cell's run, with the points of its trajectory that become candidates.

    Algorithm 2, line 6: K indices of the trajectory x_1 .. x_{T_i}, drawn before the run; x_t is
    the iterate after t - 1 calls. UniXGrad's candidate is its last average, which is its iterate.
    """
    segments = []
    for cell in plan.cells:
        keep: tuple[int, ...] = (cell.budget,)
        if plan.score == "gradient" and plan.ensemble == "resample":
            count = plan.candidates_per_cell
            keep = trajectory_indices(spec.seed, cell.index, count, cell.budget)
        arm = Arm.of(cell.index + first_arm - 1, base, cell.value)
        segments.append(Segment(arm, 0, cell.budget, keep=tuple(sorted(set(keep)))))
    return segments


def start_candidate(start: ProbeOutcome, by: Score) -> Candidate:
    """Return x0 as a candidate, scored by its mean in the probe."""
    found = (start.value, start.values, start.value_square)
    if by == "gradient":
        found = (start.gradient_norm, start.gradients, start.gradient_square)
    return Candidate(START, 0, "", math.nan, 0, False, *found)


def train_candidates(tasks: Iterable[Task], known: Known, by: Score) -> list[Candidate]:
    """Return every point that the runs kept, scored by the run's window."""
    rows = []
    for segment, item in ended_runs(tasks, known):
        score, note = math.nan, "lost"
        if item is not None:  # a run that diverged also loses its earlier points
            window = item.window_norm if by == "gradient" else item.window_loss
            score, note = (window, "") if item.finite else (math.nan, "diverged")
        rows += [Candidate.of(key, segment.arm, score, note) for key in segment.candidates]
    return rows


def scored(row: Candidate, tallies: dict[str, Tally]) -> Candidate:
    """Return the candidate with its ensemble score, or with a note if its samples were lost."""
    tally = tallies.get(row.key)
    if tally is None:
        return row if row.note else replace(row, note="not scored")
    return replace(row, score=tally.mean, samples=tally.count, square=tally.square)
