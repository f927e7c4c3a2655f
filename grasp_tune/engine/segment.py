"""One segment of one run by the ordinary loop of the framework."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from grasp_tune.core.checkpoint_keys import START, average_key, iterate_key, state_key
from grasp_tune.core.errors import InputError
from grasp_tune.core.tasks import Segment, SegmentOutcome, TrainTask
from grasp_tune.engine.checkpoints import (
    Averages,
    Meta,
    finite,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from grasp_tune.engine.curves import Curve
from grasp_tune.engine.fused import annealed
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.optimizers.registry import find_optimizer

if TYPE_CHECKING:
    from grasp_tune.engine.worker import Worker

LAG = 16  # losses that may be under way on a GPU: looking at each would make it wait


class _OutOfCalls(Exception):
    """A closure asked for more oracle calls than the segment has."""


class SegmentRunner:
    """Model, optimizer and averages, from a checkpoint to the next.

    skip: calls at its beginning that are already spent, and count as used.
    """

    def __init__(self, worker: "Worker", segment: Segment, task: TrainTask, skip: int = 0) -> None:
        self._worker, self._segment, self._task = worker, segment, task
        self._base = find_optimizer(segment.arm.base, worker.bases)
        self._curve = Curve(segment)
        self._curve.call += skip
        self._call = self._curve.call
        self._seen: list[tuple[Tensor, Tensor | float]] = []  # not yet in the curve
        self._lag = 1 if worker.oracle.device.type == "cpu" else LAG
        origin = str(segment.state or START)
        saved = worker.place(origin)
        arm = segment.arm
        params: list[Tensor] = list(worker.oracle.parameters)
        self._optimizer: Optimizer = self._base.build(
            params, dict(arm.values), worker.coordinates(arm.power)
        )
        self._full = [
            group.get(self._base.group_entry or "") for group in self._optimizer.param_groups
        ]
        self._decoupled = all("lr" in group for group in self._optimizer.param_groups)
        self._averages = Averages(worker.model, segment.averages)
        if saved is not None:
            load_optimizer(self._optimizer, saved.tensors, str(saved.meta["optimizer"]), origin)
            self._averages.load(saved.tensors, saved.meta, origin)
            self._set_step(1.0)  # the saved one may have been annealed, or another run's

    def outcome(self) -> SegmentOutcome:
        """Train, write what was asked for, and return how it went."""
        segment, curve = self._segment, self._curve
        waiting = sorted({call for call in segment.keep if call < segment.stop})
        step = self._base.calls_per_step * segment.lanes
        while curve.finite and self._call + step <= segment.stop:
            while waiting and waiting[0] <= self._call:
                self._write_iterate(waiting.pop(0))
            before = self._call
            if segment.anneal is not None:
                self._set_step(annealed(segment, before))
            try:
                self._optimizer.step(self._closure)  # type: ignore[arg-type]
            except _OutOfCalls:
                break
            if self._call == before:
                kind = type(self._optimizer).__name__
                raise InputError(
                    f"base: {kind}.step never called the closure that it was given, so it cannot "
                    "be run; a step must call `closure()`, which computes the gradients"
                )
            self._decay_weights()
            if segment.averages:
                self._averages.update()
        self._look()
        for call in waiting:
            self._write_iterate(call)
        # The last step is never looked at by a loss, so its point is checked here.
        curve.finite = curve.finite and finite(self._worker.model)
        if segment.stop in segment.keep:
            self._write_iterate(segment.stop)
        if segment.keep_averages:
            for gamma in segment.averages:
                key = str(average_key(segment.arm.index, segment.stop, gamma))
                self._worker.store.write(key, self._averages.candidate(gamma), {})
        if segment.save:
            self._write_state()
        return curve.outcome()

    def _closure(self) -> Tensor:
        oracle, lanes = self._worker.oracle, self._segment.lanes
        if self._call + lanes > self._segment.stop:
            raise _OutOfCalls
        if self._task.exact:
            losses = [torch.tensor(oracle.exact(gradient=True, counted=True))]
        elif lanes == 1:
            losses = [oracle.gradient("train", self._call)]
        else:
            losses = self._lanes(self._call, lanes)
        self._call += lanes
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

    def _decay_weights(self) -> None:
        """Shrink the weights by the step size times the problem's decay."""
        decay = self._worker.oracle.problem.weight_decay
        for group in self._optimizer.param_groups if decay and self._decoupled else ():
            if not group.get("seeking"):  # a distance that is only tried is no step size
                step = group["lr"] * group.get("distance", 1.0)
                for item in _weights(group["params"]):
                    item.detach().mul_(max(0.0, 1.0 - step * decay))

    def _lanes(self, first: int, count: int) -> list[Tensor]:
        """Leave the mean gradient of `count` minibatches in the parameters; return their losses.

        Each gradient is computed by itself, and they are added as the leaves of one binary tree,
        so that the bits do not depend on who computed which.
        """
        oracle, group = self._worker.oracle, self._worker.group
        losses, tree = list[Tensor](), LaneSum()
        for lane in range(count) if group is None else group.own(count):
            losses.append(oracle.gradient("train", first + lane))
            tree.add([item.grad for item in oracle.parameters])
        total = tree.total()
        if group is not None:
            total, losses = group.exchange(total, losses)
        for item, gradient in zip(oracle.parameters, total, strict=True):
            item.grad = None if gradient is None else gradient.div_(count)
        return losses

    def _look(self) -> None:
        for loss, norm in self._seen:
            self._curve.add(float(loss), float(norm))
        self._seen.clear()

    def _set_step(self, share: float) -> None:
        if self._base.group_entry is None:
            return
        for group, full in zip(self._optimizer.param_groups, self._full, strict=True):
            if full is not None:
                group[self._base.group_entry] = full * share

    def _write_iterate(self, call: int) -> None:
        key = str(iterate_key(self._segment.arm.index, call))
        self._worker.store.write(key, model_tensors(self._worker.model), {})

    def _write_state(self) -> None:
        tensors, numbers = optimizer_tensors(self._optimizer)
        tensors.update(model_tensors(self._worker.model))
        meta: Meta = {"optimizer": numbers}
        self._averages.save(tensors, meta)
        key = str(state_key(self._segment.arm.index, self._segment.stop))
        self._worker.store.write(key, tensors, meta)


def _weights(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that decay: no biases, no scales of a normalization."""
    return [item for item in parameters if item.ndim > 1 and item.grad is not None]
