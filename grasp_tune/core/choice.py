"""What a search ends with: the chosen candidate, and all those it was chosen from."""

import math
from collections.abc import Iterable, Mapping, Sequence

from grasp_tune.core.checkpoint_keys import START, Key
from grasp_tune.core.errors import InputError
from grasp_tune.core.records import record
from grasp_tune.core.tasks import Arm, Outcome, ProbeOutcome, Score, Task, TrainOutcome, ended_runs


@record
class Candidate:
    """A point that might have been returned, and what is known of it."""

    key: str  # its checkpoint, or "x0"
    arm: int  # the run it comes from; 0 for x0
    base: str
    value: float  # step size, radius or distance of that run; NaN for x0
    call: int  # after how many oracle calls of the run
    average: bool  # a running average instead of an iterate
    score: float  # mean loss or norm of the mean gradient; NaN where it was not scored
    samples: int = 0
    square: float = math.nan  # mean of the squared samples
    note: str = ""  # "diverged", "lost", "dropped after round 2"

    @classmethod
    def of(cls, key: Key, arm: Arm, score: float, note: str = "") -> "Candidate":
        """Return a point of a run that no fresh sample has scored."""
        end = (key.call, key.what == "average", score)
        return cls(str(key), arm.index, arm.base, arm.value, *end, note=note)


@record
class Choice:
    """The outcome of a whole search."""

    key: str  # the chosen candidate's checkpoint, or "x0"
    by: Score
    way: str  # "resample", "race", "window", "exact", "stationary"
    candidates: tuple[Candidate, ...]  # x0 first, then by run and call
    share: float = 1.0  # the theorem holds with this share of the budget
    covered: bool = True  # the base optimizer is the one that the theorem is about
    partial: bool = False  # stopped before the end
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if all(item.key != self.key for item in self.candidates):
            raise InputError(f"the choice {self.key[:80]!r} is not among its candidates")

    @property
    def chosen(self) -> Candidate:
        """The candidate behind `key`."""
        return next(item for item in self.candidates if item.key == self.key)

    @classmethod
    def stopped_early(
        cls,
        leader: str,
        tasks: Mapping[str, Task],
        outcomes: Mapping[str, Outcome],
        lost: Mapping[str, str],
    ) -> "Choice":
        """Return the best so far, marked partial: the leader of the last round that ended."""
        start = [item for item in outcomes.values() if isinstance(item, ProbeOutcome)]
        mean = (start[0].value, start[0].values) if start else (math.nan, 0)
        rows = [Candidate(START, 0, "", math.nan, 0, False, *mean)]
        for segment, result in ended_runs(tasks.values(), outcomes):
            if result is not None:
                loss, note = (result.loss, "") if result.finite else (math.nan, "diverged")
                rows += [Candidate.of(key, segment.arm, loss, note) for key in segment.writes]
        notes = ["stopped before the end: the best so far by training loss"]
        notes += (f"{key} was lost: {reason}" for key, reason in lost.items())
        return cls(leader, "value", "partial", tuple(rows), partial=True, notes=tuple(notes))


def stationary_start(start: Candidate, by: Score) -> Choice:
    """Return the choice of x0 where its mean gradient is zero."""
    note = "the mean gradient at x0 is zero: as far as the probe can see, x0 is stationary"
    return Choice(start.key, by, "stationary", (start,), notes=(note,))


def start_won(rows: Sequence[Candidate]) -> str:
    """Return the note on a choice that is x0, the first of the candidates."""
    scored = [row.score for row in rows[1:] if not row.note]
    if scored and not any(map(math.isfinite, scored)):
        return "no candidate has a finite score, so x0 is returned: check the validation data"
    return "no run beat the start point, so x0 is returned"


def best_seen(outcomes: Iterable[Outcome]) -> float:
    """Return the smallest finite mean loss of the outcomes, NaN without one; scores do not count.

    They may be the norms of gradients.
    """
    seen: list[float] = []
    for outcome in outcomes:
        if isinstance(outcome, TrainOutcome):
            seen.extend(item.loss for item in outcome.segments if item.finite)
        elif isinstance(outcome, ProbeOutcome):
            seen.append(outcome.value)
    return min((value for value in seen if math.isfinite(value)), default=math.nan)
