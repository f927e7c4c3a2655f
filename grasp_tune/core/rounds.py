"""What a schedule is: a generator of rounds of independent tasks.

A schedule yields a `Round`, receives the outcome of every task in it (None for one that is lost)
and ends by returning a `Choice`. It may keep no state but its own local variables, and may look at
nothing but its spec and those outcomes: that is what makes replay exact.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from grasp_tune.core.choice import Choice
from grasp_tune.core.plan import Plan
from grasp_tune.core.tasks import (
    START,
    Outcome,
    Sample,
    Score,
    ScoreTask,
    Segment,
    Task,
    TrainTask,
)


@dataclass(frozen=True, slots=True)
class Round:
    """Independent tasks that must all end before the schedule goes on."""

    tasks: tuple[Task, ...]
    plan: Plan | None = None  # known from the end of the probe
    leader: str = START  # the checkpoint to return if everything stopped now
    discard: tuple[str, ...] = ()  # checkpoints that nobody will read again


Known = Mapping[str, Outcome | None]  # None: lost
Schedule = Generator[Round, Known, Choice]

LEAST_BATCH = 8  # fewer runs than this gain nothing from being batched
SCORE_TASKS = 8  # a round of scoring is cut into at most so many tasks, whoever runs them


def train_tasks(
    name: str, segments: Sequence[Segment], width: int, *, exact: bool = False, norms: bool = False
) -> tuple[TrainTask, ...]:
    """Return the segments as tasks: one each, or `width` at a time batched into one."""
    size = width if width and len(segments) >= LEAST_BATCH else 1
    chunks = [tuple(segments[at : at + size]) for at in range(0, len(segments), size)]
    return tuple(
        TrainTask(f"{name}-{_span(chunk)}", chunk, exact=exact, norms=norms) for chunk in chunks
    )


def _span(chunk: tuple[Segment, ...]) -> str:
    first, last = chunk[0].arm.index, chunk[-1].arm.index
    return f"run{first:03d}" if first == last else f"run{first:03d}to{last:03d}"


def score_tasks(
    name: str, samples: Sequence[Sample], by: Score, *, exact: bool = False
) -> tuple[ScoreTask, ...]:
    """Return the samples as a few tasks of about equal size."""
    size = -(-len(samples) // SCORE_TASKS)
    chunks = [tuple(samples[at : at + size]) for at in range(0, len(samples), max(1, size))]
    return tuple(
        ScoreTask(f"{name}-part{part:02d}", by, chunk, exact=exact)
        for part, chunk in enumerate(chunks)
    )
