"""Step sizes for a trainable of the user's own: every cell a trial, and the best one named.

The cells are those of a search that needs nothing but a budget, or of the paper's plan. The
trainable is given a value and a budget, trains in its own way and reports a metric; nothing is
sampled again. A cell's score is the mean of its last reports (the paper's window).
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ray.tune.utils import unflattened_lookup
from ray.tune.utils.util import unflatten_dict  # type: ignore[attr-defined]

from grasp_tune.core.errors import InputError, SearchError, whole
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.search import Step
from grasp_tune.ray.tune_internals import TuneRun, TuneSearcher, drawn
from grasp_tune.runtime.cell_sweep import cell_result
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.cells import Cells, CellSearch, cell_id, cell_of, cell_outcome

CELL = "cell"  # the config's key for the cell's index: work is known by it


class BestCell(NamedTuple):
    """The best cell so far."""

    cell: int  # its index
    trial: str  # who ran it
    score: float  # the smaller the better
    calls: int  # as its trial counted them


class PlanSearcher(TuneSearcher):
    """Suggests step sizes; made by `GraspSearcher.for_step` and `GraspSearcher.from_plan`.

    plan: the paper's; its whole budget goes to training, see `training_only`.
    parameter: the config's key for the cell's value, such as `lr` or `train_loop_config/lr`.
    budget: oracle calls over all trials, for a search without a plan: very short trials over eight
        decades first, then finer and longer ones around the best.
    resume: with a budget, for a trainable that reports checkpoints: trials go on from earlier
        ones, whose checkpoint is `config["checkpoint"]`; it is None where a trial begins at x0.
    metric, mode: what the trainable reports; where left out, those given to Tune.
    budget_key: the config's key for the cell's oracle calls.
    count: what the trainable reports its oracle calls as.
    window: the score is the mean over so many last reports.
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
        if mode not in ("min", "max", None):
            raise InputError(f"mode: got {mode!r}, expected 'min' or 'max'")
        if len({parameter, budget_key, CELL}) < 3:
            raise InputError(f"parameter, budget_key: {parameter!r}, {budget_key!r} are taken")
        self._parameter, self._budget_key, self._count = parameter, budget_key, count
        cells = Cells.of(plan, budget, resume, longer=True)
        self._resume, self.plan = resume and plan is None, cells.plan
        self.ledger, self._window = Ledger(CellSearch(cells.spec())), whole("window", window)
        self._reports: dict[str, list[list[float]]] = {}  # by trial: (iteration, score), the last
        self._trials: dict[str, str] = {}  # by task that has ended
        super().__init__(metric=metric, mode=mode or ("min" if metric else None))

    @property
    def stopper(self) -> Callable[[str, Mapping[str, Any]], bool]:
        """For `stop=`: ends a trial at its budget, where its loop does not end by itself."""
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
            raise InputError(
                f"metric, mode: got {self._metric!r}, {self._mode!r}; name what the trainable "
                "reports: GraspSearcher.for_step(10_000, metric='loss', mode='min')"
            )
        run.set_up()

    def task_in(self, config: Mapping[str, Any]) -> str | None:
        return cell_id(config[CELL])

    def next(self, trial_id: str, run: TuneRun | None) -> dict[str, Any] | Step:
        task: Any = self.ledger.next(trial_id)
        if isinstance(task, Step):
            return task
        cell, origin = cell_of(task), task.segments[0].origin
        found: dict[str, Any] = {CELL: cell.index, self._parameter: cell.value}
        found[self._budget_key] = cell.budget
        if self._resume:
            parent = "" if origin is None else self._trials[cell_id(origin.run)]
            kept = getattr(None if run is None else run.trial(parent), "checkpoint", None)
            if parent and kept is None:
                raise InputError(
                    f"resume: trial {parent} left no checkpoint to go on from; report one at its "
                    "end: tune.report(metrics, checkpoint=...)"
                )
            found["".join(self._budget_key.rpartition("/")[:2]) + "checkpoint"] = kept
        return dict(unflatten_dict(found))

    def _task(self, trial_id: str, row: Mapping[str, Any]) -> str | None:
        """Return the task of a trial, None where that is unknown, or known to have ended."""
        index, search = row.get(f"config/{CELL}"), self.ledger.search
        key = cell_id(index) if isinstance(index, int) else self.ledger.task_of(trial_id)
        return None if key not in search.tasks or search.settled(key) else key

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        step = result.get("training_iteration", 0)
        with contextlib.suppress(KeyError, TypeError, ValueError):
            value = float(result[self._metric or ""])  # also of NumPy or torch
            value = -value if self._mode == "max" else value
            # The last report comes twice, and a trial that Tune restarted comes by once more.
            kept = [item for item in self._reports.get(trial_id, []) if item[0] < step]
            self._reports[trial_id] = [*kept, [step, value]][-self._window :]

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Score the cell; one that failed is tried again, three times in all."""
        if error or result is None:
            run = TuneRun.asking()
            if self._failure is None and run is not None:
                self._failure = run.loading_fault(trial_id)
            self.ledger.gone(trial_id, "failed")
        elif key := self._task(trial_id, result):
            self.on_trial_result(trial_id, result)
            scores = [score for _, score in self._reports.get(trial_id, [])] or [math.nan]
            score, calls = sum(scores) / len(scores), int(result.get(self._count, 0))
            self._trials[key], cell = trial_id, cell_of(self.ledger.search.tasks[key])
            self.ledger.ended(key, cell_outcome(cell.index, cell.budget, score, calls))
        self._reports.pop(trial_id, None)

    @property
    def best(self) -> BestCell:
        """The best cell so far: its index, its trial and its score; raises where there is none."""
        row, ended = self.result.choice.chosen, self.ledger.search.outcomes
        if not row.arm:
            raise SearchError(f"none of the {len(ended)} cells that ended has a finite score")
        key = cell_id(row.arm)
        return BestCell(row.arm, self._trials[key], row.score, ended[key].calls)

    @property
    def cell(self) -> Cell:
        return cell_of(self.ledger.search.tasks[cell_id(self.best.cell)])

    @property
    def result(self) -> Result:
        """The result without a model: that is in the trial called `best.trial`."""
        return cell_result(self.ledger.search)

    def save(self, checkpoint_path: str) -> None:
        own = {"reports": self._reports, "trials": self._trials, "running": self.ledger.running}
        write_json_atomic(checkpoint_path, {**own, "cells": self.ledger.search.state()})

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a state; Tune says which of the cells that ran then still do."""
        state, spec = read_json(checkpoint_path, STATE_LIMIT), self.ledger.search.spec
        if not isinstance(state, dict) or not isinstance(state.get("cells"), dict):
            raise InputError("not a state of cells; where an earlier version wrote it, begin anew")
        if spec.difference(state["cells"]["spec"]):
            raise InputError("the saved sweep has another plan than this one")
        self.ledger = Ledger(CellSearch.from_state(state["cells"], spec))
        self._reports, self._trials = state["reports"], state["trials"]
        self.ledger.running = state["running"]
