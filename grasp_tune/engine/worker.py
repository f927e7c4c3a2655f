"""Runs one task: the only place where something is trained or sampled.

Given the same problem, seed and store, a task gives the same bits wherever and however often it
runs, since minibatches and noise are addressed and every start is a checkpoint or x0. Knows
nothing of schedules: it does what the task says and writes the checkpoints that the task names.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import nn

from grasp_tune.core.checkpoint_keys import MOMENTS, START, part_key
from grasp_tune.core.tasks import (
    Outcome,
    ProbeOutcome,
    ProbeTask,
    Sample,
    SampleOutcome,
    ScoreOutcome,
    ScoreTask,
    Task,
    TrainOutcome,
    TrainTask,
)
from grasp_tune.engine.checkpoints import (
    Tensors,
    digest,
    load_model,
    model_tensors,
)
from grasp_tune.engine.fused import run_fused
from grasp_tune.engine.lane_group import LaneGroup, Seat
from grasp_tune.engine.oracle import LossSums, MeanGradient, Oracle
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.segment import SegmentRunner
from grasp_tune.engine.store import Checkpoint, Store
from grasp_tune.engine.streams import untouched_randomness
from grasp_tune.engine.threads import task_threads
from grasp_tune.optimizers.preconditioner import Coordinates, typical_peak
from grasp_tune.optimizers.registry import Factory

logger = logging.getLogger(__name__)


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
        self.origin = digest(self.start)
        self.group: LaneGroup | None = None  # those with whom the lanes of a step are shared
        self.obstacles: set[str] = set()  # reasons against batching that the log has seen

    def run(self, task: Task, seat: Seat | None = None) -> Outcome:
        """Return the outcome of the task.

        seat: this worker's place among those that share the task's lanes; None: it is alone.

        Raises `CheckpointError`, with the `key` of the checkpoint, where an input cannot be read;
        the search then has it made again.
        """
        if seat is not None and list(self.model.buffers()):
            # Each minibatch changes the buffers (BatchNorm), so that one worker must see them all.
            if seat.rank:
                return TrainOutcome(0, self.origin, ())
            seat = None
        with self._seated(seat), untouched_randomness(), task_threads(self.model):
            if isinstance(task, ProbeTask):
                return self._merge(task) if task.merge else self._probe(task)
            if isinstance(task, ScoreTask):
                return self._score(task)
            return self._train(task)

    @contextlib.contextmanager
    def _seated(self, seat: Seat | None) -> Iterator[None]:
        """Share the lanes with the other workers of a group while the block runs."""
        if seat is None:
            yield
            return
        with LaneGroup(seat) as self.group:
            try:
                yield
            finally:
                self.group = None

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
        values, losses = LossSums(), LossSums()
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
            for call in range(*task.values):
                values.add(oracle.value("value", call))
                oracle.restore_buffers()
        if task.part is not None:
            self._write_part(task.part, mean, values, losses)
        elif task.moments:
            self._write_moments(mean)
        return self._probe_outcome(task.calls, mean, values, losses)

    def _probe_outcome(
        self, calls: int, mean: MeanGradient, values: LossSums, losses: LossSums
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

    def _write_part(
        self, part: int, mean: MeanGradient, values: LossSums, losses: LossSums
    ) -> None:
        tensors = {f"sum.{at}": item for at, item in enumerate(mean.sums)}
        tensors.update({f"peak.{at}": item for at, item in enumerate(mean.peaks or [])})
        numbers = [mean.count, mean.square, *values.numbers, *losses.numbers]
        tensors["numbers"] = torch.tensor(numbers, dtype=torch.float64)
        self._store.write(str(part_key(part)), tensors, {})

    def _write_moments(self, mean: MeanGradient) -> None:
        assert mean.peaks is not None
        peaks = {f"peak.{at}": item for at, item in enumerate(mean.peaks)}
        self._store.write(str(MOMENTS), peaks, {"typical": typical_peak(mean.peaks)})

    def _merge(self, task: ProbeTask) -> ProbeOutcome:
        mean = MeanGradient(self.oracle.parameters, moments=task.moments)
        values, losses = LossSums(), LossSums()
        for part in range(task.merge):
            tensors = self._store.read(str(part_key(part))).tensors
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
            held_out = oracle.problem.validation is not None
            self.model.train(not held_out)
            sums = LossSums()
            for call in range(sample.start, sample.stop):
                sums.add(oracle.value("validation" if held_out else "ensemble", call))
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
        if len(task.segments) == 1:
            results, note = [SegmentRunner(self, task.segments[0], task).outcome()], ""
        else:
            results, note = run_fused(self, task)
        calls = sum(item.calls for item in results)
        return TrainOutcome(calls, self.origin, tuple(results), note)

    def coordinates(self, power: float) -> Coordinates | None:
        """Return what the probe saw of each coordinate for a run, None where it does not matter."""
        if not power:
            return None
        saved = self._store.read(str(MOMENTS))
        peaks = [saved.tensors[f"peak.{at}"] for at in range(len(self.oracle.parameters))]
        moved = [item.to(self.oracle.device) for item in peaks]
        return Coordinates(power, moved, float(saved.meta["typical"]))

    @property
    def store(self) -> Store:
        """Where checkpoints go; of a group, the first worker alone writes them."""
        if self.group is not None and self.group.seat.rank:
            return cast(Store, _Unwritten(self._store))
        return self._store


class _Unwritten:
    """A store that can be read, and whose writing is left to another worker."""

    def __init__(self, store: Store) -> None:
        self.read = store.read

    def write(self, key: str, tensors: Tensors, meta: object) -> None:
        """Do nothing."""
