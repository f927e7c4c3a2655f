"""Step sizes for a trainable of the user's own: every cell a trial, and the best one named.

The cells are those of a search that needs nothing but a budget, or of the paper's plan. The
trainable is given a value and a budget, trains in its own way and reports a metric; nothing is
sampled again. A cell's score is the mean of its last reports (the paper's window).
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.utils import unflattened_lookup
from ray.tune.utils.util import unflatten_dict  # type: ignore[attr-defined]

from grasp_tune.core.checkpoint_keys import place_of
from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.search import Step
from grasp_tune.ray.tune_internals import TuneRun, TuneSearcher, drawn
from grasp_tune.runtime.cell_sweep import BestCell, CellSweep, cell_result
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.cells import Cells, cell_id, cell_of

CELL = "cell"  # the config's key for the cell's index: work is known by it


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
        self.ledger: CellSweep = CellSweep(cells.spec(), window)
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
            parent = "" if origin is None else self.ledger.trials[cell_id(place_of(origin)[0])]
            kept = getattr(None if run is None else run.trial(parent), "checkpoint", None)
            if parent and kept is None:
                raise InputError(
                    f"resume: trial {parent} left no checkpoint to go on from; report one at its "
                    "end: tune.report(metrics, checkpoint=...)"
                )
            found["".join(self._budget_key.rpartition("/")[:2]) + "checkpoint"] = kept
        return dict(unflatten_dict(found))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            value = float(result[self._metric or ""])  # also of NumPy or torch
            value = -value if self._mode == "max" else value
            self.ledger.hear(trial_id, result.get("training_iteration", 0), value)

    def done(self, trial_id: str, result: dict[str, Any]) -> None:
        """Score the cell; one that failed is tried again, three times in all."""
        if key := self.ledger.task_given(result.get(f"config/{CELL}"), trial_id):
            self.on_trial_result(trial_id, result)
            self.ledger.score(key, trial_id, int(result.get(self._count, 0)))

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
        if self._failure is not None:
            raise self._failure
        return cell_result(self.ledger.search)
