"""Signs of life: a running trial says now and then that its worker lives.

Optuna's heartbeat exists for relational databases alone and asks for equal clocks; this one needs
nothing but attributes. Whoever waits for a trial watches its count of calls with its own clock.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import optuna
from optuna.trial import FrozenTrial

from grasp_tune.optuna.attributes import CALLS, heartbeat_interval, set_trial

logger = logging.getLogger(__name__)

BEAT = "grasp:beat"


@dataclass(frozen=True, slots=True)
class Timing:
    """How often a worker says that it lives, and after how much silence it is thought dead."""

    every: float = 5.0  # seconds
    grace: float = 60.0  # seconds

    @classmethod
    def of(cls, study: optuna.Study) -> "Timing":
        """Return the study's own timing where its storage has a heartbeat, else ours."""
        storage = study._storage
        asked = heartbeat_interval(study)
        if asked is None:
            return cls()
        grace = getattr(getattr(storage, "_backend", storage), "grace_period", None)
        return cls(float(asked), float(grace or 2 * asked))


class Pulse:
    """The signs of life of one process, and its count of oracle calls."""

    def __init__(self, study: optuna.Study, timing: Timing) -> None:
        self._study, self._timing = study, timing
        self.calls = 0  # of the task under way

    def count(self, calls: int) -> None:
        """Take in oracle calls."""
        self.calls += calls

    @contextmanager
    def beating(self, trial_id: int) -> Iterator[None]:
        """Give signs of life for a trial while the block runs; short tasks need none."""
        self.calls = 0
        if isinstance(self._study._storage, optuna.storages.InMemoryStorage):
            yield  # nobody else can see it
            return
        done = threading.Event()
        thread = threading.Thread(target=self._beat, args=(trial_id, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _beat(self, trial_id: int, done: threading.Event) -> None:
        beats = 0
        while not done.wait(self._timing.every):
            beats += 1
            try:
                set_trial(self._study, trial_id, BEAT, beats)
                set_trial(self._study, trial_id, CALLS, self.calls)
            except RuntimeError:
                return  # the trial was ended from outside; its worker will notice at the end
            except (optuna.exceptions.StorageInternalError, OSError) as fault:
                logger.info("a sign of life could not be written: %s", fault)


class Watch:
    """Tells which of the others' trials have given no sign of life for too long."""

    def __init__(self, timing: Timing) -> None:
        self._grace = timing.grace
        self._last: dict[int, tuple[object, float]] = {}

    def silent(self, trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials that have been silent for the whole grace period."""
        now = time.monotonic()
        found = []
        current: dict[int, tuple[object, float]] = {}
        for trial in trials:
            beat = trial.system_attrs.get(BEAT)
            before = self._last.get(trial.number)
            since = before[1] if before is not None and before[0] == beat else now
            current[trial.number] = (beat, since)
            if now - since > self._grace:
                found.append(trial)
        self._last = current
        return found
