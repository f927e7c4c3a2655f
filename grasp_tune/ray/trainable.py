"""The trainable: a Tune actor that runs whichever task its trial is given.

The problem is built once in a process and kept for all its trials. A task runs in a thread, and
its trial reports about every half minute until it is over. Which checkpoints exist is decided by
the tasks; Tune itself is given one, the chosen model.
"""

import inspect
import logging
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from ray.train._internal.session import _TrainingResult
from ray.tune import PlacementGroupFactory, Trainable

from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError
from grasp_tune.core.search import Search
from grasp_tune.core.tasks import (
    START,
    Outcome,
    ProbeOutcome,
    ProbeTask,
    Task,
    TrainOutcome,
)
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.fused import fusion_width
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.optimizers.registry import Factory
from grasp_tune.ray.depot import Depot
from grasp_tune.ray.job import Count, Job
from grasp_tune.ray.work import KEY, Selection, Work, report, spec_from_dict
from grasp_tune.runtime.result import Result

logger = logging.getLogger(__name__)

HEARTBEAT = 30.0  # seconds between two reports of a task under way
CHOSEN = "chosen"  # the checkpoint that the last trial leaves


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trainable's problem comes from."""

    token: str  # one per trainable, the same in every process
    make: Callable[..., TorchProblem]
    takes_config: bool

    def problem(self, constants: Mapping[str, Any]) -> TorchProblem:
        """Return a fresh problem."""
        problem = self.make(dict(constants)) if self.takes_config else self.make()
        if not isinstance(problem, TorchProblem):
            kind = type(problem).__name__
            raise InputError(f"make_problem: it returned {kind}, expected a TorchProblem")
        return problem


@dataclass(eq=False)
class _Bench:
    """What a process keeps between trials."""

    key: tuple[str, dict[str, Any], str, int]
    problem: TorchProblem
    depot: Depot
    worker: Worker
    count: Count
    width: int | None = None


# One problem a process: an actor runs one trial at a time, and the next is of the same kind.
_BENCH: list[_Bench] = []


class GraspTrainable(Trainable):
    """Runs one task of a sweep; made by `grasp_trainable`."""

    source: ClassVar[Source]
    resources: ClassVar[PlacementGroupFactory | None] = None
    heartbeat: ClassVar[float] = HEARTBEAT

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | None:
        """Return what `grasp_trainable` was told, None to leave it to Tune."""
        return cls.resources

    def setup(self, config: dict[str, Any]) -> None:
        """Take the first trial's work."""
        self._job: Job[dict[str, Any]] | None = None
        self._result: Result | None = None
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial's work; whatever was under way is given up."""
        self.cleanup()
        self._result = None
        self._constants = {key: value for key, value in new_config.items() if key != KEY}
        self._work = Work.from_config(new_config)
        self._bases: dict[str, Factory] = dict(new_config[KEY].get("bases", {}))
        return True

    def step(self) -> dict[str, Any]:
        """Return the task's report, or how far it is where it takes long."""
        if self._job is None:
            self._job = Job(self._perform, self._work.task.id)
        if not self._job.wait(self.heartbeat):
            calls = _BENCH[0].count.calls if _BENCH else 0
            return report(self._work, "running", calls)
        job, self._job = self._job, None
        return {**job.product(), "done": True}

    def save(self, checkpoint_dir: str | None = None) -> _TrainingResult:
        """Give Tune a checkpoint of the chosen model, and none of anything else."""
        if self._result is None:
            return _TrainingResult(None, {})
        return super().save(checkpoint_dir)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the result: `Result.load` reads it."""
        if self._result is not None:
            self._result.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: a task's inputs are named by the task."""

    def cleanup(self) -> None:
        """End the task under way, if there is one."""
        if self._job is None:
            return
        if _BENCH:
            _BENCH[0].count.cancelled = True
        if not self._job.wait(self.heartbeat):
            logger.warning("%s does not end at its next oracle call", self._work.task.id)
        self._job = None
        _BENCH.clear()  # a task cut in the middle leaves its model anywhere

    # -- in the thread ---------------------------------------------------------------------------

    def _perform(self) -> dict[str, Any]:
        torch.set_num_threads(self._threads())
        work = self._work
        try:
            bench = self._bench()
            row = (
                self._select(bench, work.task)
                if isinstance(work.task, Selection)
                else self._run(bench, work.task)
            )
            return {**row, "folder": str(bench.depot)}
        except CheckpointError as error:
            if error.key not in work.task.reads:
                raise  # a full disk: another try, elsewhere perhaps
            return {**report(work, "lost checkpoint", 0), "checkpoint": error.key}
        except GraspError as error:
            # What is wrong with the input is wrong on every machine: the driver is to say so.
            return {**report(work, "refused", 0), "reason": f"{type(error).__name__}: {error}"}

    def _threads(self) -> int:
        bundles = self.trial_resources.bundles if self.trial_resources is not None else []
        return max(1, int(bundles[0].get("CPU", 1))) if bundles else 1

    def _bench(self) -> _Bench:
        seed = int(self._work.spec["seed"])
        depot = self._depot()
        key = (self.source.token, self._constants, str(depot), seed)
        if _BENCH and _BENCH[0].key == key:
            _BENCH[0].count.calls = 0
            return _BENCH[0]
        _BENCH.clear()
        problem, count = self.source.problem(self._constants), Count(depot.counter())
        worker = Worker(problem, seed, depot.store, self._bases, count=count)
        _BENCH.append(_Bench(key, problem, depot, worker, count))
        return _BENCH[0]

    def _depot(self) -> Depot:
        storage = self._storage
        if storage is None:
            raise SearchError("this trainable has no storage: run it with Ray Tune")
        try:
            storage._check_validation_file()
        except RuntimeError:
            raise SearchError(
                f"{storage.storage_fs_path} on {self._local_ip} is not the folder that the driver "
                "sees: with several machines, storage_path must be a shared folder (NFS) or a "
                "bucket (s3://..., gs://...) that all of them can reach"
            ) from None
        return Depot(storage.storage_filesystem, storage.experiment_fs_path, self._work.run)

    def _run(self, bench: _Bench, task: Task) -> dict[str, Any]:
        if not self._work.attempt and (known := bench.depot.read_outcome(task)) is not None:
            return report(self._work, "ended", known[0].calls, **_metrics(known[0]))
        outcome = bench.worker.run(task)
        if isinstance(task, ProbeTask) and not bench.depot.store.exists(START):
            # Whoever stops the sweep early may be given x0, and the driver has no model.
            bench.depot.store.write(START, bench.worker.start, {})
        bench.depot.write_outcome(task, outcome, self._width(bench))
        return report(self._work, "ended", outcome.calls, **_metrics(outcome))

    def _width(self, bench: _Bench) -> int:
        if bench.width is None:
            spec = spec_from_dict(self._work.spec, self._bases)
            bench.width = fusion_width(bench.problem, spec.method, spec.schedule, "auto", spec.seed)
        return bench.width

    def _select(self, bench: _Bench, selection: Selection) -> dict[str, Any]:
        search = replayed(bench.depot, self._work, self._bases)
        if search.choice is None or search.choice.key != selection.key:
            raise SearchError(
                f"the outcomes in {bench.depot} lead to {search.leader}, but the driver chose "
                f"{selection.key}"
            )
        bench.worker.place(selection.key)
        tensors = model_tensors(bench.worker.model)
        bench.depot.store.write(CHOSEN, tensors, {})
        count_repeated(search, bench.depot)
        result = Result.of(search, tensors)
        if bench.depot.folder is not None:
            result.save(bench.depot.folder)
        self._result = result
        metrics = {"score": result.score, "loss": _chosen_loss(result, search)}
        return {**report(self._work, "ended", 0, **metrics), "should_checkpoint": True}


def grasp_trainable(
    make_problem: Callable[..., TorchProblem],
    *,
    cpus: float | None = None,
    gpus: float | None = None,
    heartbeat: float = HEARTBEAT,
) -> type[GraspTrainable]:
    """Return a trainable for `GraspSearcher` that trains the problem which `make_problem` builds.

    make_problem: called once in every worker process, without arguments, or with the constants of
        the config where it takes one. Load large data in it, or share them by `ray.put`.
    cpus, gpus: what a task reserves; fractions let tasks share. None: one CPU, or whatever
        `tune.with_resources` says, which may look at `config["grasp"]["phase"]`.
    heartbeat: seconds between two reports of a task that takes long.
    """
    if isinstance(make_problem, TorchProblem) or not callable(make_problem):
        kind = type(make_problem).__name__
        raise InputError(f"make_problem: got {kind}, expected a function that returns the problem")
    if not heartbeat > 0.0:
        raise InputError(f"heartbeat: got {heartbeat!r}, expected seconds > 0")
    bundle = {"CPU": 1.0 if cpus is None else float(cpus), "GPU": float(gpus or 0.0)}
    if min(bundle.values()) < 0.0 or not any(bundle.values()):
        raise InputError(f"cpus, gpus: got {cpus!r}, {gpus!r}, expected shares >= 0, not both 0")
    given = cpus is not None or gpus is not None
    source = Source(uuid.uuid4().hex, make_problem, _takes_config(make_problem))
    content = {
        "source": source,
        "heartbeat": float(heartbeat),
        "resources": PlacementGroupFactory([bundle]) if given else None,
        "__module__": __name__,
    }
    return type("grasp", (GraspTrainable,), content)


def _takes_config(make_problem: Callable[..., TorchProblem]) -> bool:
    try:
        parameters = inspect.signature(make_problem).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(item.kind in kinds and item.default is item.empty for item in parameters)


def replayed(depot: Depot, work: Work, bases: Mapping[str, Factory]) -> Search:
    """Return the search that the outcomes in the storage lead to."""
    search = Search(spec_from_dict(work.spec, bases))
    failures = work.task.failures if isinstance(work.task, Selection) else {}
    search.replay({}, dict(failures))
    while True:
        found = [(task, depot.read_outcome(task)) for task in search.round_tasks]
        news = [search.tell(task, record[0]) for task, record in found if record is not None]
        if not any(news):
            return search


def count_repeated(search: Search, depot: Depot) -> None:
    """Tell work that was done twice apart from budget, by the calls that really happened."""
    spent = search.calls
    budgeted = spent["probe"] + spent["train"] + spent["ensemble"]
    search.repeated = max(search.repeated, depot.calls() - budgeted)


def _metrics(outcome: Outcome) -> dict[str, float]:
    if isinstance(outcome, ProbeOutcome):
        return {"train_loss": outcome.value, "gradient_norm": outcome.gradient_norm}
    if isinstance(outcome, TrainOutcome):
        finite = [item for item in outcome.segments if item.finite and math.isfinite(item.loss)]
        if finite:
            best = min(finite, key=lambda item: item.loss)
            return {"train_loss": best.loss, "gradient_norm": best.window_norm}
    return {}


def _chosen_loss(result: Result, search: Search) -> float:
    """Return the best estimate of the chosen point's loss that costs no further oracle call."""
    if result.choice.by == "value":
        return result.score
    arm = result.choice.chosen.arm
    losses = [run.losses[-1] for run in result.runs if run.arm == arm and run.losses]
    outcomes = search.outcomes.values()
    start = [item.value for item in outcomes if isinstance(item, ProbeOutcome) and item.values]
    return losses[-1] if losses else (start or [math.nan])[-1]
