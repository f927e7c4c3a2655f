"""Searchers for Ray Tune: `GraspSearcher` runs a whole sweep, `PlanSearcher` only sets step sizes.

Each task of the search is a trial. `runtime.shared_sweep` and `cell_sweep` decide everything.
"""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ray import tune
from ray.tune.search import Searcher
from ray.tune.trainable import FunctionTrainable
from ray.tune.utils import unflattened_lookup
from ray.tune.utils.util import unflatten_dict  # type: ignore[attr-defined]
from torch import nn

from grasp_tune.core.checkpoint_keys import place_of
from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError, expect
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.search import Progress, Step
from grasp_tune.core.spec import AnySchedule, SweepSpec
from grasp_tune.loop.loop_optimizer import check_spec
from grasp_tune.ray.trial import KEY, GraspTrainable, to_config, trial_name, work_in
from grasp_tune.ray.tune_internals import FOLDER, TuneRun, drawn, storage_of
from grasp_tune.runtime.callbacks import Reporter, reporter_for
from grasp_tune.runtime.cell_sweep import BestCell, CellSweep, cell_result
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_sweep import SharedStorage, SharedSweep
from grasp_tune.schedules.cells import Cells, CellSearch, cell_id, cell_of
from grasp_tune.schedules.paper import for_a_loss

CELL = "cell"  # the config key for a cell's index


class TuneSearcher(Searcher):
    """The base class of both searchers: trials, concurrency limits and errors of the Tune run."""

    ledger: Any  # a `SharedSweep` or a `CellSweep`; the owners of its tasks are trials
    meet: Callable[[TuneRun], None]  # prepares a run at its first `suggest`
    task_in: Callable[[Mapping[str, Any]], str | None]  # returns the task in a trial's config
    next: Callable[[str, TuneRun | None], dict[str, Any] | Step]  # returns a trial's config
    hear: Callable[[str, dict[str, Any]], None]  # called with each row of a trial
    done: Callable[[str, dict[str, Any]], None]  # called with the last row of a trial that ended
    _met: object = None  # the run that was prepared last
    _failure: Exception | None = None  # raised by the next `suggest`
    _most, _batch, _full = math.inf, False, False  # a limiter's maximum; in batches?; reached?

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_met": None}  # only valid in this process

    def save(self, checkpoint_path: str) -> None:
        write_json_atomic(checkpoint_path, self.ledger.state())

    def restore(self, checkpoint_path: str) -> None:
        """Continue from a saved state; a state of another sweep ends the run with an error."""
        try:
            self.ledger.load(read_json(checkpoint_path, STATE_LIMIT))
        except GraspError as error:
            # If it were raised here, Tune would only log it and start the sweep again.
            self._failure = error

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Apply a limiter's limit here: limiters drop the end of trials they did not start."""
        self._most = max_concurrent
        self._batch = getattr(sys._getframe(1).f_locals.get("self"), "batch", False)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next config, None if Tune should ask again later, or `FINISHED`."""
        if (run := TuneRun.asking()) is not None and self._met is not run.generator:
            self.meet(run)
            self._met = run.generator
            tasks = {self.task_in(config): trial for trial, config in run.live().items()}
            for task in self.ledger.running.keys() - tasks.keys():
                self.ledger.give_back(task)  # left over from an interrupted run
            self.ledger.running |= {task: trial for task, trial in tasks.items() if task}
        self._check()
        live = len(self.ledger.running)
        self._full = live >= self._most or (self._full and self._batch and live > 0)
        found = Step.WAIT if self._full else self.next(trial_id, run)
        if isinstance(found, Step):
            return None if found is Step.WAIT else Searcher.FINISHED
        return found

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        with self._kept_for_later():
            self.hear(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record that a trial has ended; without a result, it has failed."""
        with self._kept_for_later():
            if result is not None and not error:
                self.hear(trial_id, result)
                self.done(trial_id, result)
            else:
                run = TuneRun.asking()
                self.ledger.gone(trial_id, run.error_of(trial_id) if run else "its trial failed")

    @contextlib.contextmanager
    def _kept_for_later(self) -> Iterator[None]:
        # Raised here, Tune would only put its text in a TuneError, or lose it; `suggest` raises it.
        try:
            yield
        except Exception as error:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class GraspSearcher(TuneSearcher):
    """A Ray Tune searcher that runs a whole sweep; use it with `grasp_trainable` or `optimizer`.

    method, budget, schedule, seed: as in `grasp_tune.minimize`.
    fused: let short runs of a small model share a task. `auto` decides by the model's shape as in
        `minimize`, so both give the same bits. False spreads the runs over the cluster.
    metric, mode: `score` or `loss`, and `min`; any names if the trainable is a function of yours.
        With `loss`, the schedule `paper` compares losses instead of gradient norms.
    options: `ensemble`, `challengers` and `probe_parts`, as in `minimize`.
    """

    def __init__(
        self,
        method: Method | None = None,
        budget: int = 10_000,
        schedule: AnySchedule = "promote",
        seed: int = 0,
        *,
        fused: bool | Literal["auto"] = "auto",
        metric: str = "score",
        mode: str = "min",
        **options: Any,
    ) -> None:
        spec, bases = SweepSpec.assemble(method, budget, schedule, seed, fused=fused, **options)
        self.ledger: SharedSweep = SharedSweep(spec, bases)
        self._function = False  # whether the trainable is the user's own function
        self._drawn: dict[str, Any] = {}  # constants of the sweep, sampled from a search space
        self._build: Callable[[], nn.Module] | None = None
        super().__init__(metric=metric, mode=mode)

    @staticmethod
    def for_step(budget: int, parameter: str = "lr", **options: Any) -> "PlanSearcher":
        """Return a searcher for your own trainable's step size; arguments as in `PlanSearcher`."""
        return PlanSearcher(None, parameter, budget=budget, **options)

    @staticmethod
    def from_plan(plan: Plan, parameter: str = "lr", **options: Any) -> "PlanSearcher":
        """Return a searcher that runs a plan's cells on your trainable; see `PlanSearcher`."""
        return PlanSearcher(plan, parameter, **options)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Store Tune's metric and mode; sample the sweep's constants from a search space."""
        self._drawn = drawn(config, self.spec.seed)
        self._metric, self._mode = metric or self._metric, mode or self._mode
        return True

    def meet(self, run: TuneRun) -> None:
        run.set_up(trial_name)
        trainable, config = run.trainable or GraspTrainable, run.spec.get("config") or {}
        wanted = "a function that calls grasp_tune.ray.optimizer(model), or grasp_trainable(...)"
        expect(issubclass(trainable, FunctionTrainable), "trainable", trainable.__name__, wanted)
        self.set_search_properties(run.metric, run.mode, config)
        if issubclass(trainable, GraspTrainable):
            fine = self._metric in ("score", "loss") and self._mode == "min"
            words = "'score' or 'loss' and 'min', which the last trial, with the chosen model, has"
            expect(fine, "metric, mode", f"{self._metric!r}, {self._mode!r}", words)
            if self._metric == "loss":
                self.ledger.begin_again(schedule=for_a_loss(self.spec.schedule))
            # With `tune.with_parameters`, the model can only be built in the trial's process.
            if "setup" not in vars(trainable):
                make, constants, seed = trainable.problem, {**config, **self._drawn}, self.spec.seed
                self._build = lambda: make(constants, {}).build(seed)
        else:
            self._function = True
            if self.spec.probe_parts is None:  # x0 is the model that the only probe task builds
                self.ledger.begin_again(probe_parts=1)
            check_spec(self.spec, self.ledger.bases)
            self._metric, self._mode = run.metric, run.mode  # the function may report any metric
        self._open_storage(run)

    def restore(self, checkpoint_path: str) -> None:
        super().restore(checkpoint_path)
        run = TuneRun.asking()
        if self._failure is None and run is not None:  # a finished run never calls `suggest`
            with self._kept_for_later():
                self._open_storage(run)
                self.ledger.catch_up()

    def _open_storage(self, run: TuneRun) -> None:
        if (found := storage_of(run.storage)) is not None:
            # Killed while Tune copied the state: the outcomes are in the storage anyway.
            if isinstance(self._failure, CheckpointError) and self.ledger.adopt(*found):
                self._failure = None
            self.ledger.storage = SharedStorage(found[0], f"{found[1]}/{self.ledger.run}")

    def task_in(self, config: Mapping[str, Any]) -> str | None:
        work = work_in(config)
        return work.task.id if work.run == self.ledger.run else None

    def next(self, trial_id: str, run: TuneRun | None) -> dict[str, Any] | Step:
        work = self.ledger.next(trial_id)
        if isinstance(work, Step):
            return work
        return {**self._drawn, **to_config(work, self._metric if self._function else None)}

    def hear(self, trial_id: str, result: dict[str, Any]) -> None:
        self.ledger.hear(trial_id, result)

    def done(self, trial_id: str, result: dict[str, Any]) -> None:
        if (task := self.ledger.task_of(trial_id)) is None:
            return
        if not self._function:
            words = "leave `stop` out: the budget ends trials, and time_budget_s the run"
            raise InputError(f"stop: it ended trial {trial_id} in the middle of {task}; {words}")
        words = "take grasp_tune.ray.optimizer(model), loop until opt.done, and leave `stop` out"
        words += "; if it needs a learning rate, use GraspSearcher.for_step(budget)"
        raise InputError(f"the function ended in the middle of {task}: {words}")

    @property
    def spec(self) -> SweepSpec:
        """The specification of the sweep: everything that its result depends on."""
        return self.ledger.search.spec

    @property
    def progress(self) -> Progress:
        """The progress of the search, including the last reported calls of running tasks."""
        return self.ledger.progress

    @property
    def plan(self) -> Plan | None:
        """The paper's plan; None until the probe has ended."""
        return self.ledger.search.plan

    @property
    def result(self) -> Result:
        """The result; if the run was stopped early, the best point so far, marked as partial."""
        self._check()
        return self.ledger.result(self._build)


class PlanSearcher(TuneSearcher):
    """A searcher for your own trainable's step size; `for_step` and `from_plan` create it.

    Each cell is a trial. It gets a step size and a budget, trains in its own way and reports a
    metric. Candidates are not scored on fresh samples.

    plan: the paper's plan; its whole budget goes to training, see `training_only`.
    parameter: the config key for the step size, such as `lr` or `train_loop_config/lr`.
    budget: for a search without a plan, the oracle calls of all trials: first very short trials
        over eight decades, then finer and longer ones around the best.
    resume: with a budget, for a trainable that reports checkpoints: trials continue from earlier
        ones. `config["checkpoint"]` is the checkpoint to load, None if the trial starts at x0.
    metric, mode: the metric that the trainable reports; by default those given to Tune.
    budget_key: the config key for the cell's number of oracle calls.
    count: the name under which the trainable reports its oracle calls.
    window: a cell's score is the mean of this many last reports (the paper's window).
    """

    def __init__(
        self,
        plan: Plan | None = None,
        parameter: str = "lr",
        *,
        budget: int | None = None,
        resume: bool = False,
        metric: str | None = None,
        mode: str | None = None,
        budget_key: str = "budget",
        count: str = "training_iteration",
        window: int = 1,
    ) -> None:
        expect(mode in ("min", "max", None), "mode", repr(mode), "'min' or 'max'")
        if len({parameter, budget_key, CELL}) < 3:
            raise InputError(f"parameter, budget_key: {parameter!r}, {budget_key!r} are taken")
        self._parameter, self._budget_key, self._count = parameter, budget_key, count
        cells = Cells.of(plan, budget, resume, longer=True)
        self._resume, self.plan = resume and plan is None, cells.plan
        self.ledger: CellSweep = CellSweep(cells.spec(), window)
        super().__init__(metric=metric, mode=mode or ("min" if metric else None))

    @property
    def stopper(self) -> Callable[[str, Mapping[str, Any]], bool]:
        """A function for Tune's `stop=` that ends a trial when its budget is spent."""
        key, count = self._budget_key, self._count
        return lambda trial, row: bool(row.get(count, 0) >= unflattened_lookup(key, row["config"]))

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Use Tune's metric and mode if none were given; refuse a config with a search space."""
        drawn(config, None)
        if self._metric in (None, metric):
            self._metric, self._mode = metric, mode or self._mode
        return True

    def meet(self, run: TuneRun) -> None:
        # Tune calls it itself only if there is a config.
        self.set_search_properties(run.metric, run.mode, {})
        named = self._metric is not None and self._mode is not None
        wanted = "both: for_step(10_000, metric='loss', mode='min')"
        expect(named, "metric, mode", f"{self._metric!r}, {self._mode!r}", wanted)
        run.set_up()

    def task_in(self, config: Mapping[str, Any]) -> str | None:
        return cell_id(config[CELL])

    def next(self, trial_id: str, run: TuneRun | None) -> dict[str, Any] | Step:
        task: Any = self.ledger.next(trial_id)
        if isinstance(task, Step):
            return task
        cell, origin, key = cell_of(task), task.segments[0].origin, self._budget_key
        found: dict[str, Any] = {CELL: cell.index, self._parameter: cell.value, key: cell.budget}
        if self._resume:
            parent = "" if origin is None else self.ledger.trials[cell_id(place_of(origin)[0])]
            kept = getattr(None if run is None else run.trial(parent), "checkpoint", None)
            if parent and kept is None:
                words = "to go on from; report one at its end: tune.report(metrics, checkpoint=...)"
                raise InputError(f"resume: trial {parent} left no checkpoint {words}")
            found["".join(key.rpartition("/")[:2]) + "checkpoint"] = kept
        return dict(unflatten_dict(found))

    def hear(self, trial_id: str, result: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            value = float(result[self._metric or ""])  # NumPy and torch scalars, too
            value = -value if self._mode == "max" else value
            self.ledger.hear(trial_id, result.get("training_iteration", 0), value)

    def done(self, trial_id: str, result: dict[str, Any]) -> None:
        index, calls = result.get(f"config/{CELL}"), int(result.get(self._count, 0))
        self.ledger.done(trial_id, index, calls)

    @property
    def best(self) -> BestCell:
        """The best cell so far, with its trial and score; raises an error if there is none."""
        return self.ledger.best

    @property
    def cell(self) -> Cell:
        """The best cell so far, with its value and budget."""
        return cell_of(self.ledger.search.tasks[cell_id(self.best.cell)])

    @property
    def result(self) -> Result:
        """The result without a model; the model is in the trial `best.trial`."""
        self._check()
        return cell_result(self.ledger.search)


class GraspProgress(tune.Callback):
    """A Tune callback that shows phase, oracle calls and best loss as a bar, or as log lines.

    searcher: the `search_alg` of the same run.
    """

    def __init__(self, searcher: GraspSearcher) -> None:
        self._searcher = searcher
        self._reporter: bool | Reporter = True  # created in the process that shows it

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._reporter = reporter_for(self._reporter)
        self._reporter.update(found := self._searcher.progress, found.calls)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.on_step_end(0, trials)
        reporter_for(self._reporter).close()


def load_result(experiment: Any) -> Result:
    """Return the result of a finished experiment, without a module: use `result.restore(model)`.

    experiment: a `ResultGrid`, an analysis, or the experiment's local folder.
    """
    rows: Any = experiment if isinstance(experiment, tune.ResultGrid) else None
    for item in rows or getattr(experiment, "trials", None) or ():
        if item.checkpoint and (item.config or {}).get(KEY, {}).get("task") == SELECT.id:
            with item.checkpoint.as_directory() as folder:
                if (Path(folder) / "result.json").exists():  # not a checkpoint of the user's
                    return Result.load(folder)
    path = Path(str(getattr(experiment, "experiment_path", experiment)))
    if last := sorted(path.glob(f"{FOLDER}/*/result.json"), key=os.path.getmtime):
        return Result.load(last[-1].parent)
    states = sorted(path.glob("searcher-state-*"))  # names contain the time; file times may differ
    saved = read_json(states[-1], STATE_LIMIT) if states else {}
    if "cells" not in saved:
        raise SearchError(f"{path}: there is no result in it; was it stopped before its end?")
    return cell_result(CellSearch.from_state(saved["cells"]))  # the user's own trainable
