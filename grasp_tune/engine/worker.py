"""Runs one task: the only place where something is trained or sampled.

Given the same problem, seed and store, a task gives the same bits wherever and however often it
runs, since minibatches and noise are addressed and every start is a checkpoint or x0. Knows
nothing of schedules: it does what the task says and writes the checkpoints that the task names.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from torch import Tensor, nn

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.tasks import Outcome, ProbeTask, Task, TrainOutcome, TrainTask
from grasp_tune.engine.checkpoints import (
    Buffers,
    Checkpoint,
    Store,
    Tensors,
    digest,
    load_model,
    model_tensors,
)
from grasp_tune.engine.lane_group import LaneGroup, Seat
from grasp_tune.engine.oracle import Oracle
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.sampling import ProbeRun, ScoreRun
from grasp_tune.engine.segment import SegmentRunner
from grasp_tune.engine.step_rules import StepRules
from grasp_tune.engine.streams import untouched_randomness
from grasp_tune.engine.threads import task_threads
from grasp_tune.optimizers.muon import hidden_matrices
from grasp_tune.optimizers.registry import Factory


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
        self.bases: Mapping[str, Factory] = dict(bases or {})
        self.oracle = Oracle(problem, seed, count)
        self.model: nn.Module = self.oracle.model
        self.trained: list[Tensor] = list(self.oracle.parameters)
        self.matrices = hidden_matrices(self.model, self.trained)
        self.buffers = Buffers(self.model)
        decay = {"weight_decay": problem.weight_decay, "weights_only": True}
        self.rules = StepRules([{"params": self.trained, **decay}], problem.clip)
        self.start: Tensors = {n: item.clone() for n, item in model_tensors(self.model).items()}
        self.origin = digest(self.start)
        self.group: LaneGroup | None = None  # those with whom the lanes of a step are shared

    def run(self, task: Task, seat: Seat | None = None) -> Outcome:
        """Return the outcome of the task.

        seat: this worker's place among those that share the task's lanes; None: it is alone.

        Raises `CheckpointError`, with the `key` of the checkpoint, where an input cannot be read;
        the search then has it made again.
        """
        with self._seated(seat), untouched_randomness(), task_threads(self.model):
            if isinstance(task, TrainTask):
                runs = tuple(SegmentRunner(self, task, run).outcome() for run in task.segments)
                return TrainOutcome(sum(item.calls for item in runs), self.origin, runs)
            run = ProbeRun(task, self) if isinstance(task, ProbeTask) else ScoreRun(task, self)
            while (call := run.wants) is not None:
                run.feed(self._sample(*call))
            self.model.train()
            return run.outcome()

    @contextlib.contextmanager
    def _seated(self, seat: Seat | None) -> Iterator[None]:
        """Share the lanes with the other workers of a group while the block runs."""
        with contextlib.nullcontext() if seat is None else LaneGroup(seat) as self.group:
            try:
                yield
            finally:
                self.group = None

    def place(self, key: str) -> Checkpoint | None:
        """Put the model at x0 or at a checkpoint; returns the latter."""
        self.model.zero_grad()  # makes room for what is read
        saved = None if key == START else self._store.read(key)
        load_model(self.model, self.start if saved is None else saved.tensors, key)
        self.model.train()
        return saved

    def loss_repeats(self) -> bool:
        """Return whether a loss at x0 comes out the same twice; takes two oracle calls.

        It does not where the loss or the data keep a state or random numbers of their own.
        """
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
        if purpose == "ensemble" and oracle.problem.validation is not None:
            # Held-out data are seen as they will be in use; training data as in training.
            purpose = "validation"
            self.model.eval()
        return oracle.value(purpose, call)

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
