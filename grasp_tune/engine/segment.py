"""One segment of one run by the ordinary loop of the framework."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grasp_tune.core.checkpoint_keys import START, average_key, iterate_key, state_key
from grasp_tune.core.errors import InputError
from grasp_tune.core.tasks import Segment, SegmentOutcome, TrainTask
from grasp_tune.engine.averaging import Averages
from grasp_tune.engine.checkpoints import (
    Checkpoint,
    Store,
    finite,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from grasp_tune.engine.curves import Curve
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.engine.probe import read_coordinates
from grasp_tune.engine.tensor_file import Meta
from grasp_tune.optimizers.registry import BaseOptimizer, find_optimizer

if TYPE_CHECKING:
    from grasp_tune.engine.worker import Worker

LAG = 16  # losses that may be under way on a GPU: looking at each would make it wait


class _OutOfCalls(Exception):
    """A closure asked for more oracle calls than the segment has."""


class TrainingRun:
    """One run on its way through a segment: model, optimizer, averages and curve.

    model: whose parameters are moved; it stands where the run begins.
    params: those of the parameters that are trained.
    saved: the state that the run goes on from, None at x0.
    """

    def __init__(
        self,
        segment: Segment,
        base: BaseOptimizer,
        model: nn.Module,
        params: Sequence[Tensor],
        store: Store,
        saved: Checkpoint | None,
    ) -> None:
        self.segment, self.base, self.model, self._store = segment, base, model, store
        self.curve = Curve(segment)
        self.call = segment.start
        self._waiting = sorted({call for call in segment.keep if call < segment.stop})
        coordinates = read_coordinates(store, segment.arm.power, params)
        self.optimizer: Optimizer = base.build(params, dict(segment.arm.values), coordinates)
        entry = base.group_entry or ""
        self._full = [group.get(entry) for group in self.optimizer.param_groups]
        self._averages = Averages(model, segment.averages)
        if saved is not None:
            key = str(segment.state)
            numbers = str(saved.meta["optimizer"])
            load_optimizer(self.optimizer, saved.tensors, numbers, key, own=True)
            self._averages.load(saved.tensors, saved.meta, key)
            self._set_step(1.0)  # the saved one may have been annealed, or another run's

    @property
    def over(self) -> bool:
        """Whether the next step does not fit any more, or the run has diverged."""
        step = self.base.calls_per_step * self.segment.lanes
        return not self.curve.finite or self.call + step > self.segment.stop

    def keep_due(self) -> None:
        """Keep the iterates that are wanted by now."""
        while self._waiting and self._waiting[0] <= self.call:
            self._write_iterate(self._waiting.pop(0))

    def average(self) -> None:
        """Take the present iterate into the averages."""
        if self.segment.averages:
            self._averages.update()

    def record(self, loss: float, norm: float) -> None:
        """Take in an oracle call that was made elsewhere."""
        self.call += 1
        self.curve.add(loss, norm)

    def finish(self) -> SegmentOutcome:
        """Write what the segment wants at its end; return how it went."""
        segment, store, index = self.segment, self._store, self.segment.arm.index
        for call in self._waiting:
            self._write_iterate(call)
        # The last step is never looked at by a loss, so its point is checked here.
        self.curve.finite = self.curve.finite and finite(self.model)
        if segment.stop in segment.keep:
            self._write_iterate(segment.stop)
        if segment.keep_averages:
            for gamma in segment.averages:
                key = str(average_key(index, segment.stop, gamma))
                store.write(key, self._averages.candidate(gamma), {})
        if segment.save:
            tensors, numbers = optimizer_tensors(self.optimizer)
            tensors.update(model_tensors(self.model))
            meta: Meta = {"optimizer": numbers}
            self._averages.save(tensors, meta)
            store.write(str(state_key(index, segment.stop)), tensors, meta)
        return self.curve.outcome()

    def anneal(self, call: int) -> None:
        """Set the step size of an oracle call."""
        if self.segment.anneal is not None:
            self._set_step(self.segment.step_share(call))

    def _set_step(self, share: float) -> None:
        if (entry := self.base.group_entry) is None:
            return
        for group, full in zip(self.optimizer.param_groups, self._full, strict=True):
            if full is not None:
                group[entry] = full * share

    def _write_iterate(self, call: int) -> None:
        key = str(iterate_key(self.segment.arm.index, call))
        self._store.write(key, model_tensors(self.model), {})


class SegmentRunner(TrainingRun):
    """A run whose gradients a worker's oracle computes.

    model: one like the worker's that is moved in its place.
    skip: calls at the beginning that are already spent, and count as used.
    """

    def __init__(
        self,
        worker: "Worker",
        segment: Segment,
        task: TrainTask,
        model: nn.Module | None = None,
        skip: int = 0,
    ) -> None:
        self._worker, self._task = worker, task
        model = worker.model if model is None else model
        saved = worker.place(str(segment.state or START), model)
        self.params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        base = find_optimizer(segment.arm.base, worker.bases)
        super().__init__(segment, base, model, self.params, worker.store, saved)
        self.call = self.curve.call = segment.start + skip
        self._seen: list[tuple[Tensor, Tensor | float]] = []  # not yet in the curve
        self._lag = 1 if worker.oracle.device.type == "cpu" else LAG
        self._decoupled = all("lr" in group for group in self.optimizer.param_groups)

    def outcome(self) -> SegmentOutcome:
        """Train, write what was asked for, and return how it went."""
        while not self.over:
            self.keep_due()
            before = self.call
            self.anneal(before)
            try:
                self.optimizer.step(self._closure)  # type: ignore[arg-type]
            except _OutOfCalls:
                break
            if self.call == before:
                kind = type(self.optimizer).__name__
                raise InputError(
                    f"base: {kind}.step never called the closure that it was given, so it cannot "
                    "be run; a step must call `closure()`, which computes the gradients"
                )
            self._decay_weights()
            self.average()
        self._look()
        return self.finish()

    def _closure(self) -> Tensor:
        oracle, lanes = self._worker.oracle, self.segment.lanes
        if self.call + lanes > self.segment.stop:
            raise _OutOfCalls
        if self._task.exact:
            losses = [torch.tensor(oracle.exact(gradient=True, counted=True))]
        elif lanes == 1:
            losses = [oracle.gradient("train", self.call)]
        else:
            losses = self._lanes(self.call, lanes)
        self.call += lanes
        norm = oracle.gradient_norm() if self._task.norms else math.nan
        problem = oracle.problem
        if problem.weight_decay and not self._decoupled:
            for item in _weights(oracle.parameters):
                item.grad.add_(item.detach(), alpha=problem.weight_decay)  # type: ignore[union-attr]
        if problem.clip is not None:
            torch.nn.utils.clip_grad_norm_(oracle.parameters, problem.clip)
        self._seen.extend((loss, norm) for loss in losses)
        if len(self._seen) >= self._lag:
            self._look()
        return losses[0] if lanes == 1 else torch.stack(losses).mean()

    def _lanes(self, first: int, count: int) -> list[Tensor]:
        """Leave the mean gradient of `count` minibatches in the parameters; return their losses.

        Each gradient is computed by itself, and they are added as the leaves of one binary tree,
        so that the bits do not depend on who computed which. So are the changes of the buffers,
        with which every lane begins alike; of counters, the first lane's holds.
        """
        oracle, group = self._worker.oracle, self._worker.group
        own = range(count) if group is None else group.own(count)
        losses, tree = list[Tensor](), LaneSum(own.start)
        oracle.keep_buffers()
        for lane in own:
            losses.append(oracle.gradient("train", first + lane))
            found = [item.grad for item in oracle.parameters]
            for change in oracle.changed_buffers():
                whole = change is None or change.is_floating_point()
                found.append(change if whole or lane == 0 else None)
            tree.add(found)
            oracle.restore_buffers()
        if group is None:
            total = tree.total()
        else:
            total, losses = group.exchange(tree, losses, [*oracle.parameters, *oracle.buffers])
        means = [
            item.div_(count) if item is not None and item.is_floating_point() else item
            for item in total
        ]
        for item, gradient in zip(oracle.parameters, means, strict=False):
            item.grad = gradient
        oracle.change_buffers(means[len(oracle.parameters) :])
        return losses

    def _decay_weights(self) -> None:
        """Shrink the weights by the step size times the problem's decay."""
        decay = self._worker.oracle.problem.weight_decay
        for group in self.optimizer.param_groups if decay and self._decoupled else ():
            if not group.get("seeking"):  # a distance that is only tried is no step size
                step = group["lr"] * group.get("distance", 1.0)
                for item in _weights(group["params"]):
                    item.detach().mul_(max(0.0, 1.0 - step * decay))

    def _look(self) -> None:
        for loss, norm in self._seen:
            self.curve.add(float(loss), float(norm))
        self._seen.clear()


def _weights(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that decay: no biases, no scales of a normalization."""
    return [item for item in parameters if item.ndim > 1 and item.grad is not None]
