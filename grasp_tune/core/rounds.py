"""What a schedule is: a generator that yields `Round`s of independent tasks.

It receives the outcome of every task, None for a lost one, and returns a `Choice`. It looks at
nothing but its options, its spec and those outcomes: that is what makes replay exact.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from grasp_tune.core.checkpoint_keys import START, Key
from grasp_tune.core.choice import Choice
from grasp_tune.core.plan import Plan
from grasp_tune.core.tasks import (
    Outcome,
    Sample,
    SampleOutcome,
    Score,
    ScoreOutcome,
    ScoreTask,
    Segment,
    Task,
    TrainTask,
)

if TYPE_CHECKING:
    from grasp_tune.core.spec import SweepSpec


@dataclass(frozen=True, slots=True)
class Round:
    """Independent tasks that must all end before the schedule goes on."""

    tasks: tuple[Task, ...]
    plan: Plan | None = None  # known from the end of the probe
    leader: Key = START  # the checkpoint to return if everything stopped now
    discard: tuple[Key, ...] = ()  # checkpoints that nobody will read again
    last: bool = False  # the schedule is known to yield no other


Known = Mapping[str, Outcome | None]  # None: lost
Rounds = Generator[Round, Known, Choice]


class Schedule(Protocol):
    """How a budget is spent: a frozen dataclass whose fields are options with defaults.

    name: what people call it; a class variable.
    default_base: the optimizer that it runs where the method names none; None: the theorem's own.
    rounds: yields the rounds of a sweep and returns its choice.
    """

    @property
    def name(self) -> str: ...
    @property
    def default_base(self) -> str | None: ...
    def __hash__(self) -> int: ...
    def rounds(self, spec: "SweepSpec") -> Rounds: ...


LEAST_BATCH = 8  # fewer runs than this are a task each
SCORE_TASKS = 8  # a round of scoring is cut into at most so many tasks, whoever runs them


def train_tasks(
    name: str, segments: Sequence[Segment], width: int, *, exact: bool = False, norms: bool = False
) -> tuple[TrainTask, ...]:
    """Return the segments as tasks: one each, or `width` at a time."""
    size = width if width and len(segments) >= LEAST_BATCH else 1
    tasks = []
    for at in range(0, len(segments), size):
        chunk = tuple(segments[at : at + size])
        ends = dict.fromkeys(f"{segment.arm.index:03d}" for segment in (chunk[0], chunk[-1]))
        tasks.append(TrainTask(f"{name}-run{'to'.join(ends)}", chunk, exact=exact, norms=norms))
    return tuple(tasks)


def score_tasks(
    name: str, samples: Sequence[Sample], by: Score, *, exact: bool = False
) -> tuple[ScoreTask, ...]:
    """Return the samples as a few tasks of about equal size."""
    size = max(1, -(-len(samples) // SCORE_TASKS))
    chunks = [tuple(samples[at : at + size]) for at in range(0, len(samples), size)]
    parts = enumerate(chunks)
    return tuple(ScoreTask(f"{name}-part{at:02d}", by, chunk, exact) for at, chunk in parts)


def scores(tasks: Sequence[ScoreTask], known: Known) -> list[SampleOutcome]:
    """Return what a round of scoring found; candidates whose samples were lost are left out."""
    told = [known[task.id] for task in tasks]
    return [item for out in told if isinstance(out, ScoreOutcome) for item in out.samples]
