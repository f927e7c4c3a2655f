"""A sweep whose workers are started by somebody else, such as Ray Tune: the worker's side."""

import logging
import math
from collections.abc import Callable
from typing import Any

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.errors import CheckpointError, GraspError
from grasp_tune.core.search import Search
from grasp_tune.core.tasks import Outcome, ProbeOutcome, ProbeTask, Task, TrainOutcome
from grasp_tune.engine.checkpoints import Tensors, model_tensors
from grasp_tune.engine.fused import fusion_width
from grasp_tune.engine.lane_group import GroupLost, Seat
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_storage import CHOSEN, SharedStorage
from grasp_tune.runtime.shared_sweep import Selection, Work

logger = logging.getLogger(__name__)


class SharedWorker:
    """One problem and one storage: does one piece of work after the other.

    work: the first piece of work, for what all have in common.
    """

    def __init__(self, problem: TorchProblem, storage: SharedStorage, work: Work) -> None:
        self._problem, self._storage = problem, storage
        self._width: int | None = None
        self._add, self.calls = storage.calls.counter(), 0  # of the last piece of work
        self.beat: Callable[[int], None] = lambda calls: None  # told after each call how many
        self._worker = Worker(problem, work.spec.seed, storage.store, work.bases, self._count)
        self.run = self._worker.run
        self.result: Result | None = None  # of the last piece of work

    def _count(self, calls: int) -> None:
        self.calls += calls
        self._add(calls)
        self.beat(self.calls)

    def perform(self, work: Work, seat: Seat | None = None) -> dict[str, Any]:
        """Return what to report: the status and, where it ended, calls and metrics.

        seat: the place among those that share the task's lanes.
        """
        self.calls, self.result, task = 0, None, work.task
        if isinstance(task, Selection):
            self.result, row = select_model(self._storage, work, self._place)
            return row
        return ended_row(self._storage, self._run(work, task, seat))

    def _run(self, work: Work, task: Task, seat: Seat | None) -> Outcome:
        storage, spec = self._storage, work.spec
        try:
            outcome = self._worker.run(task, seat)
        except GroupLost as lost:
            logger.warning("%s: %s; it is run again, alone", task.id, lost)
            outcome = self._worker.run(task)
        if isinstance(task, ProbeTask) and not storage.store.exists(START):
            # Whoever stops the sweep early may be given x0, and the driver has no model.
            storage.store.write(START, self._worker.start, {})
        if self._width is None:
            self._width = fusion_width(self._problem, spec.method, "auto", spec.seed)
        storage.write_outcome(task, outcome, self._width)
        return outcome

    def _place(self, key: str) -> Tensors:
        self._worker.place(key)
        return model_tensors(self._worker.model)


def ended_row(storage: SharedStorage, outcome: Outcome) -> dict[str, Any]:
    """Return the report of a task whose outcome is in the storage."""
    row = {"status": "ended", "folder": storage.path, "oracle_calls": outcome.calls}
    if isinstance(outcome, ProbeOutcome):
        row |= {"train_loss": outcome.value, "gradient_norm": outcome.gradient_norm}
    elif isinstance(outcome, TrainOutcome):
        finite = [item for item in outcome.segments if item.finite and math.isfinite(item.loss)]
        if finite:
            best = min(finite, key=lambda item: item.loss)
            row |= {"train_loss": best.loss, "gradient_norm": best.window_norm}
    return row


def select_model(
    storage: SharedStorage, work: Work, place: Callable[[str], Tensors]
) -> tuple[Result, dict[str, Any]]:
    """Leave the chosen model and the result in the storage; return the latter and the report.

    place: puts a model at a checkpoint, and returns its tensors.
    """
    ledger = Ledger(Search.from_state(storage.read_search(), work.spec))
    tensors = place(ledger.search.partial().key)
    storage.store.write(CHOSEN, tensors, {})
    ledger.settle(storage.calls.total)
    result = Result.of(ledger.search, tensors)
    if storage.folder is not None:
        result.save(storage.folder)
    loss, outcomes = result.loss, ledger.search.outcomes.values()
    if math.isnan(loss):  # x0 was chosen, by its gradient
        probes = [x.value for x in outcomes if isinstance(x, ProbeOutcome) and x.values]
        loss = (probes or [loss])[-1]
    return result, {"status": "ended", "folder": storage.path, "score": result.score, "loss": loss}


def report_of(error: GraspError, work: Work) -> dict[str, Any]:
    """Return the report of what the driver is to know: a lost checkpoint, or a refusal.

    Raises a `CheckpointError` again that another try may mend, elsewhere perhaps: a full disk.
    """
    if isinstance(error, CheckpointError):
        if error.key not in work.reads:
            raise error
        return {"status": "lost checkpoint", "checkpoint": error.key}
    return {"status": "refused", "reason": f"{type(error).__name__}: {error}"}
