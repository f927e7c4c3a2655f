"""The last phase of `promote`: a paired race among a few candidates."""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import Tally, absorb, halving, paired_samples, survivors
from grasp_tune.core.plan import Plan
from grasp_tune.core.rounds import Known, Round, score_tasks
from grasp_tune.core.tasks import ScoreOutcome, ScoreTask

Racing = Generator[Round, Known, list[Candidate]]


def racing(
    rows: Sequence[Candidate], calls: int, *, plan: Plan, leader: str, exact: bool, first: int = 0
) -> Racing:
    """Yield the rounds of a race by losses; return the candidates with what they scored.

    All that a round scores, it scores on the same minibatches. Candidates that drop out keep their
    score and say after which round; only the others can be chosen.
    """
    keys = [row.key for row in rows if not row.note]
    tallies: dict[str, Tally] = {}
    dropped: dict[str, int] = {}
    for number, rung in enumerate(halving(len(keys), len(keys) if exact else calls), start=1):
        if tallies:
            kept = survivors(keys, tallies, rung.survivors)
            dropped.update({key: number - 1 for key in keys if key not in kept})
            keys = kept
        samples = paired_samples(keys, first, first + rung.samples)
        first += rung.samples
        tasks = score_tasks(f"race{number}", samples, "value", exact=exact)
        known = yield Round(tasks, plan=plan, leader=leader)
        collect(tasks, known, tallies)
    return [_scored(row, tallies, dropped) for row in rows]


def collect(tasks: Sequence[ScoreTask], known: Known, tallies: dict[str, Tally]) -> None:
    """Add what a round of scoring found."""
    for task in tasks:
        outcome = known[task.id]
        if isinstance(outcome, ScoreOutcome):
            for item in outcome.samples:
                absorb(tallies, item, task.by)


def _scored(row: Candidate, tallies: dict[str, Tally], dropped: dict[str, int]) -> Candidate:
    tally = tallies.get(row.key)
    if tally is None:
        return row if row.note else replace(row, score=math.nan, note="not scored")
    note = f"dropped after round {dropped[row.key]}" if row.key in dropped else row.note
    return replace(row, score=tally.mean, samples=tally.count, square=tally.square, note=note)
