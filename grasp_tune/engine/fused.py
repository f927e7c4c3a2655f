"""Runs of a small model as one batched computation.

Many small steps cost mostly overhead; one step of all runs together costs little more than one.
All runs see the same minibatches, so a batch is read once. Whether it pays is a rule of the
model's shape, so that every process, and a resumed run, decides alike. A model that cannot be
batched falls back to one run after the other, with a note in the result; that too is a property of
the model, so that it happens in every process. Any other error is the user's, and is raised.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grasp_tune.core.checkpoint_keys import START, average_key, iterate_key, state_key
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.tasks import Segment, SegmentOutcome, TrainTask
from grasp_tune.engine.averaging import AverageState, PolynomialAverage
from grasp_tune.engine.checkpoints import (
    Meta,
    Tensors,
    load_model,
    load_optimizer,
    optimizer_tensors,
)
from grasp_tune.engine.curves import Curve
from grasp_tune.engine.fused_loss import BatchedLoss
from grasp_tune.engine.fused_rules import Rule, Stack, rule_for, run_norms
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.optimizers.registry import find_optimizer

if TYPE_CHECKING:
    from grasp_tune.engine.worker import Worker

logger = logging.getLogger(__name__)

WIDTH = 64  # runs in one batch at most
# Parameters. Measured on a CPU core with batches of 8 to 256 rows: 8 runs of such a model gain at
# least a third, 32 a half; at 50,000 little is left, at 100,000 a batch is slower.
LARGEST = 40_000
# Words in the errors that torch raises where a computation cannot be batched.
_LIMITS = ("vmap", "functorch", "Batching rule", "BatchedTensor", "data pointer", "setup_context")
_LAYERS = (
    nn.Linear,
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.LeakyReLU,
    nn.ELU,
    nn.Softplus,
    nn.LayerNorm,
    nn.LogSoftmax,
)


def fusion_width(
    problem: TorchProblem,
    method: Method | None,
    schedule: object,
    fused: bool | Literal["auto"],
    seed: int,
) -> int:
    """Return how many runs to batch into one computation, 0 for none."""
    if fused not in (True, False, "auto"):
        raise InputError(f"fused: got {fused!r}, expected True, False or 'auto'")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed: got {seed!r}, expected a whole number")
    if not problem.plain_steps:
        if fused is True:
            raise InputError("fused: got True with weight_decay or clip, expected False or 'auto'")
        return 0
    if fused == "auto":
        own = callable(getattr(method, "base", None))  # there is no batched form of it
        fused = not own and pays(problem.build(seed))
    return WIDTH if fused else 0


def pays(model: nn.Module) -> bool:
    """Return whether batching runs of this model is faster than one after the other.

    A rule of the shape: only layers that become one matrix product, no buffers, few parameters.
    """
    leaves = [item for item in model.modules() if not list(item.children())]
    size = sum(item.numel() for item in model.parameters())
    on_cpu = all(item.device.type == "cpu" for item in model.parameters())
    trains = all(item.requires_grad for item in model.parameters())
    known = all(isinstance(item, _LAYERS) for item in leaves)
    return known and trains and on_cpu and size <= LARGEST and not list(model.buffers())


def run_fused(worker: "Worker", task: TrainTask) -> tuple[list[SegmentOutcome], str]:
    """Return the outcome of each segment, all runs advancing together, and a note for people."""
    reason, lost = _obstacle(worker, task), 0
    if reason is None:
        try:
            return _Batch(worker, task).outcomes(), ""
        except _CannotBatch as error:
            reason, lost = str(error), error.calls
    if reason not in worker.obstacles:  # one line, not one a task
        worker.obstacles.add(reason)
        logger.info("%s: runs one by one, not batched: %s", task.id, reason)
    # The loss has seen a minibatch for nothing. The first run does without it, so that no more
    # calls are made than the task has, and whoever runs the task loses the same one.
    from grasp_tune.engine.segment import SegmentRunner  # which steps as this file says

    skips = [lost, *([0] * (len(task.segments) - 1))]
    pairs = zip(task.segments, skips, strict=True)
    outcomes = [SegmentRunner(worker, segment, task, skip).outcome() for segment, skip in pairs]
    note = f"the loss cannot be batched ({reason}): pass fused=False to save a call a task"
    return outcomes, note if lost else ""


class _CannotBatch(Exception):
    """The model does things that a batch of models cannot; `calls` were spent to find out."""

    def __init__(self, reason: str, calls: int = 0) -> None:
        super().__init__(reason)
        self.calls = calls


def _obstacle(worker: "Worker", task: TrainTask) -> str | None:
    first = task.segments[0]
    if any(s.start != first.start or s.averages != first.averages for s in task.segments):
        return "its runs are at different places"
    if len({segment.arm.base for segment in task.segments}) > 1:
        return "its runs have different base optimizers"
    if any(segment.lanes > 1 for segment in task.segments):
        return "its steps average several minibatches"
    if task.exact:
        return "exact gradients go through the whole data set"
    if list(worker.model.buffers()):
        return "the model has buffers"
    return None


class _Batch:
    """The runs of one task, stacked."""

    def __init__(self, worker: "Worker", task: TrainTask) -> None:
        self._worker, self._task = worker, task
        self._base = find_optimizer(task.segments[0].arm.base, worker.bases)
        parameters = list(worker.model.named_parameters())
        self._names = [name for name, item in parameters if item.requires_grad]
        # What is not trained is the same in all runs; checkpoints hold it nevertheless.
        self._frozen: Tensors = {
            f"param.{name}": worker.start[f"param.{name}"]
            for name, item in parameters
            if not item.requires_grad
        }
        self._segments = list(task.segments)
        self._curves = [Curve(segment) for segment in task.segments]
        self._rows = list(range(len(task.segments)))  # which segment each row of the stack is
        self._waiting = [sorted({c for c in s.keep if c < s.stop}) for s in task.segments]
        self._anneals = any(segment.anneal is not None for segment in task.segments)
        self._points: Stack = []
        self._averages: dict[float, PolynomialAverage] = {}
        values = torch.tensor([s.arm.value for s in task.segments], dtype=torch.float64)
        optimizers = self._load()
        rule = rule_for(self._base, values, optimizers)
        if rule is None:
            raise _CannotBatch(f"there is no batched {self._base.name} for runs like these")
        self._rule: Rule = rule
        self._loss = BatchedLoss(worker.model, worker.oracle.problem.loss, self._names)

    # -- in and out -----------------------------------------------------------------------------

    def _load(self) -> list[Optimizer]:
        """Read every run's state; return an optimizer at each."""
        worker, optimizers, starts = self._worker, [], []
        averages: dict[float, list[AverageState]] = {g: [] for g in self._segments[0].averages}
        for segment in self._segments:
            saved = worker.place(str(segment.state or START))
            starts.append([item.detach().clone() for item in worker.oracle.parameters])
            optimizer = self._optimizer(segment, starts[-1])
            if saved is not None:
                numbers = str(saved.meta["optimizer"])
                load_optimizer(optimizer, saved.tensors, numbers, str(segment.state))
            for gamma, states in averages.items():
                # 0 too where the run did not carry the average so far: it begins here.
                steps = 0 if saved is None else int(saved.meta.get(f"average.{gamma:g}", 0))
                names = [f"average.{gamma:g}.param.{n}" for n in self._names] if steps else []
                tensors = {} if saved is None else saved.tensors
                states.append(AverageState(tuple(tensors[n] for n in names), steps))
            optimizers.append(optimizer)
        self._points = [torch.stack(list(column)) for column in zip(*starts, strict=True)]
        for gamma, states in averages.items():
            if len({state.steps for state in states}) > 1:
                raise _CannotBatch("its runs have averages of different length")
            stacked = zip(*(state.tensors for state in states), strict=True)
            tensors_of = tuple(torch.stack(list(column)) for column in stacked)
            state = AverageState(tensors_of, states[0].steps)
            self._averages[gamma] = PolynomialAverage(gamma, state)
        return optimizers

    def _optimizer(self, segment: Segment, points: list[Tensor]) -> Optimizer:
        params: list[Tensor] = [nn.Parameter(item) for item in points]
        arm = segment.arm
        made: Optimizer = self._base.build(
            params, dict(arm.values), self._worker.coordinates(arm.power)
        )
        return made

    def _point(self, row: int) -> Tensors:
        return self._frozen | {f"param.{n}": item[row] for n, item in self._pairs(self._points)}

    def _pairs(self, stack: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        return zip(self._names, stack, strict=True)

    def _write_iterate(self, row: int, call: int) -> None:
        key = str(iterate_key(self._segments[self._rows[row]].arm.index, call))
        self._worker.store.write(key, self._point(row), {})

    def _average(self, row: int, gamma: float) -> Tensors:
        average = self._averages[gamma]
        stack = average.tensors if average.steps else tuple(self._points)
        pairs = zip(self._names, stack, self._points, strict=True)
        means = {f"param.{name}": item[row].to(like.dtype) for name, item, like in pairs}
        return self._frozen | means

    def _write_end(self, row: int) -> None:
        """Write what the segment wants at its end."""
        segment, store = self._segments[self._rows[row]], self._worker.store
        curve, index = self._curves[self._rows[row]], segment.arm.index
        finite = all(bool(torch.isfinite(item[row]).all()) for item in self._points)
        curve.finite = curve.finite and finite
        if segment.stop in segment.keep:
            self._write_iterate(row, segment.stop)
        if segment.keep_averages:
            for gamma in segment.averages:
                key = str(average_key(index, segment.stop, gamma))
                store.write(key, self._average(row, gamma), {})
        if not segment.save:
            return
        tensors = self._point(row)
        optimizer = self._optimizer(segment, [item[row].clone() for item in self._points])
        self._rule.export(row, optimizer)
        state, numbers = optimizer_tensors(optimizer)
        tensors.update(state)
        meta: Meta = {"optimizer": numbers}
        for gamma, average in self._averages.items():
            meta[f"average.{gamma:g}"] = average.steps
            if average.steps:
                found = {f"param.{n}": item[row] for n, item in self._pairs(average.tensors)}
                for name, item in (self._frozen | found).items():
                    wide = torch.promote_types(item.dtype, torch.float32)
                    tensors[f"average.{gamma:g}.{name}"] = item.to(wide)
        store.write(str(state_key(index, segment.stop)), tensors, meta)

    # -- running --------------------------------------------------------------------------------

    def outcomes(self) -> list[SegmentOutcome]:
        """Advance until every run has had its calls."""
        call = self._segments[0].start
        whole = True  # no step is half done
        while self._rows:
            if whole:
                self._retire(call)
                if not self._rows:
                    break
                self._rule.begin(self._points)
            whole = self._call(call)
            call += 1
            if whole:
                for average in self._averages.values():
                    average.update(self._points)
        load_model(self._worker.model, self._worker.start, START)
        return [curve.outcome() for curve in self._curves]

    def _retire(self, call: int) -> None:
        """Keep what is wanted at this call, and drop the runs that are at their end."""
        ended = []
        for row, at in enumerate(self._rows):
            segment, curve = self._segments[at], self._curves[at]
            over = call + self._rule.calls_per_step > segment.stop or not curve.finite
            while (waiting := self._waiting[at]) and (over or waiting[0] <= call):
                self._write_iterate(row, waiting.pop(0))
            if over:
                self._write_end(row)
                ended.append(row)
        if ended:
            gone = set(ended)
            self._select([row for row in range(len(self._rows)) if row not in gone])

    def _select(self, rows: list[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long)
        self._points = [item[index] for item in self._points]
        self._rule.select(index)
        for gamma, average in self._averages.items():
            if average.steps:
                picked = tuple(item[index] for item in average.tensors)
                self._averages[gamma] = PolynomialAverage(
                    gamma, AverageState(picked, average.steps)
                )

    def _call(self, call: int) -> bool:
        """One oracle call of every run; returns whether it completes a step."""
        oracle = self._worker.oracle
        batch = oracle.stream("train").batch(call)
        oracle.seed_noise("train", call)
        try:
            gradients, losses = self._loss(self._points, batch)
        except (RuntimeError, NotImplementedError) as error:
            if not any(word in str(error) for word in _LIMITS):
                raise
            reason = str(error).splitlines()[0]
            if call > self._segments[0].start:
                raise SearchError(
                    f"{self._task.id}: the loss could be batched before and cannot at call {call} "
                    f"({reason}); pass fused=False"
                ) from error
            oracle.count(1)
            raise _CannotBatch(reason, calls=1) from error
        oracle.count(len(self._rows))
        norms = run_norms(gradients) if self._task.norms else None
        for row, (at, loss) in enumerate(zip(self._rows, losses.tolist(), strict=True)):
            self._curves[at].add(loss, math.nan if norms is None else float(norms[row]))
        with torch.no_grad():
            return self._rule.feed(self._points, gradients, self._shares(call))

    def _shares(self, call: int) -> Tensor:
        """Return each run's share of its full step at this call."""
        if not self._anneals:
            return torch.ones(len(self._rows), dtype=torch.float64)
        shares = [annealed(self._segments[at], call) for at in self._rows]
        return torch.tensor(shares, dtype=torch.float64)


def annealed(segment: Segment, call: int) -> float:
    """Return the share of the full step at a call."""
    return segment.step_share(call)
