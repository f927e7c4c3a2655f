"""Everything here that is private to Ray Tune, each with what happens on the day it is gone.

Tune tells a searcher nothing of the run around it, and two of its defaults would ruin a sweep:
`num_samples=1` cuts it to one trial, and `reuse_actors=False` pays a new process for every task.
The run is found among the callers of `suggest`. Where Tune has changed inside, nothing breaks: a
warning names the public option to pass by hand.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import SearchGenerator
from ray.tune.search.sample import Domain, Function
from ray.tune.trainable import FunctionTrainable

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.core.random_streams import words
from grasp_tune.runtime.shared_storage import SharedStorage

logger = logging.getLogger(__name__)

FOLDER = "grasp"  # of all sweeps, below the experiment's folder
TRIALS = 1_000_000  # more than any sweep has; Tune prints the number, so not the largest integer
PENDING = 64  # trials queued ahead at most: enough to fill a cluster, few enough to stay cheap
_DEPTH = 32  # callers looked at; a limiter around the searcher is a few of them


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
        generator, controller, given = None, None, {}
        frame: Any = sys._getframe(1)
        for _ in range(_DEPTH):
            owner = frame.f_locals.get("self")
            if isinstance(owner, SearchGenerator):
                generator = owner
            elif generator is not None and hasattr(owner, "get_trials"):
                controller = owner
            elif generator is not None and frame.f_globals.get("__name__") == "ray.tune.tune":
                given = frame.f_locals
                break
            if (frame := frame.f_back) is None:
                break
        if generator is None:
            return None
        return cls(generator, controller, given.get("metric"), given.get("mode"))

    def set_up(self, name: Callable[[Trial], str]) -> None:
        """Have the whole sweep run, in processes that are reused, under names that say what it is.

        name: what trials and their folders are called, unless the user has decided.
        """
        scheduler = getattr(self.controller, "_scheduler_alg", None)
        # Not isinstance: those that stop trials early are made from this one, too.
        if scheduler is not None and type(scheduler) is not FIFOScheduler:
            raise InputError(
                f"scheduler: got {type(scheduler).__name__}, which stops or pauses trials and so "
                "breaks the plan's budgets; leave `scheduler` out (schedule='promote' already "
                "stops weak runs early)"
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
        if spec := self._spec:  # otherwise trials keep Tune's own names
            for key in ("trial_name_creator", "trial_dirname_creator"):
                if spec.get(key) is None:
                    spec[key] = name
            if (storage := getattr(self.controller, "_storage", None)) is not None:
                spec["storage"] = storage  # a restored experiment may have been moved

    def live(self) -> dict[str, Mapping[str, Any]] | None:
        """Return the configs of the trials that have not ended, by trial id; None if unknown."""
        if self.controller is None:
            return None
        over, trials = (Trial.TERMINATED, Trial.ERROR), self.controller.get_trials()
        return {item.trial_id: item.config for item in trials if item.status not in over}

    def error_of(self, trial_id: str) -> str:
        """Return what a trial died of, as far as it is known."""
        get = getattr(self.controller, "get_trial", lambda trial_id: None)
        path = getattr(get(trial_id), "error_file", None)
        if path is None or not os.path.exists(path):
            return f"trial {trial_id} ended with an error"
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def checkpoint_of(self, trial_id: str) -> Any:
        """Return the last checkpoint that a trial reported; None where there is none."""
        get = getattr(self.controller, "get_trial", lambda trial_id: None)
        return getattr(get(trial_id), "checkpoint", None)

    @property
    def storage(self) -> tuple[Any, str] | None:
        """The experiment's file system (pyarrow) and its folder there; None: workers say it."""
        return storage_of(self._spec.get("storage"))

    @property
    def trainable(self) -> type | None:
        """The trainable's class; None if unknown."""
        try:
            from ray.tune.registry import get_trainable_cls
        except ImportError:  # a trainable of another kind is then not refused beforehand
            return None
        name = self._spec.get("run")
        return get_trainable_cls(name) if isinstance(name, str) else None

    @property
    def constants(self) -> dict[str, Any]:
        """What the user put into the config."""
        return dict(self._spec.get("config") or {})

    @property
    def _spec(self) -> dict[str, Any]:
        return getattr(getattr(self.generator, "_experiment", None), "spec", {})


def _set(owner: object, field: str, value: object, advice: str) -> None:
    if hasattr(owner, field):
        setattr(owner, field, value)
    else:
        logger.warning("Ray %s is not known here inside: pass %s", ray.__version__, advice)


def storage_of(context: Any) -> tuple[Any, str] | None:
    """Return file system and folder of Tune's own record of an experiment's storage."""
    try:
        return context.storage_filesystem, context.experiment_fs_path
    except AttributeError:
        return None


def sweep_storage(context: Any, run: str) -> SharedStorage:
    """Return a sweep's folder in the experiment's storage, as this machine sees it."""
    if (found := storage_of(context)) is None:
        raise SearchError("this trainable has no storage: run it with Ray Tune")
    try:
        getattr(context, "_check_validation_file", lambda: None)()
    except RuntimeError:
        raise SearchError(
            f"{ray.util.get_node_ip_address()} does not see the {found[1]} of the driver: with "
            "several machines, storage_path must be a shared folder (NFS) or a bucket "
            "(s3://..., gs://...) that all of them can reach"
        ) from None
    return sweep_folder(*found, run)


def sweep_folder(filesystem: Any, path: str, run: str) -> SharedStorage:
    """Return a sweep's folder below that of its experiment."""
    return SharedStorage(filesystem, f"{path}/{FOLDER}/{run}")


def config_around() -> Mapping[str, Any]:
    """Return the config of the function that Tune runs in this thread."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if isinstance(owner := frame.f_locals.get("self"), FunctionTrainable):
            return dict(owner.config)
        frame = frame.f_back
    raise InputError(
        "no function of Ray Tune runs in this thread: call it inside train(config), or hand it "
        "the config: optimizer(model, config)"
    )


def settled(config: Any, seed: int | None, path: str = "") -> Any:
    """Return the config with everything drawn that is to be sampled: constants of a whole sweep.

    Each value is a function of the seed and its key; what holds none is returned as it is. Raises,
    naming the key, where there is no seed, and for a grid or a function of the trial.
    """
    domain = isinstance(config, Domain)
    if domain and seed is not None and not isinstance(config, Function):
        (word,) = words(seed, "constant", path, count=1).tolist()
        return config.sample(random_state=word >> 32)
    grid = isinstance(config, Mapping) and set(config) in ({"grid_search"}, {"eval"})
    if domain or grid:
        shown = f"{type(config).__name__} {config.domain_str}" if domain else repr(config)
        raise InputError(
            f"config[{path!r}]: got {shown}, which differs from trial to trial, but all trials "
            "train one model; give it a fixed value"
        )
    rows = dict(enumerate(config)) if isinstance(config, list | tuple) else config
    if not isinstance(rows, Mapping):
        return config
    at = f"{path}/" if path else ""
    found = {key: settled(value, seed, f"{at}{key}") for key, value in rows.items()}
    if all(found[key] is rows[key] for key in rows):
        return config
    return found if rows is config else type(config)(found.values())
