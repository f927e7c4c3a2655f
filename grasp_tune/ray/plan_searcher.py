"""Step sizes for a trainable of the user's own: every cell a trial, and the best one named.

The cells are those of a search that needs nothing but a budget, or of the paper's plan. The
trainable is given a value and a budget, trains in its own way and reports a metric; nothing is
sampled again. A cell's score is the mean of its last reports (the paper's window), or whatever a
function of the user's makes of the last one.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ray.tune import Stopper
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from grasp_tune.core.errors import InputError
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.search import Step
from grasp_tune.ray.trial import folder_name
from grasp_tune.ray.tune_internals import TuneRun, settled
from grasp_tune.runtime.cell_search import CellOutcome, CellSearch, cell_id, training_only
from grasp_tune.runtime.driver import Ledger
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic
from grasp_tune.runtime.result import Result
from grasp_tune.schedules.step_search import StepSearch

CELL = "cell"  # the config's key for the cell's index: work is known by it


class BudgetStopper(Stopper):
    """Ends a trial whose count has reached its budget: a guard, for a loop that does not end.

    budget: the config's key for the cell's oracle calls.
    count: what the trainable reports its oracle calls as.
    """

    def __init__(self, budget: str = "budget", count: str = "training_iteration") -> None:
        self._budget, self._count = budget, count

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        limit = _entry(result.get("config") or {}, self._budget)
        return limit is not None and result.get(self._count, 0) >= limit

    def stop_all(self) -> bool:
        return False


class PlanSearcher(Searcher):
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
    score: or a function of the last report, which has `config/...` in it; smaller is better.
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
        score: Callable[[Mapping[str, Any]], float] | None = None,
    ) -> None:
        if (plan is None) == (budget is None):
            raise InputError("give either a plan or a budget: GraspSearcher.for_step(10_000)")
        if mode not in ("min", "max", None):
            raise InputError(f"mode: got {mode!r}, expected 'min' or 'max'")
        if window < 1:
            raise InputError(f"window: got {window!r}, expected a whole number >= 1")
        if len({parameter, budget_key, CELL}) < 3:
            raise InputError(f"parameter, budget_key: {parameter!r}, {budget_key!r} are taken")
        self._parameter, self._budget_key, self._count = parameter, budget_key, count
        self._window, self._score = window, score
        self._begin(
            CellSearch(StepSearch(budget or 0, resume) if plan is None else training_only(plan))
        )
        self._own: set[str] = set()  # trials of this process, whose end Tune is sure to tell
        self._met: object = None
        super().__init__(metric=metric, mode=mode or ("min" if metric else None))

    def _begin(self, cells: CellSearch) -> None:
        self._cells, self._ledger = cells, Ledger(cells)  # type: ignore[arg-type]
        self._reports: dict[str, deque[float]] = {}
        self._steps: dict[str, int] = {}  # the last step that each cell reported

    @property
    def stopper(self) -> BudgetStopper:
        """A stopper for `stop=`, which ends trials at their budgets."""
        return BudgetStopper(self._budget_key, self._count)

    # -- what Tune asks -------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take metric and mode where none were given; refuse what would have to be sampled."""
        settled(config, None)
        if self._metric in (None, metric):
            self._metric, self._mode = metric, mode or self._mode
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next cell as a config, None to be asked later, or that all have ended."""
        if (tune := TuneRun.asking()) is not None:
            self._meet(tune)
            if (live := tune.live()) is not None:
                found = {cell_id(config[CELL]): trial for trial, config in live.items()}
                running = {key: t for key, t in found.items() if not self._cells.settled(key)}
                self._own.update(running.values())
                self._ledger.follow(running, self._own)
        self._own.add(trial_id)
        task: Any = self._ledger.next(trial_id)
        if isinstance(task, Step):
            return None if task is Step.WAIT else Searcher.FINISHED
        config: dict[str, Any] = {CELL: task.cell.index}
        entries = {self._parameter: task.cell.value, self._budget_key: task.cell.budget}
        if getattr(self._cells.source, "resume", False):
            beside = self._budget_key.rpartition("/")
            entries["".join(beside[:2]) + "checkpoint"] = self._checkpoint(tune, task.parent)
        for name, value in entries.items():
            *parents, last = name.split("/")
            inner = config
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = value
        return config

    @staticmethod
    def _checkpoint(tune: TuneRun | None, trial_id: str) -> Any:
        found = tune.checkpoint_of(trial_id) if tune is not None and trial_id else None
        if trial_id and found is None:
            raise InputError(
                f"resume: trial {trial_id} left no checkpoint to go on from; report one at its "
                "end: tune.report(metrics, checkpoint=...)"
            )
        return found

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        key = self._key(trial_id, result)
        step = int(result.get("training_iteration", 0))
        if key is None or self._cells.settled(key) or self._steps.get(key) == step:
            return  # the last report comes twice
        self._steps[key] = step
        value = result.get(self._metric or "")
        if isinstance(value, int | float):
            self._reports.setdefault(key, deque(maxlen=self._window)).append(float(value))

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Score the cell; one that failed is tried again, three times in all."""
        key = self._key(trial_id, result or {})
        if key is None or self._cells.settled(key):
            return
        if error or result is None:
            self._ledger.gone(trial_id, "failed")
            self._reports.pop(key, None)
            self._steps.pop(key, None)
            return
        self.on_trial_result(trial_id, result)
        score, index = self._judge(key, result), self._cells.cells[key].index
        outcome = CellOutcome(index, trial_id, score, int(result.get(self._count, 0)))
        self._ledger.ended(key, outcome)  # type: ignore[arg-type]

    def _meet(self, tune: TuneRun) -> None:
        if self._met is tune.generator:
            return
        if self._metric is None:  # Tune tells a searcher only where there is a config
            self._metric, self._mode = tune.metric, tune.mode
        if self._score is None and (self._metric is None or self._mode is None):
            raise InputError(
                f"metric, mode: got {self._metric!r}, {self._mode!r}; name what the trainable "
                "reports: GraspSearcher.for_step(10_000, metric='loss', mode='min')"
            )
        tune.set_up(partial(_folder, self._parameter, self._budget_key))
        self._met = tune.generator

    def _key(self, trial_id: str, result: Mapping[str, Any]) -> str | None:
        owners = [key for key, trial in self._ledger.running.items() if trial == trial_id]
        index = result.get(f"config/{CELL}")
        key = cell_id(index) if isinstance(index, int) else next(iter(owners), None)
        return key if key in self._cells.cells else None

    def _judge(self, key: str, result: Mapping[str, Any]) -> float:
        if self._score is not None:
            return float(self._score(result))
        reports = self._reports.get(key)
        mean = sum(reports) / len(reports) if reports else math.nan
        return -mean if self._mode == "max" else mean

    # -- what users ask -------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The given plan, with its whole budget for training; None where there is none."""
        return self._cells.source if isinstance(self._cells.source, Plan) else None

    @property
    def best(self) -> CellOutcome:
        """The best cell so far: its index, its trial and its score; raises where there is none."""
        return self._cells.best

    @property
    def cell(self) -> Cell:
        return self._cells.cells[cell_id(self.best.cell)]

    @property
    def result(self) -> Result:
        """The result without a model: that is in the trial called `best.trial`."""
        return self._cells.result()

    # -- saving and restoring -------------------------------------------------------------------

    def save(self, checkpoint_path: str) -> None:
        reports = {key: list(window) for key, window in self._reports.items()}
        own = {"running": self._ledger.running, "reports": reports, "steps": self._steps}
        write_json_atomic(Path(checkpoint_path), {"format": 2, **self._cells.state(), **own})

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a state; cells that were running are not issued again while they live."""
        state = read_json(checkpoint_path, STATE_LIMIT)
        self._begin(CellSearch.from_state(state, self._cells.source))
        self._ledger.running.update(state["running"])
        self._steps = {key: int(step) for key, step in state["steps"].items()}
        for key, window in state["reports"].items():
            self._reports[key] = deque(map(float, window), maxlen=self._window)


def _entry(config: Mapping[str, Any], name: str) -> Any:
    """Return what a name such as `train_loop_config/lr` stands for; None where nothing does."""
    for part in name.split("/"):
        config = config.get(part) if isinstance(config, Mapping) else None  # type: ignore[assignment]
    return config


def _folder(parameter: str, budget: str, trial: Trial) -> str:
    """Return the name of a trial's folder, such as `cell07_lr_0.0123_120calls_2b9c1f04`."""
    value, calls = _entry(trial.config, parameter), _entry(trial.config, budget)
    name = f"cell{trial.config.get(CELL, 0):02d}_{parameter}_{value:.3g}_{calls}calls"
    return folder_name(f"{name}_{trial.trial_id}")
