"""Everything here that is private to Ray Tune, each with what happens on the day it is gone.

Tune tells a searcher nothing of the run around it, which is found among the callers of `suggest`,
and two of its defaults would ruin a sweep: `num_samples=1` and `reuse_actors=False`. Where Tune has
changed inside, nothing breaks: a warning names the public option to pass by hand.
"""

import contextlib
import copy
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from typing import Any

import ray
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher, SearchGenerator
from ray.tune.search.variant_generator import assign_value, parse_spec_vars
from ray.tune.trainable import FunctionTrainable

from grasp_tune.core.errors import GraspError, InputError, SearchError
from grasp_tune.core.random_streams import words
from grasp_tune.core.search import Step
from grasp_tune.executors.ray import SHARED
from grasp_tune.runtime.files import STATE_LIMIT, read_json, write_json_atomic
from grasp_tune.runtime.shared_storage import SharedStorage

logger = logging.getLogger(__name__)

FOLDER = "grasp"  # of all sweeps, below the experiment's folder
TRIALS = 1_000_000  # more than any sweep has; Tune prints the number, so not the largest integer
PENDING = 64  # trials queued ahead at most: enough to fill a cluster, few enough to stay cheap


@dataclass(frozen=True, eq=False)
class TuneRun:
    """The run whose `suggest` is being answered."""

    generator: SearchGenerator
    controller: Any  # None where it was not found
    metric: str | None = None
    mode: str | None = None

    @classmethod
    def asking(cls) -> "TuneRun | None":
        """Return the run that called; None where nobody from Tune did."""
        generator, controller = None, None
        for frame, _ in walk_stack(sys._getframe()):
            owner = frame.f_locals.get("self")
            if isinstance(owner, SearchGenerator):
                generator = owner
            elif generator is not None and hasattr(owner, "get_trials"):
                controller = owner
            elif generator is not None and frame.f_globals.get("__name__") == "ray.tune.tune":
                given = frame.f_locals
                return cls(generator, controller, given.get("metric"), given.get("mode"))
        return None if generator is None else cls(generator, controller)

    def set_up(self, name: Callable[[Trial], str] | None = None) -> None:
        """Have the whole sweep run, in processes that are reused, in trials called by `name`."""
        scheduler = getattr(self.controller, "_scheduler_alg", None)
        # Not isinstance: those that stop trials early are made from this one, too.
        if scheduler is not None and type(scheduler) is not FIFOScheduler:
            raise InputError(
                f"scheduler: got {type(scheduler).__name__}, which stops or pauses trials and so "
                "breaks the plan's budgets; leave `scheduler` out"
            )
        if self.generator.total_samples < TRIALS:
            _set(self.generator, "_total_samples", TRIALS, "num_samples=-1, or the sweep is cut")
        advice = "reuse_actors=True, or every task starts a process of its own"
        _set(self.controller, "_reuse_actors", True, advice)
        grow = getattr(self.controller, "update_max_pending_trials", None)
        if grow is not None and "TUNE_MAX_PENDING_TRIALS_PG" not in os.environ:
            cpus = int(ray.cluster_resources().get("CPU", 1.0))
            now = getattr(self.controller, "_max_pending_trials", 1)
            grow(max(now, min(PENDING, 2 * cpus)))  # without it the cluster fills up one by one
        if spec := self.spec:  # otherwise trials keep Tune's own names
            for key in ("trial_name_creator", "trial_dirname_creator"):
                spec[key] = spec.get(key) or name
            if (storage := getattr(self.controller, "_storage", None)) is not None:
                spec["storage"] = storage  # a restored experiment may have been moved

    def live(self) -> dict[str, Mapping[str, Any]]:
        """Return the configs of the trials that have not ended, by trial id, if they are known."""
        trials: list[Trial] = getattr(self.controller, "get_trials", list)()
        over = (Trial.TERMINATED, Trial.ERROR)
        return {item.trial_id: item.config for item in trials if item.status not in over}

    def trial(self, trial_id: str) -> Any:
        return getattr(self.controller, "get_trial", lambda trial_id: None)(trial_id)

    def error_of(self, trial_id: str) -> str:
        path = Path(getattr(self.trial(trial_id), "error_file", None) or "-")
        known = path.is_file()
        return path.read_text(errors="replace") if known else "the trial ended with an error"

    def loading_fault(self, trial_id: str) -> SearchError | None:
        """Return why the trainable of a failed trial, and so of all, cannot be loaded, if so."""
        _, said, after = self.error_of(trial_id).partition("failed to import on the worker")
        causes = [
            line for line in after.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)
        ]
        why = f"the trainable cannot be loaded in a worker process: {(causes or ['no reason'])[0]}"
        return SearchError(why) if said else None

    @property
    def spec(self) -> dict[str, Any]:
        """What Tune was told: trainable (`run`), `config`, `storage`; empty if unknown."""
        return getattr(getattr(self.generator, "_experiment", None), "spec", {})

    @property
    def trainable(self) -> type | None:
        with contextlib.suppress(ImportError):  # else another kind is not refused beforehand
            from ray.tune.registry import get_trainable_cls

            if isinstance(name := self.spec.get("run"), str):
                return get_trainable_cls(name)
        return None


def _set(owner: object, field: str, value: object, advice: str) -> None:
    if hasattr(owner, field):
        setattr(owner, field, value)
    else:
        logger.warning("Ray %s is not known here inside: pass %s", ray.__version__, advice)


class TuneSearcher(Searcher):
    """A searcher that knows the run which asks it, and which of its tasks live there."""

    ledger: Any  # of tasks, whose owners are trials: a `SharedSweep` or a `CellSweep`
    meet: Callable[[TuneRun], None]  # sets a run up that asks for the first time
    task_in: Callable[[Mapping[str, Any]], str | None]  # the task in a config, if it is ours
    next: Callable[[str, TuneRun | None], dict[str, Any] | Step]  # gives a trial its config
    done: Callable[[str, dict[str, Any]], None]  # a trial has ended by itself, with its last row
    _met: object = None  # the run that was set up
    _failure: Exception | None = None  # raised by the next `suggest`
    _most, _batch, _full = math.inf, False, False  # trials at a time; whether all end together

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_met": None}  # it belongs to this process

    def save(self, checkpoint_path: str) -> None:
        write_json_atomic(checkpoint_path, self.ledger.state())

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a state; one of another sweep ends the run with a sentence about it."""
        try:
            self.ledger.load(read_json(checkpoint_path, STATE_LIMIT))
        except GraspError as error:
            # Raised here, Tune would log it and start the sweep again from its beginning.
            self._failure = error

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Keep to a limiter's limit for it: it hides the end of trials that it saw no begin of."""
        self._most = max_concurrent
        self._batch = getattr(sys._getframe(1).f_locals.get("self"), "batch", False)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next config, None to be asked again later, or that all is done."""
        if (run := TuneRun.asking()) is not None and self._met is not run.generator:
            self.meet(run)
            self._met = run.generator
            tasks = {self.task_in(config): trial for trial, config in run.live().items()}
            for task in self.ledger.running.keys() - tasks.keys():
                self.ledger.give_back(task)  # of a run that was cut off
            self.ledger.running |= {task: trial for task, trial in tasks.items() if task}
        if self._failure is not None:
            raise self._failure
        live = len(self.ledger.running)
        self._full = live >= self._most or (self._full and self._batch and live > 0)
        if self._full:
            return None
        found = self.next(trial_id, run)
        if isinstance(found, Step):
            return None if found is Step.WAIT else Searcher.FINISHED
        return found

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn that a trial is over; one without an outcome has failed."""
        with self._kept_for_later():
            if result is not None and not error:
                self.done(trial_id, result)
            elif (run := TuneRun.asking()) is None:
                self.ledger.gone(trial_id, "its trial failed")
            else:
                if fault := run.loading_fault(trial_id):
                    raise fault
                self.ledger.gone(trial_id, run.error_of(trial_id).strip().splitlines()[-1])

    @contextlib.contextmanager
    def _kept_for_later(self) -> Iterator[None]:
        # Tune turns an error here into text inside a TuneError, or loses it: `suggest` raises it.
        try:
            yield
        except Exception as error:
            self._failure = error


def storage_of(context: Any) -> tuple[Any, str] | None:
    """Return file system (pyarrow) and folder of all sweeps in an experiment's storage."""
    path = getattr(context, "experiment_fs_path", None)
    return None if path is None else (context.storage_filesystem, f"{path}/{FOLDER}")


def sweep_storage(context: Any, run: str) -> SharedStorage:
    """Return a sweep's folder in the experiment's storage, as this machine sees it."""
    if (found := storage_of(context)) is None:
        raise SearchError("this trainable has no storage: run it with Ray Tune")
    try:
        getattr(context, "_check_validation_file", lambda: None)()
    except RuntimeError:
        host = ray.util.get_node_ip_address()
        raise SearchError(f"{host} does not see the {found[1]} of the driver: {SHARED}") from None
    return SharedStorage(found[0], f"{found[1]}/{run}")


def config_around() -> Mapping[str, Any]:
    """Return the config of the function that Tune runs in this thread."""
    for frame, _ in walk_stack(sys._getframe()):
        if isinstance(owner := frame.f_locals.get("self"), FunctionTrainable):
            return dict(owner.config)
    raise InputError(
        "no function of Ray Tune runs in this thread: call it inside train(config), or hand it "
        "the config: optimizer(model, config)"
    )


def drawn(config: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """Return the entries of a config that are to be sampled, as constants of a whole sweep.

    Each value is a function of the seed and its key. Raises, naming the key, where there is no
    seed, and for a grid or a function of the trial.
    """
    _, domains, grids = parse_spec_vars(dict(config))
    found = copy.deepcopy({path[0]: config[path[0]] for path, _ in domains})
    for path, domain in [*grids, *domains]:
        name = "/".join(map(str, path))
        if domain.is_grid() or domain.is_function() or seed is None:
            raise InputError(
                f"config[{name!r}]: got {type(domain).__name__} {domain.domain_str}, which differs "
                "from trial to trial, but all trials train one model; give it a fixed value"
            )
        (word,) = words(seed, "constant", name, count=1).tolist()
        assign_value(found, path, domain.sample(random_state=word >> 32))
    return found
