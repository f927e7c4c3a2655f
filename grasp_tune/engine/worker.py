"""Runs one task: the only place where something is trained or sampled.

Given the same problem, seed and store, a task gives the same bits wherever and however often it
runs, since minibatches and noise are addressed and every start is a checkpoint or x0.
"""

import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from grasp_tune.core import tasks as t
from grasp_tune.core.checkpoint_keys import START
from grasp_tune.engine import checkpoints
from grasp_tune.engine.checkpoints import Checkpoint, Store
from grasp_tune.engine.fused import pays, task_threads
from grasp_tune.engine.lane_group import LaneGroup, LaneSum, Seat
from grasp_tune.engine.metrics import Validated
from grasp_tune.engine.oracle import Oracle
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.sampling import Bench, SamplingRun
from grasp_tune.engine.segment import TrainingRun
from grasp_tune.engine.step_rules import StepRules
from grasp_tune.engine.streams import untouched_randomness
from grasp_tune.optimizers.registry import Factory

SAME_MODEL = (
    "model: it returned the very module that an earlier sweep has moved, so that this one starts "
    "where that one ended; return a new one each time, such as copy.deepcopy(model)"
)
_MOVED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models of the workers so far


class Worker(Bench):
    """One problem, one process: runs tasks one after the other."""

    def __init__(
        self,
        problem: TorchProblem,
        seed: int,
        store: Store,
        bases: Mapping[str, Factory] | None = None,
        count: Callable[[int], None] = lambda calls: None,
    ) -> None:
        self.oracle = Oracle(problem, seed, count)
        self.model = self.named = self.oracle.model
        super().__init__(self.model, self.oracle.parameters, store)
        self.bases, self.held_out = dict(bases or {}), problem.validation is not None
        if self.model in _MOVED:
            warnings.warn(SAME_MODEL, stacklevel=2)
        _MOVED.add(self.model)
        self.light = pays(self.model)
        self._drops = _drops(self.model)
        decay = {"weight_decay": problem.weight_decay, "weights_only": True}
        self.rules = StepRules([{"params": self.trained, **decay}], problem.clip)
        self.start = {name: x.clone() for name, x in checkpoints.model_tensors(self.model).items()}
        self.origin = checkpoints.digest(self.start)

    def run(self, task: t.Task, seat: Seat | None = None) -> t.Outcome:
        """Return the outcome of the task; `CheckpointError`, with its `key`, for a lost input.

        seat: this worker's place among those that share the task's lanes; None: it is alone.
        """
        seated = nullcontext() if seat is None else LaneGroup(seat)
        with seated as group, untouched_randomness(), task_threads(self.model):
            if isinstance(task, t.TrainTask):
                ended = list[t.SegmentOutcome]()
                for segment in task.segments:
                    run = TrainingRun(self, task, segment)
                    if group is not None and group.seat.rank:
                        run.write = lambda key, tensors, meta: None  # the first worker's are equal
                    run.advance(partial(self._gradients, run, task.exact, group))
                    ended.append(run.finish())
                    del run  # makes room for the next one
                return t.TrainOutcome(sum(item.calls for item in ended), self.origin, tuple(ended))
            if isinstance(task, t.ProbeTask):
                self.oracle.check_validation()
            samples = SamplingRun(self, task, self.oracle.measured)
            while (call := samples.wants) is not None:
                samples.feed(self._sample(*call))
            self.model.train()
            return samples.outcome()

    def place(self, key: str) -> Checkpoint | None:
        """Put the model at x0 or at a checkpoint; returns the latter."""
        self.oracle.validated = Validated(self.oracle.problem.metric)
        self.model.zero_grad()  # makes room for what is read
        saved = None if key == START else self.store.read(key)
        checkpoints.load_model(self.model, self.start if saved is None else saved.tensors, key)
        self.model.train()
        return saved

    def tensors_at(self, key: str) -> checkpoints.Tensors:
        self.place(key)
        return checkpoints.model_tensors(self.model)

    def loss_repeats(self) -> bool:
        """Return whether a loss at x0 comes out the same twice, which takes two oracle calls."""
        found = []
        with untouched_randomness(), task_threads(self.model):
            for _ in range(2):
                self.place(START)
                found.append(repr(self.oracle.value("train", 0)))
        return found[0] == found[1]

    def _sample(self, purpose: str, call: int, gradient: bool) -> float:
        """Return one loss at the present point, its gradient left in the parameters if asked."""
        oracle = self.oracle
        if purpose == "exact":
            return oracle.exact(gradient=gradient)
        if gradient:
            return float(oracle.gradient(purpose, call))
        if purpose == "ensemble":
            # Held-out data are seen as they will be in use; training data as in training, but
            # without the noise of dropout.
            self.model.train(not (self.held_out or self._drops))
            purpose = "validation" if self.held_out else purpose
        return oracle.value(purpose, call)

    def _gradients(self, run: TrainingRun, exact: bool, group: LaneGroup | None) -> list[Tensor]:
        """Leave the mean gradient of a step's lanes in the parameters; return their losses.

        Each is a leaf of one binary tree of sums. So are the changes of the buffers, with which
        every lane begins alike; of counters, the first lane's holds.
        """
        oracle, buffers, count = self.oracle, self.buffers, run.segment.lanes
        if exact:
            return [torch.tensor(oracle.exact(gradient=True, counted=True))]
        if count == 1:
            return [oracle.gradient("train", run.call)]
        own = range(count) if group is None else group.own(count)
        losses, tree = list[Tensor](), LaneSum(own.start)
        buffers.keep()
        for lane in own:
            losses.append(oracle.gradient("train", run.call + lane))
            changes = buffers.changes(counters=lane == 0)
            tree.add([*(item.grad for item in self.trained), *changes])
            buffers.restore()
        if group is None:
            total = tree.total()
        else:
            total, losses = group.exchange(tree, losses, [*self.trained, *buffers.items])
        for mean in total:
            if mean is not None and mean.is_floating_point():
                mean.div_(count)
        for item, mean in zip(self.trained, total, strict=False):
            item.grad = mean
        buffers.change(total[len(self.trained) :])
        return losses


def _drops(model: nn.Module) -> bool:
    """Return whether dropout is all that evaluation mode ends in a model."""
    parts = list(model.modules())
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    drops = any(isinstance(part, kinds) and part.p > 0.0 for part in parts)
    return drops and not any(getattr(part, "track_running_stats", False) for part in parts)
