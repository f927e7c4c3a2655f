"""Tasks that are fed from outside: one gradient or loss at a time, at the point that they want.

`engine.Worker` asks an oracle; here the oracle is the user's own loop, which hands over one loss
and one gradient a step. So each kind of task is an object with its whole state in the open: `feed`
takes one oracle call and leaves the model where the next one is wanted, `outcome` says how it went,
and `state` can be saved in the middle and gone on from.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.checkpoint_keys import MOMENTS, START, average_key, iterate_key, state_key
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
    Averages,
    finite,
    load_optimizer,
    optimizer_tensors,
)
from grasp_tune.engine.curves import Curve
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.engine.oracle import LossSums, MeanGradient
from grasp_tune.engine.store import Store
from grasp_tune.loop.model_point import ModelPoint
from grasp_tune.optimizers.preconditioner import Coordinates, typical_peak
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

    def coordinates(self, power: float) -> Coordinates | None:
        """Return what the probe saw of each coordinate, None where it does not matter."""
        if not power:
            return None
        saved = self.store.read(str(MOMENTS))
        pairs = enumerate(self.point.trained)
        peaks = [saved.tensors[f"peak.{at}"].to(item.device) for at, item in pairs]
        return Coordinates(power, peaks, float(saved.meta["typical"]))


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
        self._mean = MeanGradient(bench.point.trained, moments=task.moments)  # type: ignore[arg-type]
        self._losses, self._values = LossSums(), LossSums()
        self._gradients = task.gradients[1] - task.gradients[0]
        self._fed = 0

    @property
    def done(self) -> bool:
        """Whether all samples are there."""
        return self._fed >= self._task.calls

    def feed(self, loss: Tensor) -> None:
        """Take one sample at x0."""
        if self._fed < self._gradients:
            self._losses.add(float(loss))
            self._mean.add()
        else:
            self._values.add(float(loss))
        self._fed += 1
        self._bench.point.restore_buffers()

    def outcome(self) -> ProbeOutcome:
        """What was seen at x0; leaves the sizes of the gradients where they were asked for."""
        mean = self._mean
        if self._task.moments and mean.peaks is not None:
            peaks = {f"peak.{at}": item for at, item in enumerate(mean.peaks)}
            self._bench.store.write(str(MOMENTS), peaks, {"typical": typical_peak(mean.peaks)})
        seen = self._values if self._values.count else self._losses
        return ProbeOutcome(
            calls=self._fed,
            origin=ORIGIN,
            gradients=mean.count,
            gradient_norm=mean.norm,
            gradient_square=mean.square / mean.count if mean.count else math.nan,
            parameters=sum(item.numel() for item in self._bench.point.trained),
            values=seen.count,
            value=seen.mean,
            value_square=seen.mean_square,
        )

    def state(self) -> State:
        """The sums so far."""
        mean = self._mean
        tensors = {f"sum.{at}": item for at, item in enumerate(mean.sums)}
        tensors.update({f"peak.{at}": item for at, item in enumerate(mean.peaks or [])})
        numbers = {
            "fed": self._fed,
            "mean": [mean.count, mean.square],
            "losses": self._losses.numbers,
            "values": self._values.numbers,
        }
        return tensors, numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from saved sums."""
        for at, item in enumerate(self._mean.sums):
            item.copy_(tensors[f"sum.{at}"])
        for at, item in enumerate(self._mean.peaks or []):
            item.copy_(tensors[f"peak.{at}"])
        self._mean.count, self._mean.square = int(numbers["mean"][0]), float(numbers["mean"][1])
        self._losses.merge(numbers["losses"])
        self._values.merge(numbers["values"])
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
        return MeanGradient(self._bench.point.trained)  # type: ignore[arg-type]

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
            value, square = self._mean.norm, self._mean.square / self._mean.count
        self._found.append(SampleOutcome(sample.key, self._fed, value, square))
        self._fed, self._sums, self._mean = 0, LossSums(), self._new_mean()
        self._go_to(len(self._found))

    def outcome(self) -> ScoreOutcome:
        """What the candidates scored."""
        return ScoreOutcome(sum(item.count for item in self._found), ORIGIN, tuple(self._found))

    def state(self) -> State:
        """The scores so far, and the sums of the present candidate."""
        tensors: Tensors = {}
        mean: list[float] = []
        if self._mean is not None:
            tensors = {f"sum.{at}": item for at, item in enumerate(self._mean.sums)}
            mean = [self._mean.count, self._mean.square]
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
            for at, item in enumerate(self._mean.sums):
                item.copy_(tensors[f"sum.{at}"])
            self._mean.count, self._mean.square = int(numbers["mean"][0]), numbers["mean"][1]
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


class SegmentRun:
    """One run from a checkpoint to the next, by any optimizer whose step calls its closure."""

    def __init__(self, segment: Segment, task: TrainTask, bench: Bench) -> None:
        self._segment, self._task, self._bench = segment, task, bench
        self._base = find_optimizer(segment.arm.base, {})
        self._curve = Curve(segment)
        self._call = segment.start
        self._waiting = sorted({call for call in segment.keep if call < segment.stop})
        saved = bench.store.read(str(segment.state or START))
        bench.point.place(saved.tensors)
        arm = segment.arm
        params = bench.point.trained
        self.optimizer: Optimizer = self._base.build(
            params, dict(arm.values), bench.coordinates(arm.power)
        )
        entry = self._base.group_entry or ""
        self._full = [group.get(entry) for group in self.optimizer.param_groups]
        self._averages = Averages(bench.point, segment.averages)  # type: ignore[arg-type]
        if segment.state is not None:
            origin = str(segment.state)
            load_optimizer(self.optimizer, saved.tensors, str(saved.meta["optimizer"]), origin)
            self._averages.load(saved.tensors, saved.meta, origin)
            self._scale(1.0)  # the saved one may have been annealed, or another run's
        # A step of several calls (UniXGrad) is made again from its beginning when the next
        # gradient is there: where it began, and the gradients that it has been given.
        self._several = self._base.calls_per_step > 1
        self._before: State | None = None
        self._given: list[tuple[Tensor, list[Tensor | None]]] = []
        self._sum, self._lanes = LaneSum(), list[float]()  # of a step that is not complete
        self._prepare()

    @property
    def done(self) -> bool:
        """Whether the next step does not fit any more, or the run has diverged."""
        calls = self._base.calls_per_step * self._segment.lanes
        left = calls - len(self._given) - len(self._lanes)
        return self._call + left > self._segment.stop or not self._curve.finite

    @property
    def step_size(self) -> float:
        """The number that scales the optimizer's step now, NaN where it has none."""
        group = self.optimizer.param_groups[0]
        size = group.get(self._base.group_entry or "", math.nan)
        return float(size) * float(group.get("distance", 1.0) or 1.0)

    def feed(self, loss: Tensor) -> None:
        """Take one gradient; make the step that it completes."""
        norm = math.nan
        if self._task.norms:
            found = [item.grad for item in self._bench.point.trained if item.grad is not None]
            norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found))))
        self._call += 1
        self._curve.add(float(loss), norm)
        if self._several:
            grads = [None if p.grad is None else p.grad.clone() for p in self._bench.point.trained]
            self._given.append((loss.detach(), grads))
            if not self._replay():
                return
        else:
            if self._segment.lanes > 1 and not self._complete(float(loss)):
                return
            self._anneal(self._call - self._segment.lanes)
            self.optimizer.step(lambda: loss)  # type: ignore[arg-type,return-value]
        self._given = []
        self._averages.update()
        if not self.done:
            self._prepare()
        self._bench.point.mark()

    def _complete(self, loss: float) -> bool:
        """Add a lane; where it is the last of a step, leave their mean in the parameters."""
        params, lanes = self._bench.point.trained, self._segment.lanes
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
        while self._waiting and self._waiting[0] <= self._call:
            self._write_iterate(self._waiting.pop(0))
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
        self._anneal(self._call - len(self._given))
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

    def finish(self) -> SegmentOutcome:
        """Write what the segment wants at its end; return how it went."""
        segment, store, point = self._segment, self._bench.store, self._bench.point
        for call in self._waiting:
            self._write_iterate(call)
        self._curve.finite = self._curve.finite and finite(point)  # type: ignore[arg-type]
        if segment.stop in segment.keep:
            self._write_iterate(segment.stop)
        if segment.keep_averages:
            for gamma in segment.averages:
                key = str(average_key(segment.arm.index, segment.stop, gamma))
                store.write(key, self._averages.candidate(gamma), {})
        if segment.save:
            tensors, numbers = optimizer_tensors(self.optimizer)
            tensors.update(point.tensors())
            meta: dict[str, str | int | float] = {"optimizer": numbers}
            self._averages.save(tensors, meta)
            store.write(str(state_key(segment.arm.index, segment.stop)), tensors, meta)
        return self._curve.outcome()

    def _write_iterate(self, call: int) -> None:
        key = str(iterate_key(self._segment.arm.index, call))
        self._bench.store.write(key, self._bench.point.tensors(), {})

    def _anneal(self, call: int) -> None:
        if self._segment.anneal is not None:
            self._scale(self._segment.step_share(call))

    def _scale(self, share: float) -> None:
        if self._base.group_entry is None:
            return
        for group, full in zip(self.optimizer.param_groups, self._full, strict=True):
            if full is not None:
                group[self._base.group_entry] = full * share

    # -- saving in the middle --------------------------------------------------------------------

    def state(self) -> State:
        """The optimizer, the averages, the curve, and a step that is half made."""
        tensors, optimizer = optimizer_tensors(self.optimizer)
        meta: dict[str, str | int | float] = {}
        self._averages.save(tensors, meta)
        numbers: dict[str, Any] = {
            "optimizer": optimizer,
            "averages": meta,
            "curve": self._curve.state(),
            "call": self._call,
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
        self._curve.load(numbers["curve"])
        self._call, self._waiting = int(numbers["call"]), list(numbers["waiting"])
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
