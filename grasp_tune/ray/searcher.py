"""The searchers of Ray Tune: `GraspSearcher`, and `PlanSearcher` for a step size alone.

Every task of the search is a trial; the last one, `select`, leaves the chosen model as a Tune
checkpoint. All decisions are made in `runtime.shared_sweep` and `runtime.cell_sweep`.
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

CELL = "cell"  # the config's key for a cell's index


class TuneSearcher(Searcher):
    """What both searchers share: the run of Tune around them, its trials, limits and errors."""

    ledger: Any  # of tasks, whose owners are trials: a `SharedSweep` or a `CellSweep`
    meet: Callable[[TuneRun], None]  # prepares a run that asks for the first time
    task_in: Callable[[Mapping[str, Any]], str | None]  # the task in a trial's config
    next: Callable[[str, TuneRun | None], dict[str, Any] | Step]  # gives a trial its config
    done: Callable[[str, dict[str, Any]], None]  # a trial has ended by itself, with this last row
    _met: object = None  # the run that was prepared last
    _failure: Exception | None = None  # raised by the next `suggest`
    _most, _batch, _full = math.inf, False, False  # of a limiter: trials at a time, in batches

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_met": None}  # it belongs to this process

    def save(self, checkpoint_path: str) -> None:
        write_json_atomic(checkpoint_path, self.ledger.state())

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a saved state; one of another sweep ends the run with one sentence."""
        try:
            self.ledger.load(read_json(checkpoint_path, STATE_LIMIT))
        except GraspError as error:
            # If it were raised here, Tune would log it and start the sweep from its beginning.
            self._failure = error

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Keep a limiter's limit here: it hides the end of trials whose start it has not seen."""
        self._most = max_concurrent
        self._batch = getattr(sys._getframe(1).f_locals.get("self"), "batch", False)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next config, None to be asked again later, or `FINISHED`."""
        if (run := TuneRun.asking()) is not None and self._met is not run.generator:
            self.meet(run)
            self._met = run.generator
            tasks = {self.task_in(config): trial for trial, config in run.live().items()}
            for task in self.ledger.running.keys() - tasks.keys():
                self.ledger.give_back(task)  # of a run that was cut off
            self.ledger.running |= {task: trial for task, trial in tasks.items() if task}
        self._check()
        live = len(self.ledger.running)
        self._full = live >= self._most or (self._full and self._batch and live > 0)
        found = Step.WAIT if self._full else self.next(trial_id, run)
        if isinstance(found, Step):
            return None if found is Step.WAIT else Searcher.FINISHED
        return found

    def hear(self, trial_id: str, result: dict[str, Any]) -> None:
        self.ledger.hear(trial_id, result)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        with self._kept_for_later():
            self.hear(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a trial is over; one without a result has failed."""
        with self._kept_for_later():
            if result is not None and not error:
                self.hear(trial_id, result)
                self.done(trial_id, result)
            else:
                run = TuneRun.asking()
                why = "its trial failed" if run is None else run.error_of(trial_id)
                self.ledger.gone(trial_id, why)

    @contextlib.contextmanager
    def _kept_for_later(self) -> Iterator[None]:
        # Tune would make an error here a text inside a TuneError, or lose it: `suggest` raises it.
        try:
            yield
        except Exception as error:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class GraspSearcher(TuneSearcher):
    """A whole sweep as a Ray Tune searcher; see `grasp_trainable` and `optimizer`.

    method, budget, schedule, seed: as `grasp_tune.minimize` takes them.
    fused: let short runs of a small model share a task; `auto` decides by the model's shape, as
        `minimize` does, so that both give the same bits. False spreads the runs over the cluster.
    metric, mode: `score` or `loss`, and `min`; a function of your own reports what it likes. With
        `loss`, `paper` compares losses, too, where the paper compares norms of gradients.
    options: `ensemble`, `challengers` and `probe_parts`, as `minimize` takes them.
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
        self._function = False  # whether the trainable is a function of the user's own
        self._drawn: dict[str, Any] = {}  # constants of the sweep, from a search space
        self._build: Callable[[], nn.Module] | None = None
        super().__init__(metric=metric, mode=mode)

    @staticmethod
    def for_step(budget: int, parameter: str = "lr", **options: Any) -> "PlanSearcher":
        """Return a searcher of a step size for a trainable of the user's: see `PlanSearcher`."""
        return PlanSearcher(None, parameter, budget=budget, **options)

    @staticmethod
    def from_plan(plan: Plan, parameter: str = "lr", **options: Any) -> "PlanSearcher":
        """Return a searcher that runs the plan's cells on a trainable of the user's."""
        return PlanSearcher(plan, parameter, **options)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take what Tune knows before the run; draw the sweep's constants from a search space."""
        self._drawn = drawn(config, self.spec.seed)
        self._metric, self._mode = metric or self._metric, mode or self._mode
        return True

    def meet(self, run: TuneRun) -> None:
        run.set_up(trial_name)
        trainable, config = run.trainable or GraspTrainable, run.spec.get("config") or {}
        self.set_search_properties(run.metric, run.mode, config)
        if issubclass(trainable, GraspTrainable):
            fine = self._metric in ("score", "loss") and self._mode == "min"
            words = "'score' or 'loss' and 'min', which the last trial, with the chosen model, has"
            expect(fine, "metric, mode", f"{self._metric!r}, {self._mode!r}", words)
            if self._metric == "loss":
                self.ledger.begin_again(schedule=for_a_loss(self.spec.schedule))
            # One with parameters needs them: its model can be built in its own processes only.
            if "setup" not in vars(trainable):
                make, constants, seed = trainable.problem, {**config, **self._drawn}, self.spec.seed
                self._build = lambda: make(constants, {}).build(seed)
        elif issubclass(trainable, FunctionTrainable):
            self._function = True
            if self.spec.probe_parts is None:  # x0 is the model of the one task that takes it
                self.ledger.begin_again(probe_parts=1)
            check_spec(self.spec, self.ledger.bases)
            self._metric, self._mode = run.metric, run.mode  # it reports what it likes
        else:
            wanted = (
                "a function that calls grasp_tune.ray.optimizer(model), or grasp_trainable(...)"
            )
            expect(False, "trainable", trainable.__name__, wanted)
        self._open_storage(run)

    def restore(self, checkpoint_path: str) -> None:
        super().restore(checkpoint_path)
        run = TuneRun.asking()
        if self._failure is None and run is not None:  # one that had ended never asks for a task
            with self._kept_for_later():
                self._open_storage(run)
                self.ledger.catch_up()

    def _open_storage(self, run: TuneRun) -> None:
        if (found := storage_of(run.storage)) is not None:
            # Killed while Tune copied the state: what had ended is in the storage all the same.
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

    def done(self, trial_id: str, result: dict[str, Any]) -> None:
        if (task := self.ledger.task_of(trial_id)) is None:
            return
        if not self._function:
            words = "leave `stop` out: the budget ends trials, and time_budget_s the run"
            raise InputError(f"stop: it ended trial {trial_id} in the middle of {task}; {words}")
        words = "take grasp_tune.ray.optimizer(model), loop until opt.done, and leave `stop` out; "
        words += "for one that is given a learning rate use GraspSearcher.for_step(budget)"
        where = f"in the middle of {task} (trial {trial_id})"
        raise InputError(f"the function ended {where}: {words}")

    @property
    def spec(self) -> SweepSpec:
        """Everything that fixes the sweep."""
        return self.ledger.search.spec

    @property
    def progress(self) -> Progress:
        """Where the search stands; calls of running tasks are counted as last reported."""
        return self.ledger.progress

    @property
    def plan(self) -> Plan | None:
        """The paper's plan, known from the end of the probe."""
        return self.ledger.search.plan

    @property
    def result(self) -> Result:
        """The result; the best so far, marked partial, where the run was stopped early."""
        self._check()
        return self.ledger.result(self._build)


class PlanSearcher(TuneSearcher):
    """Step sizes for the user's own trainable; see `GraspSearcher.for_step` and `.from_plan`.

    Every cell is a trial, which is given a value and a budget, trains in its own way and reports a
    metric. No candidate is scored on fresh samples.

    plan: the paper's; its whole budget goes to training, see `training_only`.
    parameter: the config's key for the cell's value, such as `lr` or `train_loop_config/lr`.
    budget: oracle calls over all trials, for a search without a plan: very short trials over eight
        decades first, then finer and longer ones around the best.
    resume: with a budget, for a trainable that reports checkpoints: trials go on from earlier
        ones, whose checkpoint is `config["checkpoint"]`; it is None where a trial begins at x0.
    metric, mode: what the trainable reports; where left out, those given to Tune.
    budget_key: the config's key for the cell's oracle calls.
    count: what the trainable reports its oracle calls as.
    window: the score is the mean over so many last reports (the paper's window).
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
        """For `stop=`: ends a trial at its budget if its own loop does not."""
        key, count = self._budget_key, self._count
        return lambda trial, row: bool(row.get(count, 0) >= unflattened_lookup(key, row["config"]))

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take metric and mode where none were given; refuse what would have to be sampled."""
        drawn(config, None)
        if self._metric in (None, metric):
            self._metric, self._mode = metric, mode or self._mode
        return True

    def meet(self, run: TuneRun) -> None:
        # Tune says it by itself only where there is a config.
        self.set_search_properties(run.metric, run.mode, {})
        if self._metric is None or self._mode is None:
            got = f"{self._metric!r}, {self._mode!r}"
            words = "name both: GraspSearcher.for_step(10_000, metric='loss', mode='min')"
            raise InputError(f"metric, mode: got {got}; {words}")
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
            value = float(result[self._metric or ""])  # also of NumPy or torch
            value = -value if self._mode == "max" else value
            self.ledger.hear(trial_id, result.get("training_iteration", 0), value)

    def done(self, trial_id: str, result: dict[str, Any]) -> None:
        index, calls = result.get(f"config/{CELL}"), int(result.get(self._count, 0))
        self.ledger.done(trial_id, index, calls)

    @property
    def best(self) -> BestCell:
        """The best cell so far: its index, its trial and its score; raises where there is none."""
        return self.ledger.best

    @property
    def cell(self) -> Cell:
        return cell_of(self.ledger.search.tasks[cell_id(self.best.cell)])

    @property
    def result(self) -> Result:
        """The result without a model: that is in the trial called `best.trial`."""
        self._check()
        return cell_result(self.ledger.search)


class GraspProgress(tune.Callback):
    """Shows phase, oracle calls and best loss: a bar on a terminal, lines in the log elsewhere.

    searcher: the `search_alg` of the same run.
    """

    def __init__(self, searcher: GraspSearcher) -> None:
        self._searcher = searcher
        self._reporter: bool | Reporter = True  # made in the process that shows it

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._reporter = reporter_for(self._reporter)
        self._reporter.update(found := self._searcher.progress, found.calls)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.on_step_end(0, trials)
        reporter_for(self._reporter).close()


def load_result(experiment: Any) -> Result:
    """Return the result of a finished experiment: a `ResultGrid`, an analysis, or a local folder.

    It has no model: put its weights into one of yours with `result.restore(model)`.
    """
    rows: Any = experiment if isinstance(experiment, tune.ResultGrid) else None
    for item in rows or getattr(experiment, "trials", None) or ():
        if item.checkpoint and (item.config or {}).get(KEY, {}).get("task") == SELECT.id:
            with item.checkpoint.as_directory() as folder:
                if (Path(folder) / "result.json").exists():  # else one of the user's function
                    return Result.load(folder)
    path = Path(str(getattr(experiment, "experiment_path", experiment)))
    if last := sorted(path.glob(f"{FOLDER}/*/result.json"), key=os.path.getmtime):
        return Result.load(last[-1].parent)
    states = sorted(path.glob("searcher-state-*"))  # named by time; Tune copies them in any order
    saved = read_json(states[-1], STATE_LIMIT) if states else {}
    if "cells" not in saved:
        raise SearchError(f"{path}: there is no result in it; was it stopped before its end?")
    return cell_result(CellSearch.from_state(saved["cells"]))  # of the user's own trainable
