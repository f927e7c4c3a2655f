"""The paper's plan for a trainable of the user's own: every cell a trial, and the best one named.

The trainable is given a value and a budget, trains in its own way and reports a metric; nothing
is sampled again. A cell's score is the mean of its last reports (the paper's window), or whatever
a function of the user's makes of the last one.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ray.tune import Stopper
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from grasp_tune.core.choice import Candidate, Choice
from grasp_tune.core.ensemble import best
from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.methods import method_from_dict
from grasp_tune.core.plan import Cell, Plan
from grasp_tune.core.records import Json, decode, encode
from grasp_tune.core.search import ATTEMPTS
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import START, iterate_key
from grasp_tune.ray.host import Host, refuse_domains
from grasp_tune.runtime.files import read_json, write_json_atomic
from grasp_tune.runtime.result import Result, Run
from grasp_tune.runtime.state_file import STATE_LIMIT

CELL = "cell"  # the config's key for the cell's index: work is known by it
Score = Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """How one cell went."""

    cell: int
    trial: str
    score: float  # the smaller the better; NaN where there was none
    calls: int  # as the trainable counted them


class BudgetStopper(Stopper):
    """Ends a trial whose count has reached its budget: a guard, for a loop that does not end."""

    def __init__(self, budget: str = "budget", count: str = "training_iteration") -> None:
        self._budget, self._count = budget, count

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return whether this trial is at its end."""
        limit = (result.get("config") or {}).get(self._budget)
        return limit is not None and result.get(self._count, 0) >= limit

    def stop_all(self) -> bool:
        """Return False: the searcher ends the run."""
        return False


class PlanSearcher(Searcher):
    """Suggests the cells of a plan; made by `GraspSearcher.from_plan`.

    parameter: the config's key for the cell's value, such as `lr`.
    metric, mode: what the trainable reports; where left out, those given to Tune.
    budget_key: the config's key for the cell's oracle calls.
    count: what the trainable reports its oracle calls as.
    window: the score is the mean over so many last reports.
    score: or a function of the last report, which has `config/...` in it; smaller is better.
    """

    def __init__(
        self,
        plan: Plan,
        parameter: str = "lr",
        *,
        metric: str | None = None,
        mode: str = "min",
        budget_key: str = "budget",
        count: str = "training_iteration",
        window: int = 1,
        score: Score | None = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise InputError(f"mode: got {mode!r}, expected 'min' or 'max'")
        if window < 1:
            raise InputError(f"window: got {window!r}, expected a whole number >= 1")
        if len({parameter, budget_key, CELL}) < 3:
            raise InputError(f"parameter, budget_key: {parameter!r}, {budget_key!r} are taken")
        self.plan = plan
        self._parameter, self._budget_key, self._count = parameter, budget_key, count
        self._window, self._score = window, score
        self._cells = {cell.index: cell for cell in plan.cells}
        self._outcomes: dict[int, CellOutcome] = {}
        self._failures: dict[int, int] = {}
        self._issued: dict[int, str] = {}
        self._reports: dict[int, deque[float]] = {}
        self._last: dict[int, dict[str, Any]] = {}
        self._met = False
        super().__init__(metric=metric, mode=mode)

    @property
    def stopper(self) -> BudgetStopper:
        """A stopper for `stop=`, which ends trials at their budgets."""
        return BudgetStopper(self._budget_key, self._count)

    # -- what Tune asks --------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take metric and mode where none were given; refuse what would have to be sampled."""
        refuse_domains(config)
        self._metric = self._metric or metric
        self._mode = mode or self._mode
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next cell as a config, None to be asked later, or that all have ended."""
        host = Host.asking()
        if host is not None:
            self._meet(host)
            self._look_around(host)
        for index, cell in self._cells.items():
            if index not in self._issued and not self._settled(index):
                self._issued[index] = trial_id
                return {
                    self._parameter: cell.value,
                    self._budget_key: cell.budget,
                    CELL: index,
                }
        return None if self._issued else Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Remember a report for the window."""
        index = self._index(trial_id, result)
        if index is None or index in self._outcomes:
            return
        step = int(result.get("training_iteration", 0))
        if self._last.get(index, {}).get("training_iteration") == step:
            return  # the last report comes twice
        self._last[index] = dict(result)
        value = result.get(self._metric or "")
        if isinstance(value, int | float):
            self._reports.setdefault(index, deque(maxlen=self._window)).append(float(value))

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Score the cell; one that failed is tried again, three times in all."""
        index = self._index(trial_id, result or {})
        if index is None or self._settled(index):
            return
        self._issued.pop(index, None)
        if error or result is None:
            self._failures[index] = self._failures.get(index, 0) + 1
            self._reports.pop(index, None)
            self._last.pop(index, None)
            return
        self.on_trial_result(trial_id, result)
        self._outcomes[index] = CellOutcome(
            index, trial_id, self._judge(index, result), int(result.get(self._count, 0))
        )

    # -- inside ----------------------------------------------------------------------------------

    def _meet(self, host: Host) -> None:
        if self._met:
            return
        self._metric = self._metric or getattr(host.controller, "_metric", None)
        if self._metric is None and self._score is None:
            raise InputError("metric: got None, expected the name of what the trainable reports")
        host.refuse_schedulers()
        host.refuse_domains()
        host.run_whole()
        host.queue_ahead()
        host.follow_storage()
        host.name_trials(None, partial(_folder, self._parameter, self._budget_key))
        self._met = True

    def _look_around(self, host: Host) -> None:
        live = host.live()
        if live is None:
            return
        running = {int(c[CELL]): trial for trial, c in live.items() if c.get(CELL) in self._cells}
        self._issued = {index: running[index] for index in running if not self._settled(index)}

    def _index(self, trial_id: str, result: Mapping[str, Any]) -> int | None:
        index = result.get(f"config/{CELL}")
        if index is None:
            owners = [key for key, trial in self._issued.items() if trial == trial_id]
            index = owners[0] if owners else None
        return index if index in self._cells else None

    def _settled(self, index: int) -> bool:
        return index in self._outcomes or self._failures.get(index, 0) >= ATTEMPTS

    def _judge(self, index: int, result: Mapping[str, Any]) -> float:
        if self._score is not None:
            return float(self._score(result))
        reports = self._reports.get(index)
        if not reports:
            return math.nan
        mean = sum(reports) / len(reports)
        return -mean if self._mode == "max" else mean

    # -- what users ask --------------------------------------------------------------------------

    @property
    def best(self) -> CellOutcome:
        """The best cell so far: its index, its trial and its score."""
        outcomes = list(self._outcomes.values())
        if not outcomes:
            raise SearchError("there is no result yet: no cell has been run to its end")
        return outcomes[best([item.score for item in outcomes])]

    @property
    def cell(self) -> Cell:
        """The best cell so far."""
        return self._cells[self.best.cell]

    @property
    def result(self) -> Result:
        """The result without a model: that is in the trial called `best.trial`."""
        found = self.best
        rows = [Candidate(START, 0, "", math.nan, 0, False, math.nan, 0, math.nan)]
        runs, base = [], self.plan.method.base or "own"
        for index, cell in self._cells.items():
            outcome = self._outcomes.get(index)
            score = math.nan if outcome is None else outcome.score
            note = "" if math.isfinite(score) else ("diverged" if outcome else "lost")
            key = iterate_key(index, cell.budget)
            rows.append(
                Candidate(
                    key, index, base, cell.value, cell.budget, False, score, 0, math.nan, note
                )
            )
            calls = 0 if outcome is None else outcome.calls
            runs.append(
                Run(
                    arm=index,
                    base=base,
                    value=cell.value,
                    power=0.0,
                    calls=calls,
                    finite=not note,
                    stretches=((0, cell.budget),),
                    curve=(),
                    losses=(score,),
                )
            )
        won = math.isfinite(found.score)
        choice = Choice(
            iterate_key(found.cell, self.cell.budget) if won else START,
            "value",
            "window",
            tuple(rows),
            covered=False,
            partial=not all(self._settled(index) for index in self._cells),
            notes=() if won else ("no run reported a finite metric, so x0 is returned",),
        )
        record = encode(self.plan.method)
        if ":" in (record["base"] or ""):
            record["base"] = None  # a function: known by its name only
        spec = SweepSpec(
            method_from_dict(record), self.plan.budget, schedule="paper", ensemble="window"
        )
        spent = sum(run.calls for run in runs)
        return Result(
            spec=spec.to_dict(),
            choice=choice,
            plan=self.plan,
            certificate=None,
            calls={"probe": 0, "train": spent, "ensemble": 0, "repeated": 0},
            runs=tuple(runs),
            tensors={},
        )

    # -- saving and restoring --------------------------------------------------------------------

    def save(self, checkpoint_path: str) -> None:
        """Write the state as JSON, atomically."""
        state: dict[str, Json] = {
            "format": 1,
            "plan": self.plan.to_dict(),
            "outcomes": encode(tuple(self._outcomes.values())),
            "failures": {str(key): count for key, count in self._failures.items()},
        }
        write_json_atomic(Path(checkpoint_path), state)

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a state; running cells are known again from their trials."""
        state = read_json(checkpoint_path, STATE_LIMIT)
        if Plan.from_dict(state["plan"]) != self.plan:
            raise InputError("the saved sweep has another plan than this one")
        found = [decode(CellOutcome, item) for item in state["outcomes"]]
        self._outcomes = {item.cell: item for item in found}
        self._failures = {int(key): int(count) for key, count in state["failures"].items()}


def _folder(parameter: str, budget: str, trial: Trial) -> str:
    """Return the name of a trial's folder, such as `cell07_lr_0.0123_120calls_2b9c1f04`."""
    config = trial.config
    value, calls = config.get(parameter, math.nan), config.get(budget)
    cell = f"cell{config.get(CELL, 0):02d}"
    return f"{cell}_{parameter}_{value:.3g}_{calls}calls_{trial.trial_id}"
