"""`GraspSearcher`: the ask/tell core in Ray Tune's words.

Every task of the search is a trial; a last one, `select`, leaves the chosen model as a Tune
checkpoint. Nothing here decides anything about the method.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ray.tune.search import Searcher, SearchGenerator

from grasp_tune.core.errors import GraspError, InputError, SearchError
from grasp_tune.core.methods import Method, NonConvex
from grasp_tune.core.plan import Plan
from grasp_tune.core.search import Progress, Step
from grasp_tune.core.spec import EnsembleName, ScheduleName, SweepSpec
from grasp_tune.core.tasks import START
from grasp_tune.engine.checkpoints import model_tensors
from grasp_tune.engine.fused import WIDTH
from grasp_tune.optimizers.registry import Factory
from grasp_tune.ray.depot import Depot
from grasp_tune.ray.host import Host, refuse_domains
from grasp_tune.ray.sweep import Sweep
from grasp_tune.ray.trainable import CHOSEN, GraspTrainable, count_repeated
from grasp_tune.ray.work import Work, trial_folder, trial_name
from grasp_tune.runtime.files import read_json, write_json_atomic
from grasp_tune.runtime.result import Result
from grasp_tune.runtime.state_file import STATE_LIMIT

if TYPE_CHECKING:
    from torch import nn

    from grasp_tune.ray.plan_searcher import PlanSearcher

METRICS = ("score", "loss")  # what the last trial alone reports as numbers


class GraspSearcher(Searcher):
    """A whole sweep as a Ray Tune searcher; see `grasp_trainable`.

    method: `NonConvex()` by default; `Convex`, `ConvexFree` or `Deterministic`.
    budget: T, the oracle calls allowed in all.
    schedule: `promote` spends most calls on the leaders; `paper` is the paper's to the letter.
    seed: fixes everything: start point, minibatches, candidates.
    fused: batch the runs of a small model into one task; `auto` decides by the model's shape, as
        `grasp_tune.minimize` does, so that both give the same bits. False spreads the runs over
        the cluster.
    probe_parts: tasks that share the probe.
    challengers: further base optimizers that join the race, by name or as functions.
    """

    def __init__(
        self,
        method: Method | None = None,
        budget: int = 10_000,
        schedule: ScheduleName = "promote",
        seed: int = 0,
        *,
        ensemble: EnsembleName = "resample",
        fused: bool | Literal["auto"] = "auto",
        probe_parts: int = 1,
        challengers: Mapping[str, Callable[..., object]] | tuple[str, ...] = (),
        metric: str = "score",
        mode: str = "min",
    ) -> None:
        if fused not in (True, False, "auto"):
            raise InputError(f"fused: got {fused!r}, expected True, False or 'auto'")
        method = NonConvex() if method is None else method
        bases: dict[str, Factory] = {}
        if callable(method.base):
            bases[method.base_name(schedule)] = method.base
        if isinstance(challengers, Mapping):
            bases.update({name: make for name, make in challengers.items() if callable(make)})
        spec = SweepSpec(
            method=method,
            budget=budget,
            schedule=schedule,
            seed=seed,
            ensemble=ensemble,
            width=WIDTH if fused is True else 0,
            probe_parts=probe_parts,
            challengers=tuple(challengers),
        )
        self._begin(spec, bases, width_known=fused != "auto")
        self._check_metric(metric, mode)
        super().__init__(metric=metric, mode=mode)

    @classmethod
    def from_setting(
        cls,
        spec: SweepSpec,
        bases: Mapping[str, Factory] | None = None,
        run: str | None = None,
    ) -> "GraspSearcher":
        """Return a searcher for a spec whose width is already decided.

        run: the sweep's name, where an earlier process may have begun it; what that one left in
            the storage is used. None: a name of its own.
        """
        searcher = cls(spec.method, spec.budget, spec.schedule, spec.seed, fused=False)
        searcher._begin(spec, dict(bases or {}), width_known=True)
        searcher._sweep.run = searcher._sweep.run if run is None else run
        return searcher

    @staticmethod
    def from_plan(
        plan: Plan,
        parameter: str = "lr",
        *,
        metric: str | None = None,
        mode: str = "min",
        budget_key: str = "budget",
        count: str = "training_iteration",
        window: int = 1,
        score: Callable[[Mapping[str, Any]], float] | None = None,
    ) -> "PlanSearcher":
        """Return a searcher that gives the plan's cells to a trainable of the user's own."""
        from grasp_tune.ray.plan_searcher import PlanSearcher

        return PlanSearcher(
            plan,
            parameter,
            metric=metric,
            mode=mode,
            budget_key=budget_key,
            count=count,
            window=window,
            score=score,
        )

    def _begin(self, spec: SweepSpec, bases: dict[str, Factory], *, width_known: bool) -> None:
        self._sweep = Sweep(spec, width_known=width_known)
        self._bases = bases
        self._failure: Exception | None = None  # raised by the next `suggest`
        self._met: SearchGenerator | None = None  # the run that was set up
        self._build: Callable[[], nn.Module] | None = None

    # -- what Tune asks --------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take what Tune knows before the run; refuse what would have to be sampled."""
        refuse_domains(config)
        self._check_metric(metric or self._metric, mode or self._mode)
        self._metric, self._mode = metric or self._metric, mode or self._mode
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next task as a config, None to be asked again later, or that all is done."""
        if self._failure is not None:
            raise self._failure
        host = Host.asking()
        if host is not None:
            self._meet(host)
            if (live := host.live()) is not None:
                self._sweep.compare(live)
        work = self._sweep.next_work(trial_id)
        if isinstance(work, Work):
            return work.to_config(self._bases)
        return None if work is Step.WAIT else Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Learn from a report: how far a task is, or how it ended."""
        with self._kept_for_later():
            self._sweep.hear(result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn that a trial is over; one without an outcome has failed."""
        with self._kept_for_later():
            if result is not None and not error:
                self._sweep.hear(result)
                self._sweep.fail(trial_id, f"trial {trial_id} was stopped before its end")
                return
            host = Host.asking()
            reason = f"trial {trial_id} failed" if host is None else host.error_of(trial_id)
            self._sweep.fail(trial_id, reason)

    @contextlib.contextmanager
    def _kept_for_later(self) -> Iterator[None]:
        # Tune turns an error here into text inside a TuneError, or loses it: `suggest` raises it.
        try:
            yield
        except GraspError as error:
            self._failure = error

    def _meet(self, host: Host) -> None:
        """Set the run up for a sweep, when it asks for the first time."""
        if self._met is host.generator:
            return
        host.refuse_schedulers()
        host.refuse_domains()
        host.run_whole()
        host.keep_actors()
        host.queue_ahead()
        host.follow_storage()
        host.name_trials(trial_name, trial_folder)
        trainable = host.trainable
        if trainable is not None and not issubclass(trainable, GraspTrainable):
            raise InputError(
                f"trainable: got {trainable.__name__}, expected grasp_trainable(make_problem); "
                "for a trainable of your own use GraspSearcher.from_plan(plan, parameter=...)"
            )
        if trainable is not None:
            source, constants, seed = trainable.source, host.constants, self.spec.seed
            self._build = lambda: source.problem(constants).build(seed)
        if host.storage is not None:
            self._sweep.depot = Depot(*host.storage, self._sweep.run)
        self._met = host.generator

    def _check_metric(self, metric: str | None, mode: str | None) -> None:
        if metric not in METRICS or mode != "min":
            raise InputError(
                f"metric, mode: got {metric!r}, {mode!r}, expected 'score' or 'loss' and 'min': "
                "only the last trial, which holds the chosen model, reports them as numbers"
            )

    # -- what users ask --------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The sweep's own name: its folder below `grasp/` in the experiment's storage."""
        return self._sweep.run

    @property
    def spec(self) -> SweepSpec:
        """Everything that fixes the sweep; `width` is known from the first report on."""
        return self._sweep.spec

    @property
    def progress(self) -> Progress:
        """Where the search stands; calls of running tasks are counted as last reported."""
        found = self._sweep.search.progress
        return replace(found, calls=found.calls + sum(self._sweep.under_way.values()))

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
        search, depot = self._sweep.search, self._sweep.open_depot()
        if depot is None:
            raise SearchError("there is no result yet: nothing has been run")
        key = CHOSEN if self._sweep.selected else search.partial().key
        count_repeated(search, depot)
        if key == START and not depot.store.exists(START) and self._build is not None:
            return Result.of(search, model_tensors(self._build()), self._build)  # nothing ended
        return Result.of(search, depot.store.read(key).tensors, self._build)

    # -- saving and restoring --------------------------------------------------------------------

    def save(self, checkpoint_path: str) -> None:
        """Write the state as JSON, atomically."""
        write_json_atomic(Path(checkpoint_path), self._sweep.state())

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a state; one of another sweep ends the run with a sentence about it."""
        try:
            self._sweep.load(read_json(checkpoint_path, STATE_LIMIT))
        except GraspError as error:
            # Raised here, Tune would log it and start the sweep again from its beginning.
            self._failure = error

    def __getstate__(self) -> dict[str, Any]:
        own = {"metric": self._metric, "mode": self._mode, "bases": self._bases}
        return {**own, "spec": self.spec, "state": self._sweep.state()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        state = kept["state"]
        self._begin(kept["spec"], kept["bases"], width_known=state["width_known"])
        Searcher.__init__(self, metric=kept["metric"], mode=kept["mode"])
        self._sweep.load(state)
