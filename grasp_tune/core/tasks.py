"""The words between the search and whoever does the work: tasks out, outcomes back.

A task says everything a worker needs besides the problem; an outcome holds numbers only.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from grasp_tune.core import checkpoint_keys as keys
from grasp_tune.core.checkpoint_keys import MOMENTS, START, Key
from grasp_tune.core.errors import InputError, whole
from grasp_tune.core.records import record
from grasp_tune.optimizers.registry import described

Score = Literal["gradient", "value"]  # what the ensemble compares: |mean gradient| or mean loss


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a base optimizer: which one, and its values by name, the searched one first."""

    index: int  # the cell's index, from 1; runs beyond the grid count on
    base: str  # "sgd", "unixgrad", "adagrad", ...
    values: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, index: int, base: str, value: float, *, power: float = 0.0) -> "Arm":
        rest = (("power", power),) if power else ()
        return cls(index, base, ((described(base).value, value), *rest))

    @property
    def value(self) -> float:
        """The searched one: step size, radius or distance, as the base understands it."""
        return self.values[0][1]

    @property
    def power(self) -> float:
        """Each coordinate's step is divided by (size of its gradients) ** power; usually 0."""
        return dict(self.values).get("power", 0.0)

    def with_value(self, index: int, value: float) -> "Arm":
        return Arm(index, self.base, ((self.values[0][0], value), *self.values[1:]))


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of one run, counted in its own oracle calls: from `start` up to `stop`."""

    arm: Arm
    start: int
    stop: int
    keep: tuple[int, ...] = ()  # calls after which the iterate becomes a candidate
    averages: tuple[float, ...] = ()  # exponents of the running averages that the run carries
    keep_averages: bool = False  # at `stop` the averages become candidates too
    save: bool = False  # leave the state at `stop`, so that the run can go on
    anneal: tuple[int, int] | None = None  # the step falls linearly to 0 between these two calls
    warmup: int = 0  # the step rises over so many calls of the run
    ramp: bool = False  # the step doubles from call to call
    origin: Key | None = None  # where to start from, if not from its own state: another's, or x0
    ceiling: float | None = None  # a loss above this counts as divergence
    lanes: int = 1  # minibatches averaged in one step; a step then costs so many calls

    def __post_init__(self) -> None:
        whole("lanes", self.lanes)
        if not 0 <= self.start < self.stop:
            raise InputError(f"need 0 <= start < stop, got {self.start=}, {self.stop=}")
        if any(not self.start <= call <= self.stop for call in self.keep):
            raise InputError(f"can only keep calls {self.start}..{self.stop}, got {self.keep}")

    @property
    def calls(self) -> int:
        return self.stop - self.start

    def step_share(self, call: int) -> float:
        """Return the share of the full step at an oracle call."""
        if self.ramp:
            return float(2.0 ** (call - self.start))
        share = math.sqrt(self.lanes)  # the noise of their mean falls with the root
        if call < self.warmup:
            share *= (call + 1) / self.warmup
        if self.anneal is not None and call >= self.anneal[0]:
            begin, end = self.anneal
            share *= max(0.0, (end - call) / (end - begin))
        return share

    @property
    def shaped(self) -> bool:
        """Whether the step is not the full one at every call."""
        return self.ramp or self.anneal is not None or self.lanes > 1 or self.start < self.warmup

    @property
    def state(self) -> Key | None:
        """The state to go on from, None for x0."""
        own = keys.state_key(self.arm.index, self.start) if self.start else START
        state = self.origin or own
        return None if state == START else state

    @property
    def candidates(self) -> tuple[Key, ...]:
        run, averages = self.arm.index, self.averages if self.keep_averages else ()
        points = (keys.iterate_key(run, call) for call in sorted(set(self.keep)))
        return (*points, *(keys.average_key(run, self.stop, gamma) for gamma in averages))

    @property
    def reads(self) -> tuple[Key, ...]:
        state = () if self.state is None else (self.state,)
        return (*state, MOMENTS) if self.arm.power else state

    @property
    def writes(self) -> tuple[Key, ...]:
        state = (keys.state_key(self.arm.index, self.stop),) if self.save else ()
        return (*self.candidates, *state)


# Every task has an `id`, a `phase`, the most oracle `calls` that it may use, and the checkpoints
# that it `reads`, which must exist before it starts, and `writes`.
@dataclass(frozen=True, slots=True)
class ProbeTask:
    """Samples at x0: `gradients` and `values` are ranges of calls of the probe's stream."""

    phase: ClassVar[str] = "probe"
    id: str
    gradients: tuple[int, int] = (0, 0)
    values: tuple[int, int] = (0, 0)
    moments: bool = False  # also leave the per-coordinate sizes of the gradients
    exact: bool = False  # full-batch oracle, not counted (the deterministic variant)
    part: int | None = None  # a part of a larger probe leaves its sums for the merge
    merge: int = 0  # > 0: read the sums of that many parts instead of sampling

    @property
    def calls(self) -> int:
        spans = () if self.exact else (self.gradients, self.values)
        return sum(stop - start for start, stop in spans)

    @property
    def reads(self) -> tuple[Key, ...]:
        return tuple(map(keys.part_key, range(self.merge)))

    @property
    def writes(self) -> tuple[Key, ...]:
        if self.part is not None:
            return (keys.part_key(self.part),)
        return (MOMENTS,) if self.moments else ()


@dataclass(frozen=True, slots=True)
class TrainTask:
    """Runs that advance: one, or several short ones."""

    phase: ClassVar[str] = "train"
    id: str
    segments: tuple[Segment, ...]
    exact: bool = False
    norms: bool = False  # record the norm of every minibatch gradient

    def __post_init__(self) -> None:
        if self.exact and any(segment.lanes > 1 for segment in self.segments):
            raise InputError("exact gradients are not averaged: they have one lane")

    @property
    def calls(self) -> int:
        return sum(segment.calls for segment in self.segments)

    @property
    def reads(self) -> tuple[Key, ...]:
        return tuple(dict.fromkeys(key for run in self.segments for key in run.reads))

    @property
    def writes(self) -> tuple[Key, ...]:
        return tuple(key for run in self.segments for key in run.writes)


@dataclass(frozen=True, slots=True)
class Sample:
    """One candidate and the range of the ensemble's stream that scores it."""

    key: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ScoreTask:
    """Fresh samples at some candidates."""

    phase: ClassVar[str] = "score"
    writes: ClassVar[tuple[Key, ...]] = ()
    id: str
    by: Score
    samples: tuple[Sample, ...]
    exact: bool = False

    @property
    def calls(self) -> int:
        return 0 if self.exact else sum(sample.stop - sample.start for sample in self.samples)

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(sample.key for sample in self.samples if sample.key != START)


@record
class _Ended:
    """What every outcome has."""

    calls: int
    origin: str  # digest of the start point: every worker must start at the same one


@record
class ProbeOutcome(_Ended):
    """What the probe saw at x0."""

    phase: ClassVar[str] = "probe"
    gradients: int  # how many gradients the mean is over
    gradient_norm: float  # |g0|, norm of their mean
    gradient_square: float  # mean of |g|^2
    parameters: int  # trainable numbers of the model
    values: int
    value: float  # l0, mean of the losses (of the gradient calls too, where they give one)
    value_square: float  # mean of the squared losses
    matrices: int = 0  # hidden matrices among the parameters
    held_out: bool = False  # whether fresh samples come from validation data
    light: bool = False  # whether the model is so small that short runs should share a task


@record
class Point:
    """One mark of a training curve: means over the calls since the mark before."""

    call: int
    loss: float
    norm: float  # NaN where norms are not recorded


@record
class SegmentOutcome:
    """How one segment went."""

    arm: int
    calls: int  # oracle calls it used; fewer than asked for where it stopped being finite
    finite: bool
    loss: float  # mean loss over the last quarter of the segment
    window_loss: float  # mean over the last 100 minibatches, or as many as there were
    window_norm: float
    curve: tuple[Point, ...] = ()
    silent: float = 0.0  # largest share of a layer's units that gradients do not reach any more


@record
class TrainOutcome(_Ended):
    """How the runs of one task went, in the order of its segments."""

    phase: ClassVar[str] = "train"
    segments: tuple[SegmentOutcome, ...]
    note: str = ""  # what a reader of the result should know of how it was run


@record
class SampleOutcome:
    """What one candidate scored on its samples."""

    key: str
    count: int
    mean: float  # mean loss, or norm of the mean gradient
    square: float  # mean of the squared losses, or mean of |g|^2
    # Of validation data, for curves; NaN where it was not measured:
    loss: float = math.nan  # the mean loss, where the score is 1 - metric
    metric: float = math.nan  # over all rows of the samples at once


@record
class ScoreOutcome(_Ended):
    """What the candidates of one task scored, in the order of its samples."""

    phase: ClassVar[str] = "score"
    samples: tuple[SampleOutcome, ...]


Task = ProbeTask | TrainTask | ScoreTask
Outcome = ProbeOutcome | TrainOutcome | ScoreOutcome
_Part = tuple[int | str, int]  # a run or a candidate, and its calls


def ended_runs(
    tasks: Iterable[Task], known: Mapping[str, Outcome | None]
) -> Iterator[tuple[Segment, SegmentOutcome | None]]:
    """Yield every run of some tasks and how it went; None where that is not known, or lost."""
    for task in tasks:
        if isinstance(task, TrainTask):
            outcome = known.get(task.id)
            lost = [None] * len(task.segments)
            found = outcome.segments if isinstance(outcome, TrainOutcome) else lost
            yield from zip(task.segments, found, strict=True)


def depth_of(task: Task, outcome: Outcome) -> int:
    """Return how many steps of an ended task had to follow each other; runs do not, samples do.

    A step of several lanes is one, one of UniXGrad two: its gradients are at two points.
    """
    if isinstance(task, TrainTask):
        runs = ended_runs((task,), {task.id: outcome})
        return max((-(-item.calls // run.lanes) for run, item in runs if item), default=0)
    if isinstance(outcome, ScoreOutcome):
        return sum(item.count for item in outcome.samples)
    return 1 if isinstance(task, ProbeTask) and task.exact else outcome.calls


def check_answer(task: Task, outcome: Outcome) -> None:
    """Raise `InputError` where the outcome cannot be the task's: too many calls, or other runs.

    Losses are not judged: NaN and infinities are legitimate.
    """
    where, wanted, found = task.id, list[_Part](), list[_Part]()
    sizes: dict[str, float] = {}
    if isinstance(task, TrainTask) and isinstance(outcome, TrainOutcome):
        wanted = [(segment.arm.index, segment.calls) for segment in task.segments]
        found = [(run.arm, run.calls) for run in outcome.segments]
        if outcome.calls != (total := sum(calls for _, calls in found)):
            raise InputError(f"{where}: got {outcome.calls} calls, but its runs made {total}")
    elif isinstance(task, ScoreTask) and isinstance(outcome, ScoreOutcome):
        wanted = [(s.key, 1 if task.exact else s.stop - s.start) for s in task.samples]
        found = [(item.key, item.count) for item in outcome.samples]
        sizes = {f"{item.key}: square": item.square for item in outcome.samples}
    elif isinstance(task, ProbeTask) and isinstance(outcome, ProbeOutcome):
        for count, low in (("gradients", 0), ("values", 0), ("parameters", 1), ("matrices", 0)):
            whole(f"{where}: {count}", getattr(outcome, count), low)
        names = ("gradient_norm", "gradient_square", "value_square")
        sizes = {name: getattr(outcome, name) for name in names}
    else:
        raise InputError(f"task {where} cannot end with a {outcome.phase} outcome")
    if [name for name, _ in found] != [name for name, _ in wanted]:
        raise InputError(f"{where}: got an outcome of {found[:8]}, expected {wanted[:8]}")
    for (name, most), (_, calls) in zip(wanted, found, strict=True):
        whole(f"{where}: {name}: calls", calls, 0, most)
    whole(f"{where}: calls", outcome.calls, 0, task.calls)
    for what, size in sizes.items():
        if not isinstance(size, float) or size < 0.0:  # NaN passes
            raise InputError(f"{where}: {what}: got {size!r}, expected a number >= 0")
