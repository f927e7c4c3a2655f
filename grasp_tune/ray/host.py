"""The Tune run that is asking: what a searcher cannot learn through Tune's own interface.

Tune tells a searcher nothing of the run around it, and three of its defaults would ruin a sweep:
`num_samples=1` cuts the plan to one trial, `reuse_actors=False` pays a new process for every task,
and one pending trial at a time fills a cluster one worker after the other. The run is found among
the callers of `suggest`, in this file and nowhere else; where Tune has changed inside, the searcher
says what to pass by hand instead of guessing.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.registry import get_trainable_cls
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import SearchGenerator

from grasp_tune.core.errors import InputError, SearchError
from grasp_tune.ray.actors import PatientScheduler, keep_actors

TRIALS = 1_000_000  # more than any plan has; Tune prints the number, so not the largest integer
PENDING = 64  # trials queued ahead at most: enough to fill a cluster, few enough to stay cheap
_DEPTH = 64  # callers looked at


@dataclass(frozen=True, eq=False)
class Host:
    """The run whose `suggest` is being answered."""

    generator: SearchGenerator
    controller: TuneController | None

    @classmethod
    def asking(cls) -> "Host | None":
        """Return the run that called, None where nobody from Tune did."""
        generator, controller = None, None
        frame = sys._getframe(1)
        for _ in range(_DEPTH):
            owner = frame.f_locals.get("self")
            if isinstance(owner, SearchGenerator):
                generator = owner
            elif isinstance(owner, TuneController):
                controller = owner
                break
            if frame.f_back is None:
                break
            frame = frame.f_back
        return None if generator is None else cls(generator, controller)

    # -- what it is asked to do ------------------------------------------------------------------

    def run_whole(self) -> None:
        """Lift `num_samples`: the searcher alone knows when its plan is at its end."""
        if not isinstance(getattr(self.generator, "_total_samples", None), int):
            raise SearchError(
                f"Ray {ray.__version__} counts its trials in a way that is not known here, and "
                "would cut the plan short: pass num_samples=-1"
            )
        self.generator._total_samples = TRIALS

    def keep_actors(self) -> None:
        """Let a worker process that has ended a task take the next one."""
        if self.controller is not None:
            keep_actors(self.controller)

    def queue_ahead(self) -> None:
        """Allow as many pending trials as the cluster may need, unless the user has decided."""
        if self.controller is None or "TUNE_MAX_PENDING_TRIALS_PG" in os.environ:
            return
        if isinstance(now := getattr(self.controller, "_max_pending_trials", None), int):
            cpus = int(ray.cluster_resources().get("CPU", 1.0))
            self.controller._max_pending_trials = max(now, min(PENDING, 2 * cpus))

    def name_trials(
        self, name: Callable[[Trial], str] | None, folder: Callable[[Trial], str]
    ) -> None:
        """Give trials these names, unless the user has brought functions for it."""
        spec = self._spec
        if name is not None and spec.get("trial_name_creator") is None:
            spec["trial_name_creator"] = name
        if spec.get("trial_dirname_creator") is None:
            spec["trial_dirname_creator"] = folder

    def follow_storage(self) -> None:
        """Send new trials to where the experiment is now: a restored one may have been moved."""
        now = getattr(self.controller, "_storage", None)
        if now is not None and self._spec:
            self._spec["storage"] = now

    # -- what it tells ---------------------------------------------------------------------------

    def refuse_schedulers(self) -> None:
        """Raise unless trials run to their end in the order in which they were asked for."""
        scheduler = getattr(self.controller, "_scheduler_alg", None)
        # Not isinstance: those that stop trials early are made from this one, too.
        if scheduler is not None and type(scheduler) not in (FIFOScheduler, PatientScheduler):
            raise InputError(
                f"scheduler: got {type(scheduler).__name__}, which stops or pauses trials and so "
                "breaks the plan's budgets; leave `scheduler` out (schedule='promote' already "
                "stops weak runs early)"
            )

    def refuse_domains(self) -> None:
        """Raise where the config has something left to sample."""
        refuse_domains(self._spec.get("config") or {})

    def live(self) -> dict[str, Mapping[str, Any]] | None:
        """Return the configs of the trials that have not ended, by trial id; None if unknown."""
        if self.controller is None:
            return None
        over = (Trial.TERMINATED, Trial.ERROR)
        trials = self.controller.get_trials()
        return {item.trial_id: item.config for item in trials if item.status not in over}

    def error_of(self, trial_id: str) -> str:
        """Return the last line of what a trial died of, as far as it is known."""
        trial = None if self.controller is None else self.controller.get_trial(trial_id)
        path = None if trial is None else trial.error_file
        lines: list[str] = []
        if path is not None and os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else f"trial {trial_id} ended with an error"

    @property
    def storage(self) -> tuple[Any, str] | None:
        """The experiment's file system (pyarrow) and its folder there."""
        found = self._spec.get("storage")
        return None if found is None else (found.storage_filesystem, found.experiment_fs_path)

    @property
    def trainable(self) -> type | None:
        """The trainable's class."""
        name = self._spec.get("run")
        return get_trainable_cls(name) if isinstance(name, str) else None

    @property
    def constants(self) -> dict[str, Any]:
        """What the user put into the config."""
        return dict(self._spec.get("config") or {})

    @property
    def _spec(self) -> dict[str, Any]:
        experiment = getattr(self.generator, "_experiment", None)
        return {} if experiment is None else experiment.spec


def refuse_domains(config: Mapping[str, Any], path: str = "") -> None:
    """Raise where something in the config would still have to be sampled, naming its key."""
    from ray.tune.search.sample import Domain

    for key, value in config.items():
        name = f"{path}{key}"
        domain = isinstance(value, Domain)
        unresolved = domain or (
            isinstance(value, Mapping) and len(value) == 1 and {"grid_search", "eval"} & set(value)
        )
        if unresolved:
            shown = f"{type(value).__name__} {value.domain_str}" if domain else repr(value)
            raise InputError(
                f"config[{name!r}]: got {shown}, which is to be sampled, but the plan decides "
                "every trial; give it a fixed value"
            )
        if isinstance(value, Mapping):
            refuse_domains(value, f"{name}/")
