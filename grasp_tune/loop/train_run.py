"""A training task that is fed from outside: one gradient at a time, where the run wants it.

`engine.Worker` asks an oracle; here the oracle is the user's own loop, which hands over one loss
and one gradient a step.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.tasks import TrainOutcome, TrainTask
from grasp_tune.engine.checkpoints import Checkpoint, load_optimizer, optimizer_tensors
from grasp_tune.engine.lane_group import LaneSum
from grasp_tune.engine.oracle import gradient_norm
from grasp_tune.engine.sampling import Call, State
from grasp_tune.engine.segment import TrainingRun
from grasp_tune.engine.step_rules import bare_step
from grasp_tune.loop.model_point import ModelPoint, clones
from grasp_tune.optimizers.registry import find_optimizer


class _Asks(Exception):
    """A step wants a gradient that is not there yet, at the point where the model now is."""


class TrainRun(TrainingRun):
    """One run from a checkpoint to the next, by any optimizer whose step calls its closure.

    before: the task that has just ended; where this one goes on with it, nothing is copied.
    """

    def __init__(self, task: TrainTask, point: ModelPoint, before: object = None) -> None:
        (segment,) = task.segments  # `check_spec` refuses batched runs
        self._task, self._point = task, point
        begun: Checkpoint | TrainingRun | None = None
        if isinstance(before, TrainRun) and before.goes_on_as(segment):
            begun = before
        else:
            saved = point.store.read(str(segment.state or START))
            point.put(saved.tensors)
            begun = saved if segment.state else None
        base = find_optimizer(segment.arm.base, {})
        point.rules.check(base)
        model, store = cast(nn.Module, point), point.store
        super().__init__(segment, base, model, point.trained, point.matrices, store, begun)
        # A step of several calls (UniXGrad) is made again from its beginning when the next
        # gradient is there: where it began, and the gradients that it has been given.
        self._several = base.calls_per_step > 1
        self._before: State = {}, {}
        self._given: list[tuple[Tensor, list[Tensor | None]]] = []
        self._sum, self._lanes = LaneSum(), 0  # of a step that is not complete
        self._prepare()

    @property
    def wants(self) -> Call | None:
        """The next call; None where the next step does not fit any more, or the run diverged."""
        step = self.base.calls_per_step * self.segment.lanes
        fits = self.call + step - len(self._given) - self._lanes <= self.segment.stop
        return ("train", self.call, True) if fits and self.curve.finite else None

    @property
    def step_size(self) -> float:
        """The number that scales the optimizer's step now, NaN where it has none."""
        group = self.optimizer.param_groups[0]
        size = group.get(self.base.group_entry or "", math.nan)
        return float(size)

    def feed(self, loss: Tensor) -> None:
        """Take one gradient; make the step that it completes."""
        self.record(loss, gradient_norm(self._point.trained) if self._task.norms else math.nan)
        if self._several:
            self._given.append((loss, clones([item.grad for item in self._point.trained])))
            if not self._replay():
                return
        else:
            if self.segment.lanes > 1 and not self._complete():
                return
            self.anneal(self.call - self.segment.lanes)
            self._point.rules.step(self.optimizer, self.base, loss)
        self._given = []
        self.averages.update()
        if self.wants:
            self._prepare()
        self._point.mark()

    def outcome(self) -> TrainOutcome:
        """How the run went; writes what the segment wants at its end."""
        found = self.finish()
        return TrainOutcome(found.calls, self._point.origin, (found,))

    def _complete(self) -> bool:
        """Add a lane; where it is the last of a step, leave their mean in the parameters."""
        self._sum.add([item.grad for item in self._point.trained])
        self._lanes = (self._lanes + 1) % self.segment.lanes
        if self._lanes:
            return False
        for item, total in zip(self._point.trained, self._sum.total(), strict=True):
            item.grad = None if total is None else total.div_(self.segment.lanes)
        self._sum = LaneSum()
        return True

    def _prepare(self) -> None:
        """Before a step: keep what is wanted here, and go to where its first gradient is wanted."""
        self.keep_due()
        if self._several and self.wants:
            tensors, numbers = optimizer_tensors(self.optimizer)
            self._before = clones(tensors | self._point.tensors()), {"optimizer": numbers}
            self._replay()

    def _replay(self) -> bool:
        """Make the step with the gradients given so far; False where it wants one more."""
        tensors, numbers = self._before
        self._point.put(tensors)
        load_optimizer(self.optimizer, clones(tensors), numbers["optimizer"], "step")
        self.anneal(self.call - len(self._given))
        left = list(self._given)

        def closure() -> Tensor:
            if not left:
                raise _Asks
            loss, grads = left.pop(0)
            for item, gradient in zip(self._point.trained, clones(grads), strict=True):
                item.grad = gradient
            self._point.rules.before(self.optimizer)
            return loss

        try:
            bare_step(self.optimizer)(closure)
        except _Asks:
            self._point.mark()
            return False
        return True

    # -- saving in the middle --------------------------------------------------------------------

    def state(self) -> State:
        """The optimizer, the averages, the curve, and a step that is half made."""
        self.look()
        tensors, optimizer = optimizer_tensors(self.optimizer)
        meta: dict[str, str | int | float] = {}
        self.averages.save(tensors, meta)
        numbers: dict[str, Any] = {
            "optimizer": optimizer,
            "averages": meta,
            "curve": self.curve.state(),
            "call": self.call,
            "waiting": list(self._waiting),
            "given": [float(loss) for loss, _ in self._given],
            "lanes": [self._lanes, *(lanes for _, lanes, _ in self._sum.parts)],
            "before": self._before[1],
        }
        tensors |= {f"before.{name}": item for name, item in self._before[0].items()}
        sums, given = [part[2] for part in self._sum.parts], [part[1] for part in self._given]
        for kind, parts in (("sum", sums), ("given", given)):
            for at, grads in enumerate(parts):
                pairs = enumerate(grads)
                tensors |= {f"{kind}.{at}.{i}": item for i, item in pairs if item is not None}
        return tensors, numbers

    def load(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        tensors = clones(dict(tensors))
        load_optimizer(self.optimizer, tensors, numbers["optimizer"], "the saved loop")
        self.averages.load(tensors, numbers["averages"], "the saved loop")
        self.curve.load(numbers["curve"])
        self.call, self._waiting = int(numbers["call"]), list(numbers["waiting"])

        def gradients(kind: str, at: int) -> list[Tensor | None]:
            return [tensors.get(f"{kind}.{at}.{i}") for i in range(len(self._point.trained))]

        self._lanes, *counts = numbers["lanes"]
        for at, lanes in enumerate(counts):
            self._sum.add_subtree(lanes, gradients("sum", at))
        losses = enumerate(numbers["given"])
        self._given = [(torch.tensor(loss), gradients("given", at)) for at, loss in losses]
        start = {n.removeprefix("before."): x for n, x in tensors.items() if n[:7] == "before."}
        self._before = start, dict(numbers["before"])
