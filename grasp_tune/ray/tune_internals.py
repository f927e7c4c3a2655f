"""All code that relies on private parts of Ray Tune.

Tune tells a searcher nothing about the run around it, so the run is found among the callers of
`suggest`. If the private parts have changed, a warning names the public option to pass instead.
"""

import contextlib
import copy
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from typing import Any

import ray
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import SearchGenerator
from ray.tune.search.variant_generator import assign_value, parse_spec_vars
from ray.tune.trainable import FunctionTrainable

from grasp_tune.core.errors import InputError, SearchError, expect
from grasp_tune.core.random_streams import words
from grasp_tune.runtime.shared_sweep import SharedStorage
from grasp_tune.runtime.store import SHARED

logger = logging.getLogger(__name__)

FOLDER = "grasp"  # the folder of all sweeps, inside the experiment's folder
TRIALS = 1_000_000  # more than any sweep has; not the largest integer, because Tune prints it
PENDING = 64  # most trials queued ahead: enough to fill a cluster, few enough to stay cheap


@dataclass(frozen=True, eq=False)
class TuneRun:
    """The Tune run that is calling `suggest`."""

    generator: SearchGenerator
    controller: Any  # None if it was not found
    metric: str | None = None
    mode: str | None = None

    @classmethod
    def asking(cls) -> "TuneRun | None":
        """Return the Tune run among the callers, None if there is none."""
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
        """Have Tune run all trials, in reused processes; `name` returns a trial's name."""
        scheduler = type(getattr(self.controller, "_scheduler_alg", None))
        # Not isinstance: schedulers that stop trials early are subclasses of this one.
        fine, wanted = scheduler in (type(None), FIFOScheduler), "none: the plan sets the budgets"
        expect(fine, "scheduler", scheduler.__name__, wanted)
        if self.generator.total_samples < TRIALS:
            _set(self.generator, "_total_samples", TRIALS, "num_samples=-1, or the sweep is cut")
        advice = "reuse_actors=True, or every task starts a process of its own"
        _set(self.controller, "_reuse_actors", True, advice)
        grow = getattr(self.controller, "update_max_pending_trials", None)
        if grow is not None and "TUNE_MAX_PENDING_TRIALS_PG" not in os.environ:
            cpus = int(ray.cluster_resources().get("CPU", 1.0))
            now = getattr(self.controller, "_max_pending_trials", 1)
            grow(max(now, min(PENDING, 2 * cpus)))  # else the cluster fills up one trial at a time
        if spec := self.spec:  # else trials keep Tune's own names
            for key in ("trial_name_creator", "trial_dirname_creator"):
                spec[key] = spec.get(key) or name
            spec["storage"] = self.storage

    def live(self) -> dict[str, Mapping[str, Any]]:
        """Return the configs of unfinished trials by trial id, as far as they are known."""
        trials: list[Trial] = getattr(self.controller, "get_trials", list)()
        over = (Trial.TERMINATED, Trial.ERROR)
        return {item.trial_id: item.config for item in trials if item.status not in over}

    def trial(self, trial_id: str) -> Any:
        return getattr(self.controller, "get_trial", lambda trial_id: None)(trial_id)

    def error_of(self, trial_id: str) -> str:
        """Return why a trial failed; raise an error if its trainable cannot be loaded at all."""
        path = Path(getattr(self.trial(trial_id), "error_file", None) or "-")
        text = path.read_text(errors="replace") if path.is_file() else ""
        _, said, after = text.partition("failed to import on the worker")
        if said:
            causes = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", after, re.MULTILINE)
            why = (causes or ["no reason"])[0]
            raise SearchError(f"the trainable cannot be loaded in a worker process: {why}")
        return (text.strip().splitlines() or ["the trial ended with an error"])[-1]

    @property
    def spec(self) -> dict[str, Any]:
        """The experiment's trainable (`run`), `config` and `storage`; empty if unknown."""
        return getattr(getattr(self.generator, "_experiment", None), "spec", {})

    @property
    def storage(self) -> Any:
        """The experiment's current storage; a restored experiment may have been moved."""
        return getattr(self.controller, "_storage", None) or self.spec.get("storage")

    @property
    def trainable(self) -> type | None:
        with contextlib.suppress(ImportError):  # then an unsuitable trainable is not refused early
            from ray.tune.registry import get_trainable_cls

            if isinstance(name := self.spec.get("run"), str):
                return get_trainable_cls(name)
        return None


def _set(owner: object, field: str, value: object, advice: str) -> None:
    if hasattr(owner, field):
        setattr(owner, field, value)
    else:
        logger.warning("Ray %s is not known here inside: pass %s", ray.__version__, advice)


def storage_of(context: Any) -> tuple[Any, str] | None:
    """Return the pyarrow file system and the folder of all sweeps in an experiment's storage."""
    path = getattr(context, "experiment_fs_path", None)
    return None if path is None else (context.storage_filesystem, f"{path}/{FOLDER}")


def sweep_storage(context: Any, run: str) -> SharedStorage:
    """Return a sweep's storage in the experiment's storage; raise if this machine cannot see it."""
    if (found := storage_of(context)) is None:
        raise SearchError("this trainable has no storage: run it with Ray Tune")
    try:
        getattr(context, "_check_validation_file", lambda: None)()
    except RuntimeError:
        host = ray.util.get_node_ip_address()
        words = f"of the driver; with several machines, storage_path {SHARED}"
        raise SearchError(f"{host} does not see the {found[1]} {words}") from None
    return SharedStorage(found[0], f"{found[1]}/{run}")


def config_around() -> Mapping[str, Any]:
    """Return the config of the training function that Tune runs in this thread."""
    for frame, _ in walk_stack(sys._getframe()):
        if isinstance(owner := frame.f_locals.get("self"), FunctionTrainable):
            return dict(owner.config)
    words = "call it inside train(config), or hand it the config: optimizer(model, config)"
    raise InputError(f"no function of Ray Tune runs in this thread: {words}")


def drawn(config: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """Return the sampled entries of a config, which are constants of the whole sweep.

    Each value depends only on the seed and its key. Without a seed, or for a grid or a function of
    the trial, it raises an error that names the key.
    """
    _, domains, grids = parse_spec_vars(dict(config))
    found = copy.deepcopy({path[0]: config[path[0]] for path, _ in domains})
    for path, domain in [*grids, *domains]:
        name = "/".join(map(str, path))
        if domain.is_grid() or domain.is_function() or seed is None:
            kind = f"{type(domain).__name__} {domain.domain_str}"
            raise InputError(f"config[{name!r}]: got {kind}, expected a fixed value for all trials")
        (word,) = words(seed, "constant", name, count=1).tolist()
        assign_value(found, path, domain.sample(random_state=word >> 32))
    return found
