"""The words between the search and whoever does the work: tasks out, outcomes back.

A task says everything a worker needs besides the problem itself, and names every checkpoint that
it reads or writes; an outcome holds numbers only. Both are JSON through `records`, so a task can
travel to another machine and an outcome can be replayed years later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from grasp_tune.core.checkpoint_keys import (
    MOMENTS,
    START,
    Key,
    average_key,
    iterate_key,
    part_key,
    state_key,
)
from grasp_tune.core.errors import InputError
from grasp_tune.core.records import Json, decode, encode, record
from grasp_tune.optimizers.registry import described

Score = Literal["gradient", "value"]  # what the ensemble compares: |mean gradient| or mean loss


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a base optimizer: which one, and its values by name, the searched one first."""

    index: int  # the cell's index, from 1; runs beyond the grid count on
    base: str  # "sgd", "unixgrad", "adagrad", ...
    values: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, index: int, base: str, value: float, *, power: float = 0.0, **others: float) -> Arm:
        """Return a run with the optimizer's main value, and others by name.

        power: each coordinate's step is divided by (size of its gradients) ** power.
        """
        rest = {"power": power, **others} if power else others
        return cls(index, base, ((described(base).value, value), *rest.items()))

    @property
    def value(self) -> float:
        """The searched one: step size, radius or distance, as the base understands it."""
        return self.values[0][1]

    @property
    def power(self) -> float:
        """The power of the coordinates' gradient sizes that divides the steps; usually 0."""
        return dict(self.values).get("power", 0.0)

    @property
    def kind(self) -> tuple[str, tuple[tuple[str, float], ...]]:
        """What runs have in common that differ by their main value only."""
        return self.base, self.values[1:]

    def with_value(self, index: int, value: float) -> Arm:
        """Return another run of the same kind."""
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
    origin: Key | None = None  # the state to start from, where it is another run's
    ceiling: float | None = None  # a loss above this counts as divergence
    lanes: int = 1  # minibatches averaged in one step; a step then costs so many calls

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise InputError(f"need at least one lane, got {self.lanes=}")
        if not 0 <= self.start < self.stop:
            raise InputError(f"need 0 <= start < stop, got {self.start=}, {self.stop=}")
        if any(not self.start <= call <= self.stop for call in self.keep):
            raise InputError(f"can only keep calls {self.start}..{self.stop}, got {self.keep}")

    @property
    def calls(self) -> int:
        """Oracle calls that the segment may use."""
        return self.stop - self.start

    def step_share(self, call: int) -> float:
        r"""Return the share of the full step at an oracle call.

        It rises over the warm-up, falls linearly between the two calls of `anneal`, and grows with
        the root of the lanes: the noise of a mean falls with it.
        """
        if self.ramp:
            return float(2.0 ** (call - self.start))
        share = math.sqrt(self.lanes)
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
        if self.origin is not None:
            return self.origin
        return state_key(self.arm.index, self.start) if self.start else None

    @property
    def candidates(self) -> tuple[Key, ...]:
        """Checkpoints of candidates that it leaves."""
        index = self.arm.index
        points = tuple(iterate_key(index, call) for call in sorted(set(self.keep)))
        if not self.keep_averages:
            return points
        return points + tuple(average_key(index, self.stop, gamma) for gamma in self.averages)

    @property
    def reads(self) -> tuple[Key, ...]:
        """Checkpoints that must exist before it starts."""
        state = () if self.state is None else (self.state,)
        return (*state, *((MOMENTS,) if self.arm.power else ()))

    @property
    def writes(self) -> tuple[Key, ...]:
        """All checkpoints that it leaves."""
        state = (state_key(self.arm.index, self.stop),) if self.save else ()
        return (*self.candidates, *state)


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
        """Oracle calls that the task may use."""
        if self.exact:
            return 0
        return self.gradients[1] - self.gradients[0] + self.values[1] - self.values[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """Checkpoints that must exist before it starts."""
        return tuple(str(part_key(part)) for part in range(self.merge))

    @property
    def writes(self) -> tuple[str, ...]:
        """Checkpoints that it leaves."""
        if self.part is not None:
            return (str(part_key(self.part)),)
        return (str(MOMENTS),) if self.moments else ()


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
        """Oracle calls that the task may use."""
        return sum(segment.calls for segment in self.segments)

    @property
    def reads(self) -> tuple[str, ...]:
        """Checkpoints that must exist before it starts."""
        return tuple(dict.fromkeys(str(key) for run in self.segments for key in run.reads))

    @property
    def writes(self) -> tuple[str, ...]:
        """Checkpoints that it leaves."""
        return tuple(str(key) for run in self.segments for key in run.writes)


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
    id: str
    by: Score
    samples: tuple[Sample, ...]
    exact: bool = False

    @property
    def calls(self) -> int:
        """Oracle calls that the task may use."""
        return 0 if self.exact else sum(sample.stop - sample.start for sample in self.samples)

    @property
    def reads(self) -> tuple[str, ...]:
        """Checkpoints that must exist before it starts."""
        return tuple(sample.key for sample in self.samples if sample.key != START)

    @property
    def writes(self) -> tuple[str, ...]:
        """Checkpoints that it leaves: none."""
        return ()


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


@record
class ScoreOutcome(_Ended):
    """What the candidates of one task scored, in the order of its samples."""

    phase: ClassVar[str] = "score"
    samples: tuple[SampleOutcome, ...]


Task = ProbeTask | TrainTask | ScoreTask
Outcome = ProbeOutcome | TrainOutcome | ScoreOutcome

_TASKS: dict[str, type[Task]] = {kind.phase: kind for kind in (ProbeTask, TrainTask, ScoreTask)}
_OUTCOMES: dict[str, type[Outcome]] = {
    kind.phase: kind for kind in (ProbeOutcome, TrainOutcome, ScoreOutcome)
}


def depth_of(task: Task, outcome: Outcome) -> int:
    """Return how many steps of an ended task had to follow each other.

    Runs of one task do not wait for each other; the samples of a probe or of scores are taken one
    after the other. A step of several lanes is one, one of UniXGrad two: its gradients are at two
    points.
    """
    if isinstance(outcome, TrainOutcome):
        assert isinstance(task, TrainTask)
        pairs = zip(task.segments, outcome.segments, strict=True)
        return max((-(-item.calls // segment.lanes) for segment, item in pairs), default=0)
    if isinstance(outcome, ScoreOutcome):
        return sum(item.count for item in outcome.samples)
    return 1 if isinstance(task, ProbeTask) and task.exact else outcome.calls


def check_answer(task: Task, outcome: Outcome) -> None:
    """Raise `InputError` where the outcome cannot be the task's.

    Outcomes come from other processes, other machines and files. One that has more calls than its
    task allows, or speaks of other runs, would break the budget or the choice in silence. Losses
    are not judged: NaN and infinities are legitimate.
    """
    where = task.id
    if outcome.phase != task.phase:
        raise InputError(f"task {where} cannot end with a {outcome.phase} outcome")
    _check_count(where, "calls", outcome.calls, task.calls)
    if isinstance(outcome, ProbeOutcome):
        _check_count(where, "gradients", outcome.gradients)
        _check_count(where, "values", outcome.values)
        _check_count(where, "parameters", outcome.parameters, low=1)
        _check_count(where, "matrices", outcome.matrices)
        for name in ("gradient_norm", "gradient_square", "value_square", "value"):
            got, low = getattr(outcome, name), -math.inf if name == "value" else 0.0
            if not isinstance(got, float) or got < low:  # NaN passes
                raise InputError(f"{where}: {name}: got {got!r}, expected a number >= {low}")
    if isinstance(task, TrainTask) and isinstance(outcome, TrainOutcome):
        runs = [segment.arm.index for segment in task.segments]
        if (got := [item.arm for item in outcome.segments]) != runs:
            raise InputError(f"{where}: got the runs {got[:8]}, expected {runs[:8]}")
        for segment, run in zip(task.segments, outcome.segments, strict=True):
            _check_count(f"{where}: run {run.arm}", "calls", run.calls, segment.calls)
        if outcome.calls != (total := sum(run.calls for run in outcome.segments)):
            raise InputError(f"{where}: got {outcome.calls} calls, but its runs made {total}")
    if isinstance(task, ScoreTask) and isinstance(outcome, ScoreOutcome):
        keys = [sample.key for sample in task.samples]
        if (found := [item.key for item in outcome.samples]) != keys:
            raise InputError(f"{where}: got scores of {found[:8]}, expected {keys[:8]}")
        for sample, item in zip(task.samples, outcome.samples, strict=True):
            most = 1 if task.exact else sample.stop - sample.start
            _check_count(f"{where}: {item.key}", "count", item.count, most)
            if item.square < 0.0:
                raise InputError(f"{where}: {item.key}: square: got {item.square}, expected >= 0")


def _check_count(where: str, name: str, got: object, high: int | None = None, low: int = 0) -> None:
    if (
        not isinstance(got, int)
        or isinstance(got, bool)
        or not low <= got <= (got if high is None else high)
    ):
        limit = f">= {low}" if high is None else f"{low}..{high}"
        raise InputError(f"{where}: {name}: got {got!r}, expected a whole number {limit}")


def task_to_dict(task: Task) -> dict[str, Json]:
    """Return the task as JSON values."""
    return {"phase": task.phase, "task": encode(task)}


def task_from_dict(data: Json) -> Task:
    """Return the task that `task_to_dict` wrote."""
    return decode(_kind(_TASKS, data), data.get("task"))


def outcome_to_dict(outcome: Outcome) -> dict[str, Json]:
    """Return the outcome as JSON values."""
    return {"phase": outcome.phase, "outcome": encode(outcome)}


def outcome_from_dict(data: Json) -> Outcome:
    """Return the outcome that `outcome_to_dict` wrote."""
    return decode(_kind(_OUTCOMES, data), data.get("outcome"))


def _kind(table: dict[str, type], data: Json) -> type:
    phase = data.get("phase") if isinstance(data, dict) else None
    if not isinstance(phase, str) or phase not in table:
        raise InputError(f"phase: got {phase!r}, expected one of {sorted(table)}")
    return table[phase]
