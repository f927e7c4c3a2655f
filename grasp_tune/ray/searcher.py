"""`GraspSearcher`: the ask/tell core in Ray Tune's words.

Every task of the search is a trial; a last one, `select`, leaves the chosen model as a Tune
checkpoint. Nothing here decides anything: see `runtime.shared_sweep`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ray import tune
from ray.tune.trainable import FunctionTrainable
from torch import nn

from grasp_tune.core.errors import CheckpointError, InputError, SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Plan
from grasp_tune.core.search import Progress, Step
from grasp_tune.core.spec import AnySchedule, EnsembleName, SweepSpec
from grasp_tune.engine.fused import WIDTH
from grasp_tune.loop.loop_optimizer import check_spec
from grasp_tune.ray.plan_searcher import PlanSearcher
from grasp_tune.ray.trial import KEY, GraspTrainable, to_config, trial_name, work_in
from grasp_tune.ray.tune_internals import FOLDER, TuneRun, TuneSearcher, drawn, storage_of
from grasp_tune.runtime.callbacks import Reporter, reporter_for
from grasp_tune.runtime.cell_sweep import cell_result
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.files import STATE_LIMIT, read_json
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_storage import SharedStorage
from grasp_tune.runtime.shared_sweep import SharedSweep
from grasp_tune.schedules.cells import CellSearch
from grasp_tune.schedules.paper import for_a_loss


class GraspSearcher(TuneSearcher):
    """A whole sweep as a Ray Tune searcher; see `grasp_trainable` and `optimizer`.

    method, budget, schedule, seed, ensemble, challengers: as `grasp_tune.minimize` takes them.
    fused: let short runs of a small model share a task; `auto` decides by the model's shape, as
        `minimize` does, so that both give the same bits. False spreads the runs over the cluster.
    probe_parts: tasks that share the probe; by default as many as its length makes worthwhile with
        `paper`, and one with `promote`.
    metric, mode: `score` or `loss`, and `min`; a function of your own reports what it likes. With
        `loss`, `paper` compares losses, too, where the paper compares norms of gradients.
    """

    def __init__(
        self,
        method: Method | None = None,
        budget: int = 10_000,
        schedule: AnySchedule = "promote",
        seed: int = 0,
        *,
        ensemble: EnsembleName = "resample",
        fused: bool | Literal["auto"] = "auto",
        probe_parts: int | None = None,
        challengers: Mapping[str, Callable[..., object]] | tuple[str, ...] = (),
        metric: str = "score",
        mode: str = "min",
    ) -> None:
        if fused not in (True, False, "auto"):
            raise InputError(f"fused: got {fused!r}, expected True, False or 'auto'")
        width = WIDTH if fused is True else 0
        spec, bases = SweepSpec.assemble(
            method, budget, schedule, seed, ensemble, width, probe_parts, challengers
        )
        self.ledger: SharedSweep = SharedSweep(spec, bases, width_known=fused != "auto")
        self._function = False  # whether the trainable is a function of the user's own
        self._drawn: dict[str, Any] = {}  # constants of the sweep, from a search space
        self._build: Callable[[], nn.Module] | None = None
        super().__init__(metric=metric, mode=mode)

    @staticmethod
    def for_step(budget: int, parameter: str = "lr", **options: Any) -> PlanSearcher:
        """Return a searcher of a step size for a trainable of the user's: see `PlanSearcher`."""
        return PlanSearcher(None, parameter, budget=budget, **options)

    @staticmethod
    def from_plan(plan: Plan, parameter: str = "lr", **options: Any) -> PlanSearcher:
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
            if self._metric not in ("score", "loss") or self._mode != "min":
                raise InputError(
                    f"metric, mode: got {self._metric!r}, {self._mode!r}, expected 'score' or "
                    "'loss' and 'min', which the last trial, with the chosen model, reports"
                )
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
            raise InputError(
                f"trainable: got {trainable.__name__}, expected a function that calls "
                "grasp_tune.ray.optimizer(model), or grasp_trainable(make_problem)"
            )
        found = storage_of(run.spec.get("storage"))
        if found is not None:
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

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        with self._kept_for_later():
            self.ledger.hear(trial_id, result)

    def done(self, trial_id: str, result: dict[str, Any]) -> None:
        self.ledger.hear(trial_id, result)
        if (task := self.ledger.task_of(trial_id)) is not None:
            if not self._function:
                raise InputError(
                    f"stop: it ended trial {trial_id} in the middle of {task}; leave `stop` out: "
                    "the budget ends trials, and time_budget_s the run"
                )
            raise InputError(
                f"the function ended in the middle of {task} (trial {trial_id}): make its "
                "optimizer with grasp_tune.ray.optimizer(model), loop until opt.done, and "
                "leave `stop` out; for a function that is given a learning rate use "
                "GraspSearcher.for_step(budget, parameter=...)"
            )

    @property
    def spec(self) -> SweepSpec:
        """Everything that fixes the sweep; `width` is known from the first report on."""
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
        if self._failure is not None:
            raise self._failure
        return self.ledger.result(self._build)


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
