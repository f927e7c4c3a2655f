"""Runs one task: the only place where something is trained or sampled.

Given the same problem, seed and store, a task gives the same bits wherever and however often it
runs, since minibatches and noise are addressed and every start is a checkpoint or x0. Knows
nothing of schedules: it does what the task says and writes the checkpoints that the task names.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from torch import nn

from grasp_tune.core.checkpoint_keys import START, part_key
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
    Checkpoint,
    Store,
    Tensors,
    digest,
    load_model,
    model_tensors,
)
from grasp_tune.engine.fused import run_fused
from grasp_tune.engine.lane_group import LaneGroup, Seat
from grasp_tune.engine.oracle import LossSums, MeanGradient, Oracle
from grasp_tune.engine.probe import ProbeSums
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.segment import SegmentRunner
from grasp_tune.engine.streams import untouched_randomness
from grasp_tune.engine.threads import task_threads
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
        with self._seated(seat), untouched_randomness(), task_threads(self.model):
            if isinstance(task, ProbeTask):
                return self._probe(task)
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

    def place(self, key: str, model: nn.Module | None = None) -> Checkpoint | None:
        """Put the model, or another one like it, at x0 or at a checkpoint; returns the latter."""
        self.model.zero_grad()  # makes room for what is read
        saved = None if key == START else self._store.read(key)
        load_model(model or self.model, self.start if saved is None else saved.tensors, key)
        self.model.train()
        return saved

    # -- probe ----------------------------------------------------------------------------------

    def _probe(self, task: ProbeTask) -> ProbeOutcome:
        oracle, sums = self.oracle, ProbeSums(self.oracle.parameters, moments=task.moments)
        for part in range(task.merge):
            sums.merge(self._store.read(str(part_key(part))).tensors)
        self.place(START)
        oracle.keep_buffers()
        if task.exact:
            value = oracle.exact(gradient=True)
            sums.add_gradient(value)
            sums.add_value(value)
        else:
            for call in range(*task.gradients):
                sums.add_gradient(float(oracle.gradient("probe", call)))
                oracle.restore_buffers()
            for call in range(*task.values):
                sums.add_value(oracle.value("value", call))
                oracle.restore_buffers()
        if task.part is not None:
            self._store.write(str(part_key(task.part)), sums.tensors(), {})
        elif task.moments:
            sums.write_moments(self._store)
        return sums.outcome(task.calls, self.origin)

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
        return SampleOutcome(sample.key, mean.count, mean.norm, mean.mean_square)

    # -- train ----------------------------------------------------------------------------------

    def _train(self, task: TrainTask) -> TrainOutcome:
        if len(task.segments) == 1:
            results, note = [SegmentRunner(self, task.segments[0], task).outcome()], ""
        else:
            results, note = run_fused(self, task)
        calls = sum(item.calls for item in results)
        return TrainOutcome(calls, self.origin, tuple(results), note)

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
        pass
