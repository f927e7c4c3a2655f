"""The last phase of `promote`: a race between a few candidates on the same minibatches."""

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

from grasp_tune.core.choice import Candidate
from grasp_tune.core.ensemble import Tally, halving, paired_samples, survivors, tallied
from grasp_tune.core.spec import Known, Round, score_tasks, scores
from grasp_tune.schedules.promote_state import PromoteState


def race(
    state: PromoteState, rows: Sequence[Candidate], calls: int
) -> Generator[Round, Known, list[Candidate]]:
    """Yield the rounds of a race by loss; return the candidates with their scores.

    A round scores all its candidates on the same minibatches. Those that drop out keep their score
    and get a note with the round; only the others can be chosen.
    """
    exact = state.spec.method.exact
    keys = [row.key for row in rows if not row.note]
    tallies: dict[str, Tally] = {}
    dropped: dict[str, int] = {}
    rounds = halving(len(keys), len(keys) if exact else calls)
    for number, halved in enumerate(rounds, start=1):
        if tallies:
            kept = survivors(keys, tallies, halved.survivors)
            dropped.update({key: number - 1 for key in keys if key not in kept})
            keys = kept
        samples = paired_samples(keys, state.sampled, state.sampled + halved.samples)
        state.sampled += halved.samples
        tasks = score_tasks(f"race{number}", samples, "value", exact=exact)
        known = yield state.round(tasks)
        tallied(scores(tasks, known), tallies)
    return [_scored(row, tallies, dropped) for row in rows]


def _scored(row: Candidate, tallies: dict[str, Tally], dropped: dict[str, int]) -> Candidate:
    tally = tallies.get(row.key)
    if tally is None:
        return row if row.note else replace(row, score=math.nan, note="not scored")
    note = f"dropped after round {dropped[row.key]}" if row.key in dropped else row.note
    return replace(row, score=tally.mean, samples=tally.count, square=tally.square, note=note)
