"""Runs one task: the only place where something is trained or sampled.

Given the same problem, seed and store, a task gives the same bits wherever and however often it
runs, since minibatches and noise are addressed and every start is a checkpoint or x0. Knows
nothing of schedules: it does what the task says and writes the checkpoints that the task names.
"""

import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from grasp_tune.method.errors import InputError
from grasp_tune.method.tasks import (
    MOMENTS,
    START,
    Outcome,
    ProbeOutcome,
    ProbeTask,
    Sample,
    SampleOutcome,
    ScoreOutcome,
    ScoreTask,
    Segment,
    SegmentOutcome,
    Task,
    TrainOutcome,
    TrainTask,
    average_key,
    iterate_key,
    part_key,
    state_key,
)
from grasp_tune.training.bases import Factory, find_base
from grasp_tune.training.curves import Curve
from grasp_tune.training.fused import annealed, run_fused
from grasp_tune.training.oracle import MeanGradient, Oracle
from grasp_tune.training.preconditioner import Coordinates, typical_peak
from grasp_tune.training.problem import TorchProblem
from grasp_tune.training.snapshots import (
    Averages,
    Meta,
    Tensors,
    digest,
    finite,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from grasp_tune.training.store import Checkpoint, Store

logger = logging.getLogger(__name__)


class _OutOfCalls(Exception):
    """A closure asked for more oracle calls than the stretch has."""


class Worker:
    """One problem, one process: runs tasks one after the other."""

    def __init__(
        self,
        problem: TorchProblem,
        seed: int,
        store: Store,
        bases: Mapping[str, Factory] | None = None,
        count: Callable[[int], None] = lambda calls: None,
    ) -> None:
        self._store = store
        self.bases = dict(bases or {})
        self.oracle = Oracle(problem, seed, count)
        self.model: nn.Module = self.oracle.model
        self.start: Tensors = {
            name: item.clone() for name, item in model_tensors(self.model).items()
        }
        self.origin = digest(self.model)
        self.obstacles: set[str] = set()  # reasons against batching that the log has seen

    def run(self, task: Task) -> Outcome:
        """Return the outcome of the task.

        Raises `CheckpointError`, with the `key` of the checkpoint, where an input cannot be read;
        the search then has it made again.
        """
        if isinstance(task, ProbeTask):
            return self._merge(task) if task.merge else self._probe(task)
        if isinstance(task, ScoreTask):
            return self._score(task)
        return self._train(task)

    def place(self, key: str) -> Checkpoint | None:
        """Put the model at x0 or at a checkpoint; returns the latter."""
        saved = None if key == START else self._store.read(key)
        load_model(self.model, self.start if saved is None else saved.tensors, key)
        self.model.train()
        return saved

    # -- probe ----------------------------------------------------------------------------------

    def _probe(self, task: ProbeTask) -> ProbeOutcome:
        oracle = self.oracle
        self.place(START)
        oracle.keep_buffers()
        mean = MeanGradient(oracle.parameters, moments=task.moments)
        values, losses = _Sums(), _Sums()
        if task.exact:
            value = oracle.exact(gradient=True)
            mean.add()
            losses.add(value)
            values.add(value)
        else:
            for call in range(*task.gradients):
                losses.add(float(oracle.gradient("probe", call)))
                mean.add()
                oracle.restore_buffers()
            # Values come after the gradients in the same stream: no minibatch serves twice.
            first = task.gradients[1] if task.part is None else 2**40
            for call in range(*task.values):
                values.add(oracle.value("probe", first + call))
                oracle.restore_buffers()
        if task.part is not None:
            self._write_part(task.part, mean, values, losses)
        elif task.moments:
            self._write_moments(mean)
        return self._probe_outcome(task.calls, mean, values, losses)

    def _probe_outcome(
        self, calls: int, mean: MeanGradient, values: "_Sums", losses: "_Sums"
    ) -> ProbeOutcome:
        # Where no values were asked for, those that came with the gradients cost nothing.
        seen = values if values.count else losses
        return ProbeOutcome(
            calls=calls,
            origin=self.origin,
            gradients=mean.count,
            gradient_norm=mean.norm,
            gradient_square=mean.square / mean.count if mean.count else math.nan,
            parameters=sum(item.numel() for item in self.oracle.parameters),
            values=seen.count,
            value=seen.mean,
            value_square=seen.mean_square,
        )

    def _write_part(self, part: int, mean: MeanGradient, values: "_Sums", losses: "_Sums") -> None:
        tensors = {f"sum.{at}": item for at, item in enumerate(mean.sums)}
        tensors.update({f"peak.{at}": item for at, item in enumerate(mean.peaks or [])})
        numbers = [mean.count, mean.square, *values.numbers, *losses.numbers]
        tensors["numbers"] = torch.tensor(numbers, dtype=torch.float64)
        self._store.write(part_key(part), tensors, {})

    def _write_moments(self, mean: MeanGradient) -> None:
        assert mean.peaks is not None
        peaks = {f"peak.{at}": item for at, item in enumerate(mean.peaks)}
        self._store.write(MOMENTS, peaks, {"typical": typical_peak(mean.peaks)})

    def _merge(self, task: ProbeTask) -> ProbeOutcome:
        mean = MeanGradient(self.oracle.parameters, moments=task.moments)
        values, losses = _Sums(), _Sums()
        for part in range(task.merge):
            tensors = self._store.read(part_key(part)).tensors
            numbers = [float(item) for item in tensors["numbers"]]
            mean.count += int(numbers[0])
            mean.square += numbers[1]
            values.merge(numbers[2:5])
            losses.merge(numbers[5:8])
            for at, total in enumerate(mean.sums):
                total.add_(tensors[f"sum.{at}"].to(total.device))
            for at, peak in enumerate(mean.peaks or []):
                torch.maximum(peak, tensors[f"peak.{at}"].to(peak.device), out=peak)
        if task.moments:
            self._write_moments(mean)
        return self._probe_outcome(0, mean, values, losses)

    # -- score ----------------------------------------------------------------------------------

    def _score(self, task: ScoreTask) -> ScoreOutcome:
        calls, results = 0, []
        for sample in task.samples:
            self.place(sample.key)
            result = self._sample(task, sample)
            calls += 0 if task.exact else result.count
            results.append(result)
        return ScoreOutcome(calls, self.origin, tuple(results))

    def _sample(self, task: ScoreTask, sample: Sample) -> SampleOutcome:
        oracle = self.oracle
        oracle.keep_buffers()
        if task.exact:
            value = oracle.exact(gradient=False)
            return SampleOutcome(sample.key, 1, value, value * value)
        if task.by == "value":
            # Held-out data are seen as they will be in use; training data as in training.
            self.model.train(oracle.problem.validation is None)
            sums = _Sums()
            for call in range(sample.start, sample.stop):
                sums.add(oracle.value("ensemble", call))
                oracle.restore_buffers()
            self.model.train()
            return SampleOutcome(sample.key, sums.count, sums.mean, sums.mean_square)
        mean = MeanGradient(oracle.parameters)
        for call in range(sample.start, sample.stop):
            oracle.gradient("ensemble", call)
            mean.add()
            oracle.restore_buffers()
        square = mean.square / mean.count if mean.count else math.nan
        return SampleOutcome(sample.key, mean.count, mean.norm, square)

    # -- train ----------------------------------------------------------------------------------

    def _train(self, task: TrainTask) -> TrainOutcome:
        results = []
        if len(task.segments) > 1:
            results = run_fused(self, task)
        else:
            results = [self.run_segment(task.segments[0], task)]
        return TrainOutcome(sum(item.calls for item in results), self.origin, tuple(results))

    def run_segment(self, segment: Segment, task: TrainTask, skip: int = 0) -> SegmentOutcome:
        """Train one run over one stretch, by the ordinary loop of the framework.

        `skip` calls at its beginning are already spent, and count as used.
        """
        return _Run(self, segment, task, skip).outcome()

    def coordinates(self, power: float) -> Coordinates | None:
        """Return what the probe saw of each coordinate for a run, None where it does not matter."""
        if not power:
            return None
        saved = self._store.read(MOMENTS)
        peaks = [saved.tensors[f"peak.{at}"] for at in range(len(self.oracle.parameters))]
        moved = [item.to(self.oracle.device) for item in peaks]
        return Coordinates(power, moved, float(saved.meta["typical"]))

    @property
    def store(self) -> Store:
        """Where checkpoints go."""
        return self._store


class _Run:
    """One stretch of one run: model, optimizer and averages from a checkpoint to the next."""

    def __init__(self, worker: Worker, segment: Segment, task: TrainTask, skip: int) -> None:
        self._worker, self._segment, self._task = worker, segment, task
        self._base = find_base(segment.arm.base, worker.bases)
        self._curve = Curve(segment)
        self._curve.call += skip
        origin = segment.state or START
        saved = worker.place(origin)
        arm = segment.arm
        params: list[Tensor] = list(worker.oracle.parameters)
        self._optimizer = self._base.make(params, arm.value, worker.coordinates(arm.power))
        self._knobs = [group.get(self._base.knob or "") for group in self._optimizer.param_groups]
        self._averages = Averages(worker.model, segment.averages)
        if saved is not None:
            load_optimizer(self._optimizer, saved.tensors, str(saved.meta["optimizer"]), origin)
            self._averages.load(saved.tensors, saved.meta, origin)
            self._set_knob(1.0)  # the saved one may have been annealed, or another run's

    def outcome(self) -> SegmentOutcome:
        """Train, write what was asked for, and return how it went."""
        segment, curve = self._segment, self._curve
        waiting = sorted({call for call in segment.keep if call < segment.stop})
        while curve.finite and curve.call + self._base.calls_per_step <= segment.stop:
            while waiting and waiting[0] <= curve.call:
                self._write_iterate(waiting.pop(0))
            self._anneal()
            try:
                self._optimizer.step(self._closure)  # type: ignore[arg-type]
            except _OutOfCalls:
                break
            if segment.averages:
                self._averages.update()
        for call in waiting:
            self._write_iterate(call)
        # The last step is never looked at by a loss, so its point is checked here.
        curve.finite = curve.finite and finite(self._worker.model)
        if segment.stop in segment.keep:
            self._write_iterate(segment.stop)
        if segment.keep_averages:
            for gamma in segment.averages:
                key = average_key(segment.arm.index, segment.stop, gamma)
                self._worker.store.write(key, self._averages.candidate(gamma), {})
        if segment.save:
            self._write_state()
        return curve.outcome()

    def _closure(self) -> Tensor:
        curve, oracle = self._curve, self._worker.oracle
        if curve.call >= self._segment.stop:
            raise _OutOfCalls
        if self._task.exact:
            loss = torch.tensor(oracle.exact(gradient=True, counted=True))
        else:
            loss = oracle.gradient("train", curve.call)
        norm = oracle.gradient_norm() if self._task.norms else math.nan
        curve.add(float(loss), norm)
        return loss

    def _anneal(self) -> None:
        if self._segment.anneal is None or self._base.knob is None:
            return
        self._set_knob(annealed(self._segment, self._curve.call))

    def _set_knob(self, share: float) -> None:
        if self._base.knob is None:
            return
        for group, knob in zip(self._optimizer.param_groups, self._knobs, strict=True):
            if knob is not None:
                group[self._base.knob] = knob * share

    def _write_iterate(self, call: int) -> None:
        key = iterate_key(self._segment.arm.index, call)
        self._worker.store.write(key, model_tensors(self._worker.model), {})

    def _write_state(self) -> None:
        tensors, numbers = optimizer_tensors(self._optimizer)
        tensors.update(model_tensors(self._worker.model))
        meta: Meta = {"optimizer": numbers}
        self._averages.save(tensors, meta)
        self._worker.store.write(
            state_key(self._segment.arm.index, self._segment.stop), tensors, meta
        )


class _Sums:
    """Running sums of losses."""

    def __init__(self) -> None:
        self.count, self._sum, self._square = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self._sum += value
        self._square += value * value

    def merge(self, numbers: list[float]) -> None:
        if len(numbers) != 3:
            raise InputError(f"expected three sums, got {len(numbers)}")
        self.count += int(numbers[0])
        self._sum += numbers[1]
        self._square += numbers[2]

    @property
    def numbers(self) -> list[float]:
        return [float(self.count), self._sum, self._square]

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else math.nan

    @property
    def mean_square(self) -> float:
        return self._square / self.count if self.count else math.nan
