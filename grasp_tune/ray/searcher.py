"""`GraspSearcher`: the ask/tell core in Ray Tune's words.

Every task of the search is a trial; a last one, `select`, leaves the chosen model as a Tune
checkpoint. Nothing here decides anything: see `runtime.shared_sweep`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyarrow import fs as arrow
from ray.tune.search import Searcher
from ray.tune.trainable import FunctionTrainable

from grasp_tune.core.errors import CheckpointError, GraspError, InputError, SearchError
from grasp_tune.core.methods import Method
from grasp_tune.core.plan import Plan
from grasp_tune.core.search import Progress, Step
from grasp_tune.core.spec import AnySchedule, EnsembleName, SweepSpec
from grasp_tune.engine.fused import WIDTH
from grasp_tune.loop.loop_optimizer import check_spec
from grasp_tune.ray.trainable import GraspTrainable
from grasp_tune.ray.trial import to_config, trial_name, work_in
from grasp_tune.ray.tune_internals import FOLDER, TuneRun, settled, sweep_folder
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.shared_sweep import SharedSweep

if TYPE_CHECKING:
    from torch import nn

    from grasp_tune.ray.plan_searcher import PlanSearcher

METRICS = ("score", "loss")  # what the last trial alone reports as numbers
FUNCTION_ENDED = (
    "the function ended in the middle of {task} (trial {trial}): make its optimizer with "
    "grasp_tune.ray.optimizer(model), loop until opt.done, and leave `stop` out; for a function "
    "that is given a learning rate use GraspSearcher.for_step(budget, parameter=...)"
)
STOPPED = (
    "stop: it ended trial {trial} in the middle of {task}; leave `stop` out, since the budget ends "
    "every trial, or stop the whole run with time_budget_s"
)


class GraspSearcher(Searcher):
    """A whole sweep as a Ray Tune searcher; see `grasp_trainable` and `optimizer`.

    method: `NonConvex()` by default; `Convex`, `ConvexFree` or `Deterministic`.
    budget: T, the oracle calls allowed in all.
    schedule: `promote` spends most calls on the leaders; `paper` is the paper's to the letter.
    seed: fixes everything: start point, minibatches, candidates.
    ensemble: `resample` scores candidates on fresh samples; `window` by the last minibatches.
    fused: batch the runs of a small model into one task; `auto` decides by the model's shape, as
        `grasp_tune.minimize` does, so that both give the same bits. False spreads the runs over
        the cluster.
    probe_parts: tasks that share the probe; by default as many as its length makes worthwhile with
        `paper`, and one with `promote`.
    challengers: further base optimizers that join the race, by name or as functions.
    metric, mode: `score` or `loss`, and `min`; a function of your own reports what it likes.
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
        self._begin(SharedSweep(spec, bases, width_known=fused != "auto"))
        super().__init__(metric=metric, mode=mode)

    @staticmethod
    def for_step(budget: int, parameter: str = "lr", **options: Any) -> "PlanSearcher":
        """Return a searcher that finds a step size for a trainable of the user's own.

        budget, parameter, options: see `PlanSearcher`.
        """
        from grasp_tune.ray.plan_searcher import PlanSearcher

        return PlanSearcher(None, parameter, budget=budget, **options)

    @staticmethod
    def from_plan(plan: Plan, parameter: str = "lr", **options: Any) -> "PlanSearcher":
        """Return a searcher that gives the plan's cells to a trainable of the user's own.

        plan, parameter, options: see `PlanSearcher`.
        """
        from grasp_tune.ray.plan_searcher import PlanSearcher

        return PlanSearcher(plan, parameter, **options)

    def _begin(self, sweep: SharedSweep) -> None:
        self._sweep = sweep
        self._own: set[str] = set()  # trials of this process, whose end Tune is sure to tell
        self._failure: Exception | None = None  # raised by the next `suggest`
        self._torn: CheckpointError | None = None  # the saved state cannot be read
        self._met: object = None  # the run that was set up
        self._function = False  # whether the trainable is a function of the user's own
        self._drawn: dict[str, Any] = {}  # constants of the sweep, from a search space
        self._build: Callable[[], nn.Module] | None = None

    def _draw(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config with a search space's constants, the same in every process."""
        found = settled(config, self.spec.seed)
        self._drawn = {key: found[key] for key in config if found[key] is not config[key]}
        return dict(found)

    # -- what Tune asks -------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take what Tune knows before the run; draw the sweep's constants from a search space."""
        self._draw(config)
        self._metric, self._mode = metric or self._metric, mode or self._mode
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next task as a config, None to be asked again later, or that all is done."""
        if self._failure is not None:
            raise self._failure
        if (tune := TuneRun.asking()) is not None:
            self._meet(tune)
            if (live := tune.live()) is not None:
                works = {trial: work_in(config) for trial, config in live.items()}
                self._sweep.follow(works, self._own)
        self._own.add(trial_id)
        work = self._sweep.next(trial_id)
        if isinstance(work, Step):
            return None if work is Step.WAIT else Searcher.FINISHED
        return {**self._drawn, **to_config(work, self._metric if self._function else None)}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        with self._kept_for_later():
            self._sweep.hear(result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn that a trial is over; one without an outcome has failed."""
        with self._kept_for_later():
            if result is not None and not error:
                self._sweep.hear(result)
                if (task := self._sweep.task_of(trial_id)) is not None:
                    advice = FUNCTION_ENDED if self._function else STOPPED
                    raise InputError(advice.format(task=task, trial=trial_id))
            tune = TuneRun.asking()
            reason = "it failed" if tune is None else tune.error_of(trial_id)
            last = reason.strip().splitlines()[-1]
            if "failed to import on the worker" in reason:
                raise SearchError(f"the trainable cannot be loaded in a worker process: {last}")
            self._sweep.gone(trial_id, last)

    @contextlib.contextmanager
    def _kept_for_later(self) -> Iterator[None]:
        # Tune turns an error here into text inside a TuneError, or loses it: `suggest` raises it.
        try:
            yield
        except Exception as error:
            self._failure = error

    def _meet(self, tune: TuneRun) -> None:
        """Set the run up for a sweep, when it asks for the first time."""
        if self._met is tune.generator:
            return
        tune.set_up(trial_name)
        trainable, constants = tune.trainable or GraspTrainable, self._draw(tune.constants)
        if issubclass(trainable, GraspTrainable):
            metric, mode = tune.metric or self._metric, tune.mode or self._mode
            if metric not in METRICS or mode != "min":
                raise InputError(
                    f"metric, mode: got {metric!r}, {mode!r}, expected 'score' or 'loss' and "
                    "'min': only the last trial, which holds the chosen model, reports them as "
                    "numbers"
                )
            # One with parameters needs them: its model can be built in its own processes only.
            if "setup" not in vars(trainable):
                make, seed = trainable.problem, self.spec.seed
                self._build = lambda: make(constants, {}).build(seed)
        elif issubclass(trainable, FunctionTrainable):
            self._function = True
            self._sweep.one_probe()
            check_spec(self.spec, self._sweep.bases)
            self._metric, self._mode = tune.metric, tune.mode  # it reports what it likes
        else:
            raise InputError(
                f"trainable: got {trainable.__name__}, expected a function that calls "
                "grasp_tune.ray.optimizer(model), or grasp_trainable(make_problem)"
            )
        found = tune.storage
        if self._torn is not None and (found is None or not self._sweep.adopt(_runs(*found))):
            raise self._torn
        if found is not None:
            self._sweep.storage = sweep_folder(*found, self.run)
        self._met = tune.generator

    # -- what users ask -------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The sweep's own name: its folder below `grasp/` in the experiment's storage."""
        return self._sweep.run

    @property
    def spec(self) -> SweepSpec:
        """Everything that fixes the sweep; `width` is known from the first report on."""
        return self._sweep.search.spec

    @property
    def progress(self) -> Progress:
        """Where the search stands; calls of running tasks are counted as last reported."""
        return self._sweep.progress

    @property
    def plan(self) -> Plan | None:
        """The paper's plan, known from the end of the probe."""
        return self._sweep.search.plan

    @property
    def failure(self) -> Exception | None:
        """What ended the run, if it was ended by an error that this searcher raised."""
        return self._failure

    @property
    def result(self) -> Result:
        """The result; the best so far, marked partial, where the run was stopped early."""
        if self._failure is not None:
            raise self._failure
        return self._sweep.result(self._build)

    # -- saving and restoring -------------------------------------------------------------------

    def save(self, checkpoint_path: str) -> None:
        write_json_atomic(Path(checkpoint_path), self._sweep.state())

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a state; one of another sweep ends the run with a sentence about it."""
        try:
            self._sweep.load(read_json(checkpoint_path, STATE_LIMIT))
        except CheckpointError as error:  # the driver was killed while Tune copied the file
            self._torn = error
        except GraspError as error:
            # Raised here, Tune would log it and start the sweep again from its beginning.
            self._failure = error

    def __getstate__(self) -> dict[str, Any]:
        state, sweep = self._sweep.state(), self._sweep
        own = {"metric": self._metric, "mode": self._mode, "state": state}
        return {**own, "spec": sweep.search.spec, "bases": sweep.bases}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        state = kept["state"]
        sweep = SharedSweep(kept["spec"], kept["bases"], width_known=state["width_known"])
        self._begin(sweep)
        Searcher.__init__(self, metric=kept["metric"], mode=kept["mode"])
        sweep.load(state)


def _runs(filesystem: arrow.FileSystem, path: str) -> list[str]:
    """The names of the sweeps in an experiment's storage, the latest last."""
    found = filesystem.get_file_info(arrow.FileSelector(f"{path}/{FOLDER}", allow_not_found=True))
    return [item.base_name for item in sorted(found, key=lambda item: item.mtime_ns or 0)]
