"""Tasks that are fed from outside: one gradient or loss at a time, at the point that they want.

`engine.Worker` asks an oracle; here the oracle is the user's own loop, which hands over one loss
and one gradient a step. So each kind of task is an object with its whole state in the open: `feed`
takes one oracle call and leaves the model where the next one is wanted, `outcome` says how it went,
and `state` can be saved in the middle and gone on from.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import InputError
from grasp_tune.core.tasks import (
    Outcome,
    ProbeOutcome,
    ProbeTask,
    SampleOutcome,
    ScoreOutcome,
    ScoreTask,
    Segment,
    SegmentOutcome,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.engine.checkpoints import (
    Store,
    load_optimizer,
    optimizer_tensors,
)
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.engine.oracle import LossSums, MeanGradient
from grasp_tune.engine.probe import ProbeSums
from grasp_tune.engine.segment import TrainingRun
from grasp_tune.loop.model_point import ModelPoint
from grasp_tune.optimizers.registry import find_optimizer

Tensors = dict[str, Tensor]
State = tuple[Tensors, dict[str, Any]]  # tensors, and numbers that JSON can hold
ORIGIN = "loop"  # the start point of a loop is the model's own, not a digest
EXACT = "exact gradients need all data at once, which a training loop does not give; use minimize"


class Bench:
    """What the runs of one loop share: the model, and where checkpoints are."""

    def __init__(self, point: ModelPoint, store: Store) -> None:
        self.point, self.store = point, store

    def place(self, key: str) -> None:
        """Put the model at a checkpoint."""
        self.point.place(self.store.read(key).tensors)


class TaskRun(Protocol):
    """One task, fed call by call."""

    @property
    def done(self) -> bool:
        """Whether it wants no more calls."""

    def feed(self, loss: Tensor) -> None:
        """Take one oracle call: the loss, and the gradients that the parameters hold."""

    def outcome(self) -> Outcome:
        """How it went; asked once, when it is done."""

    def state(self) -> State:
        """All that is needed to go on from here, the model's point aside."""

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; the model is where it was then."""


def begin(task: Task, bench: Bench) -> TaskRun:
    """Return the run of a task, with the model where its first call is wanted."""
    if task.calls == 0 or getattr(task, "exact", False):
        raise InputError(EXACT)
    if isinstance(task, ProbeTask):
        return ProbeRun(task, bench)
    return ScoreRun(task, bench) if isinstance(task, ScoreTask) else TrainRun(task, bench)


class ProbeRun:
    """Gradients and losses at x0."""

    def __init__(self, task: ProbeTask, bench: Bench) -> None:
        self._task, self._bench = task, bench
        bench.place(START)
        bench.point.keep_buffers()
        self._sums = ProbeSums(bench.point.trained, moments=task.moments)
        self._fed = 0

    @property
    def done(self) -> bool:
        """Whether all samples are there."""
        return self._fed >= self._task.calls

    def feed(self, loss: Tensor) -> None:
        """Take one sample at x0."""
        if self._fed < self._task.gradients[1] - self._task.gradients[0]:
            self._sums.add_gradient(float(loss))
        else:
            self._sums.add_value(float(loss))
        self._fed += 1
        self._bench.point.restore_buffers()

    def outcome(self) -> ProbeOutcome:
        """What was seen at x0; leaves the sizes of the gradients where they were asked for."""
        if self._task.moments:
            self._sums.write_moments(self._bench.store)
        return self._sums.outcome(self._fed, ORIGIN)

    def state(self) -> State:
        """The sums so far."""
        return self._sums.tensors(), {"fed": self._fed}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from saved sums."""
        self._sums.merge(tensors)
        self._fed = int(numbers["fed"])


class ScoreRun:
    """Fresh samples at candidates, one candidate after the other."""

    def __init__(self, task: ScoreTask, bench: Bench) -> None:
        self._task, self._bench = task, bench
        self._found: list[SampleOutcome] = []
        self._fed = 0  # at the present candidate
        self._sums, self._mean = LossSums(), self._new_mean()
        self._go_to(0)

    def _new_mean(self) -> MeanGradient | None:
        if self._task.by == "value":
            return None
        return MeanGradient(self._bench.point.trained)

    def _go_to(self, at: int) -> None:
        if at < len(self._task.samples):
            self._bench.place(self._task.samples[at].key)
            self._bench.point.keep_buffers()

    @property
    def done(self) -> bool:
        """Whether every candidate has its samples."""
        return len(self._found) == len(self._task.samples)

    def feed(self, loss: Tensor) -> None:
        """Take one sample at the present candidate."""
        sample = self._task.samples[len(self._found)]
        self._sums.add(float(loss))
        if self._mean is not None:
            self._mean.add()
        self._fed += 1
        self._bench.point.restore_buffers()
        if self._fed < sample.stop - sample.start:
            return
        value, square = self._sums.mean, self._sums.mean_square
        if self._mean is not None:
            value, square = self._mean.norm, self._mean.mean_square
        self._found.append(SampleOutcome(sample.key, self._fed, value, square))
        self._fed, self._sums, self._mean = 0, LossSums(), self._new_mean()
        self._go_to(len(self._found))

    def outcome(self) -> ScoreOutcome:
        """What the candidates scored."""
        return ScoreOutcome(sum(item.count for item in self._found), ORIGIN, tuple(self._found))

    def state(self) -> State:
        """The scores so far, and the sums of the present candidate."""
        tensors = {} if self._mean is None else self._mean.tensors()
        mean = [] if self._mean is None else [self._mean.count, self._mean.square]
        found = [[item.count, item.mean, item.square] for item in self._found]
        return tensors, {"found": found, "fed": self._fed, "sums": self._sums.numbers, "mean": mean}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from saved scores."""
        keys = [sample.key for sample in self._task.samples]
        self._found = [
            SampleOutcome(key, int(count), float(mean), float(square))
            for key, (count, mean, square) in zip(keys, numbers["found"], strict=False)
        ]
        self._fed = int(numbers["fed"])
        self._sums.merge(numbers["sums"])
        if self._mean is not None:
            self._mean.merge(tensors, *numbers["mean"])
        self._go_to(len(self._found))


class TrainRun:
    """The segments of a task, one after the other."""

    def __init__(self, task: TrainTask, bench: Bench) -> None:
        self._task, self._bench = task, bench
        self._found: list[SegmentOutcome] = []
        self._run: SegmentRun | None = SegmentRun(task.segments[0], task, bench)

    @property
    def done(self) -> bool:
        """Whether every segment has ended."""
        return self._run is None

    @property
    def segment(self) -> "SegmentRun | None":
        """The segment under way."""
        return self._run

    def feed(self, loss: Tensor) -> None:
        """Take one gradient of the present segment."""
        assert self._run is not None
        self._run.feed(loss)
        while self._run is not None and self._run.done:
            self._found.append(self._run.finish())
            at = len(self._found)
            more = at < len(self._task.segments)
            self._run = (
                SegmentRun(self._task.segments[at], self._task, self._bench) if more else None
            )

    def outcome(self) -> TrainOutcome:
        """How the segments went."""
        return TrainOutcome(sum(item.calls for item in self._found), ORIGIN, tuple(self._found))

    def state(self) -> State:
        """The segments that ended, and where the present one is."""
        assert self._run is not None
        from grasp_tune.core.records import encode

        tensors, numbers = self._run.state()
        return tensors, {"found": encode(tuple(self._found)), "segment": numbers}

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on in the middle of a segment."""
        from grasp_tune.core.records import decode

        self._found = [decode(SegmentOutcome, item) for item in numbers["found"]]
        segment = self._task.segments[len(self._found)]
        self._run = SegmentRun(segment, self._task, self._bench)
        self._run.load(tensors, numbers["segment"])


class _Asks(Exception):
    """A step wants a gradient that is not there yet, at the point where the model now is."""


class SegmentRun(TrainingRun):
    """One run from a checkpoint to the next, by any optimizer whose step calls its closure."""

    def __init__(self, segment: Segment, task: TrainTask, bench: Bench) -> None:
        self._task, self._bench, point = task, bench, bench.point
        saved = bench.store.read(str(segment.state or START))
        point.place(saved.tensors)
        begun = None if segment.state is None else saved
        base, model = find_optimizer(segment.arm.base, {}), cast(nn.Module, point)
        super().__init__(segment, base, model, point.trained, bench.store, begun)
        # A step of several calls (UniXGrad) is made again from its beginning when the next
        # gradient is there: where it began, and the gradients that it has been given.
        self._several = self.base.calls_per_step > 1
        point.rules.check(self.base)
        self._before: State | None = None
        self._given: list[tuple[Tensor, list[Tensor | None]]] = []
        self._sum, self._lanes = LaneSum(), list[float]()  # of a step that is not complete
        self._prepare()

    @property
    def done(self) -> bool:
        """Whether the next step does not fit any more, or the run has diverged."""
        calls = self.base.calls_per_step * self.segment.lanes
        left = calls - len(self._given) - len(self._lanes)
        return self.call + left > self.segment.stop or not self.curve.finite

    @property
    def step_size(self) -> float:
        """The number that scales the optimizer's step now, NaN where it has none."""
        group = self.optimizer.param_groups[0]
        size = group.get(self.base.group_entry or "", math.nan)
        return float(size) * float(group.get("distance", 1.0) or 1.0)

    def feed(self, loss: Tensor) -> None:
        """Take one gradient; make the step that it completes."""
        norm = math.nan
        if self._task.norms:
            found = [item.grad for item in self._bench.point.trained if item.grad is not None]
            norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found))))
        self.record(float(loss), norm)
        if self._several:
            grads = [None if p.grad is None else p.grad.clone() for p in self._bench.point.trained]
            self._given.append((loss.detach(), grads))
            if not self._replay():
                return
        else:
            if self.segment.lanes > 1 and not self._complete(float(loss)):
                return
            self.anneal(self.call - self.segment.lanes)
            self._bench.point.rules.step(self.optimizer, self.base, loss)
        self._given = []
        self.average()
        if not self.done:
            self._prepare()
        self._bench.point.mark()

    def _complete(self, loss: float) -> bool:
        """Add a lane; where it is the last of a step, leave their mean in the parameters."""
        params, lanes = self._bench.point.trained, self.segment.lanes
        self._sum.add([item.grad for item in params])
        self._lanes.append(loss)
        if len(self._lanes) < lanes:
            return False
        for item, total in zip(params, self._sum.total(), strict=True):
            item.grad = None if total is None else total.div_(lanes)
        self._sum, self._lanes = LaneSum(), []
        return True

    def _prepare(self) -> None:
        """Before a step: keep what is wanted here, and go to where its first gradient is wanted."""
        self.keep_due()
        if self._several and not self.done:
            tensors, numbers = optimizer_tensors(self.optimizer)
            tensors.update(self._bench.point.tensors())
            self._before = ({k: v.clone() for k, v in tensors.items()}, {"optimizer": numbers})
            self._replay()

    def _replay(self) -> bool:
        """Make the step with the gradients given so far; False where it wants one more."""
        assert self._before is not None
        tensors, numbers = self._before
        self._bench.point.place(tensors)
        load_optimizer(self.optimizer, tensors, numbers["optimizer"], "step")
        self.anneal(self.call - len(self._given))
        left = list(self._given)

        def closure() -> Tensor:
            if not left:
                raise _Asks
            loss, grads = left.pop(0)
            for parameter, gradient in zip(self._bench.point.trained, grads, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            return loss

        try:
            self.optimizer.step(closure)  # type: ignore[arg-type]
        except _Asks:
            self._bench.point.mark()
            return False
        return True

    # -- saving in the middle --------------------------------------------------------------------

    def state(self) -> State:
        """The optimizer, the averages, the curve, and a step that is half made."""
        tensors, optimizer = optimizer_tensors(self.optimizer)
        meta: dict[str, str | int | float] = {}
        self._averages.save(tensors, meta)
        numbers: dict[str, Any] = {
            "optimizer": optimizer,
            "averages": meta,
            "curve": self.curve.state(),
            "call": self.call,
            "waiting": list(self._waiting),
            "losses": [float(loss) for loss, _ in self._given],
            "lanes": self._lanes,
            "sums": [count for count, _ in self._sum.parts],
        }
        for at, (_, grads) in enumerate(self._sum.parts):
            tensors.update({f"sum.{at}.{i}": g for i, g in enumerate(grads) if g is not None})
        if self._before is not None:
            tensors.update({f"before.{name}": item for name, item in self._before[0].items()})
            numbers["before"] = self._before[1]
            for at, (_, grads) in enumerate(self._given):
                pairs = enumerate(grads)
                tensors.update({f"given.{at}.{i}": g for i, g in pairs if g is not None})
        return tensors, numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        load_optimizer(self.optimizer, tensors, numbers["optimizer"], "the saved loop")
        self._averages.load(tensors, numbers["averages"], "the saved loop")
        self.curve.load(numbers["curve"])
        self.call, self._waiting = int(numbers["call"]), list(numbers["waiting"])
        count = len(self._bench.point.trained)
        self._lanes = list(numbers["lanes"])
        self._sum.parts = [
            (size, [_copy(tensors.get(f"sum.{at}.{i}")) for i in range(count)])
            for at, size in enumerate(numbers["sums"])
        ]
        if self._several:
            start = {
                name.removeprefix("before."): item.clone()
                for name, item in tensors.items()
                if name.startswith("before.")
            }
            self._before = (start, dict(numbers["before"]))
            self._given = [
                (torch.tensor(loss), [tensors.get(f"given.{at}.{i}") for i in range(count)])
                for at, loss in enumerate(numbers["losses"])
            ]


def _copy(item: Tensor | None) -> Tensor | None:
    return None if item is None else item.clone()
