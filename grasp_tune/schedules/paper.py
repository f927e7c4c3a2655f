"""The paper's algorithms to the letter: probe, one run a cell, ensemble.

Algorithm 1 (deterministic), 2 (GRASP-NC), 3 (GRASP-C) and 4 (GRASP-C without a lower bound) differ
only in their plans, so they share this schedule. The plan decides every number; nothing here does.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from grasp_tune.core.checkpoint_keys import START, X0, Key, part_key
from grasp_tune.core.choice import Candidate, Choice, start_won, stationary_start
from grasp_tune.core.ensemble import Tally, best, tallied, uniform_samples
from grasp_tune.core.plan import Plan
from grasp_tune.core.random_streams import trajectory_indices
from grasp_tune.core.rounds import Known, Round, Rounds, score_tasks, scores, train_tasks
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import (
    Arm,
    ProbeOutcome,
    Score,
    Segment,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.schedules.probe import parts_of, plan_after, probing


@dataclass(frozen=True, slots=True)
class Paper:
    """The paper's algorithm to the letter.

    by_loss: compare losses at the end also where the paper compares the norms of mean gradients,
        which are small at a dead network, too. No theorem is about that choice.
    """

    by_loss: bool = False

    name: ClassVar[str] = "paper"
    default_base: ClassVar[str | None] = None  # the optimizer that the method's theorem is about

    def rounds(self, spec: SweepSpec) -> Rounds:
        """Yield the paper's rounds; return its choice."""
        method = spec.method
        exact = method.exact
        # Of a budget that is too small, one sample each: the plan then says which one is not.
        counts = method.probe_counts(spec.budget)
        gradients, values = counts if any(counts) else (1, 1)
        gradients = min(gradients, spec.budget)
        values = min(values, spec.budget - gradients)
        parts = spec.probe_parts or parts_of(gradients + values)
        start = yield from probing(gradients, values, parts=parts, exact=exact)
        norm = start.gradient_norm if start.gradients else None
        plan = plan_after(spec, norm, start.value if start.values else None, spec.ensemble)
        by: Score = "value" if self.by_loss else plan.score
        rows = [start_candidate(start, by)]
        if plan.stationary:
            return stationary_start(rows[0], by)

        segments = paper_segments(spec, plan, method.base_name(self))
        norms = plan.score == "gradient"
        tasks = train_tasks("train", segments, spec.width, exact=exact, norms=norms)
        sums = tuple(part_key(part) for part in range(parts if parts > 1 else 0))
        known = yield Round(tasks, plan=plan, discard=sums)
        rows += train_candidates(tasks, known, by)
        above = _above_start(tasks, known, start) if by == "gradient" else {}
        if spec.ensemble == "window":
            return _choose(spec, by, rows, "window", above)

        rows = [rows[0], *(replace(row, score=math.nan, samples=0) for row in rows[1:])]
        alive = [row.key for row in rows[1:] if not row.note]
        count = 1 if exact else plan.samples_per_candidate
        shared = count * len(alive) // (len(alive) + 1)
        if by != plan.score and shared and not exact:  # x0's samples come out of the others'
            alive, count = [START, *alive], shared
        samples = uniform_samples(alive, count)
        tallies: dict[str, Tally] = {}
        if samples:
            scoring = score_tasks("score", samples, by, exact=exact)
            known = yield Round(scoring, plan=plan, leader=leader_of(tasks, known))
            tallies = tallied(scores(scoring, known), by=by)
        first = scored(rows[0], tallies) if START in tallies else rows[0]
        rows = [first, *(scored(row, tallies) for row in rows[1:])]
        return _choose(spec, by, rows, "exact" if exact else "resample", above)


def paper_segments(spec: SweepSpec, plan: Plan, base: str, first_arm: int = 1) -> list[Segment]:
    """Return the whole run of each cell, with the points of its trajectory that become candidates.

    Algorithm 2, line 6: K indices of the trajectory x_1 .. x_{T_i}, drawn before the run; x_t is
    the iterate after t - 1 calls. UniXGrad's candidate is its last average, which is its iterate.
    """
    segments = []
    for cell in plan.cells:
        arm = Arm.of(cell.index + first_arm - 1, base, cell.value)
        keep: tuple[int, ...] = (cell.budget,)
        if plan.score == "gradient" and plan.ensemble == "resample":
            count = plan.candidates_per_cell
            drawn = trajectory_indices(spec.seed, cell.index, count, cell.budget)
            keep = tuple(sorted(set(drawn)))
        segments.append(Segment(arm, 0, cell.budget, keep=keep))
    return segments


def start_candidate(start: ProbeOutcome, by: Score) -> Candidate:
    """Return x0 as a candidate: it keeps its probe mean."""
    count, score, square = start.values, start.value, start.value_square
    if by == "gradient":
        count, score, square = start.gradients, start.gradient_norm, start.gradient_square
    return Candidate(START, 0, "", math.nan, 0, False, score, count, square)


def train_candidates(tasks: tuple[TrainTask, ...], known: Known, by: Score) -> list[Candidate]:
    """Return every point that the runs were told to keep, with its window as the score."""
    rows = []
    for task in tasks:
        outcome = known[task.id]
        for at, segment in enumerate(task.segments):
            result = outcome.segments[at] if isinstance(outcome, TrainOutcome) else None
            score, note = math.nan, "lost"
            if result is not None:
                # A run that stopped being finite loses the points that it reached, too.
                note = "" if result.finite else "diverged"
                if result.finite:
                    score = result.window_norm if by == "gradient" else result.window_loss
            points = segment.candidates
            rows += [Candidate.of(key, segment.arm, score, note) for key in points]
    return rows


def scored(row: Candidate, tallies: dict[str, Tally]) -> Candidate:
    """Return the candidate with its ensemble score; one whose samples were lost says so."""
    tally = tallies.get(row.key)
    if tally is None:
        return row if row.note else replace(row, note="not scored")
    return replace(row, score=tally.mean, samples=tally.count, square=tally.square)


def leader_of(tasks: tuple[TrainTask, ...], known: Known) -> Key:
    """Return the last kept point of the run with the smallest finite training loss."""
    best_key, best_loss = X0, math.inf
    for task in tasks:
        outcome = known[task.id]
        if not isinstance(outcome, TrainOutcome):
            continue
        for segment, result in zip(task.segments, outcome.segments, strict=True):
            if segment.writes and result.finite and result.loss < best_loss:
                best_key, best_loss = segment.writes[-1], result.loss
    return best_key


def _above_start(
    tasks: tuple[TrainTask, ...], known: Known, start: ProbeOutcome
) -> dict[int, float]:
    """Return the losses of the runs that ended above the start point, by run."""
    ended = [known[task.id] for task in tasks]
    results = [item for out in ended if isinstance(out, TrainOutcome) for item in out.segments]
    return {item.arm: item.loss for item in results if item.loss > start.value}


def _choose(
    spec: SweepSpec, by: Score, rows: list[Candidate], way: str, above: dict[int, float]
) -> Choice:
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
    by_loss = getattr(spec.schedule, "by_loss", False)
    return Choice(
        chosen.key,
        by,
        way,
        tuple(rows),
        covered=spec.method.covered(spec.schedule) and not by_loss,
        notes=tuple(notes),
    )
