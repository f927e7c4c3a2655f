"""What is written on a study and on its trials, under which names, and whether a worker lives.

The only module that goes past Optuna's public interface to its storage, and that knows how its
versions differ: system attributes and trials that are born with them have no other door. Long
texts are cut into pieces, since some databases hold 64 KB a value.
"""

import hashlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError
from grasp_tune.core.records import Json
from grasp_tune.runtime.files import alive

logger = logging.getLogger(__name__)

TASK = "grasp:task"  # trial, system attribute: the task that it holds
CELL = "grasp:cell"  # trial, user attribute: the cell that it holds, or that none was left
CALLS = "grasp:calls"  # trial: the oracle calls that it used
BEAT = "grasp:beat"  # trial: counts up while its worker lives
PLAN = "grasp:plan"  # study: the plan of a sampler
SETTING = "grasp:spec"  # study: the sweep that runs on it
CHOICE = "grasp:choice"  # study: the chosen candidate and its certificate

PIECE = 30_000  # characters


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """Return all trials by number, as stored now; not to be changed."""
    # Not `study.get_trials`: it may answer from before the last write, and some pruners filter it.
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def label_of(trial: FrozenTrial) -> dict[str, Any] | None:
    """Return what a trial says of its task; None where it says nothing, as others' trials do."""
    label = trial.system_attrs.get(TASK) or trial.user_attrs.get(CELL)
    # Optuna's retries inherit the attributes of the trial that failed, its number too.
    own = isinstance(label, dict) and label.get("trial", trial.number) == trial.number
    return label if own else None


def end_trial(
    study: optuna.Study, trial_id: int, state: TrialState, value: float | None = None
) -> bool:
    """Return whether the trial has now ended this way; False where it had ended already."""
    values = None if value is None else [value]
    try:
        return study._storage.set_trial_state_values(trial_id, state=state, values=values)
    except RuntimeError:  # UpdateFinishedTrialError
        return False


def in_memory(study: optuna.Study) -> bool:
    """Return whether no other process can see the study."""
    return isinstance(study._storage, optuna.storages.InMemoryStorage)


def in_optimize(study: optuna.Study) -> bool:
    """Return whether `study.optimize` runs in this thread, as far as can be told."""
    return bool(getattr(getattr(study, "_thread_local", None), "in_optimize_loop", False))


def set_trial(study: optuna.Study, trial_id: int, key: str, value: Json) -> None:
    """Write a system attribute; RuntimeError where the trial has ended."""
    study._storage.set_trial_system_attr(trial_id, key, value)


def set_trial_text(study: optuna.Study, trial_id: int, key: str, text: str) -> None:
    """Write a text of any length on a trial."""
    for at, piece in enumerate(_pieces(text)):
        set_trial(study, trial_id, f"{key}:{at}", piece)


def set_study_json(study: optuna.Study, key: str, value: Json) -> None:
    """Write JSON values of any length on a study."""
    storage, number = study._storage, study._study_id
    pieces = _pieces(json.dumps(value, separators=(",", ":")))
    if f"{key}:{len(pieces)}" in storage.get_study_user_attrs(number):
        pieces.append("")  # ends a longer text that was there before
    # The first piece last: whoever finds it finds all of them.
    for at in reversed(range(len(pieces))):
        storage.set_study_user_attr(number, f"{key}:{at}", pieces[at])


def study_json(study: optuna.Study, key: str) -> Json:
    """Return what `set_study_json` wrote, None where there is nothing."""
    text = joined(study._storage.get_study_user_attrs(study._study_id), key)
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        where = f"study {study.study_name}, {key}"
        raise InputError(f"{where}: damaged, or not written by grasp_tune: {error}") from None


def agreed_json(study: optuna.Study, key: str, wanted: Json) -> Json:
    """Return what is on the study, after writing `wanted` where there is nothing.

    Of two processes that write at the same time one wins, for both: what is there in the end is
    read again. Later writers do not exist, because they find something.
    """
    if (found := study_json(study, key)) is None:
        set_study_json(study, key, wanted)
        found = study_json(study, key)
    return found


def joined(attributes: Mapping[str, Any], key: str) -> str:
    """Return the text whose pieces are among the attributes; empty where there is none."""
    pieces: list[str] = []
    while piece := attributes.get(f"{key}:{len(pieces)}"):
        pieces.append(str(piece))
    return "".join(pieces)


def fingerprint(*values: Json) -> str:
    """Return a short digest of JSON values, the same in every process."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


# -- who lives -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """How often a worker says that it lives, and after how much silence it is thought dead."""

    every: float = 5.0  # seconds
    grace: float = 60.0  # seconds

    @classmethod
    def of(cls, study: optuna.Study) -> "Timing":
        """Return the study's own timing where its storage has a heartbeat, else ours."""
        storage = study._storage
        every = getattr(storage, "get_heartbeat_interval", lambda: None)()
        if every is None:
            return cls()
        grace = getattr(getattr(storage, "_backend", storage), "grace_period", None)
        return cls(float(every), float(grace or 2 * every))


class Heartbeat:
    """Says now and then, on the trials of a process, that it lives and how many calls it made.

    Optuna's own heartbeat exists for relational databases alone and asks for equal clocks; this
    one needs nothing but attributes.
    """

    def __init__(self, study: optuna.Study, timing: Timing, calls: Callable[[], int]) -> None:
        self._study, self._every, self._calls = study, timing.every, calls
        self._beats, self._last = 0, time.monotonic()

    @contextmanager
    def of(self, trials: Iterable[int], *, thread: bool) -> Iterator[None]:
        """Beat for some trials while the block runs, or once after it, where it is short."""
        if in_memory(self._study):  # nobody else can see it
            yield
            return
        if not thread:
            yield
            if time.monotonic() - self._last > self._every:
                self._beat(trials)
            return
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self._every):
                self._beat(trials)

        beating = threading.Thread(target=beat, daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def _beat(self, trials: Iterable[int]) -> None:
        self._beats, self._last = self._beats + 1, time.monotonic()
        for trial_id in trials:
            try:
                set_trial(self._study, trial_id, BEAT, self._beats)
                set_trial(self._study, trial_id, CALLS, self._calls())
            except RuntimeError:
                continue  # the trial was ended from outside; its worker will notice at the end
            except (optuna.exceptions.StorageInternalError, OSError) as fault:
                logger.info("a heartbeat could not be written: %s", fault)


class Watch:
    """Tells which of the others' trials have no worker any more, by this process's own clock."""

    def __init__(self, timing: Timing) -> None:
        self._grace = timing.grace
        self._last: dict[int, tuple[object, float]] = {}

    def silent(self, trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials that have been given up; one that names no worker never is."""
        now = time.monotonic()
        found = []
        current: dict[int, tuple[object, float]] = {}
        for trial in trials:
            beat = trial.system_attrs.get(BEAT)
            before = self._last.get(trial.number)
            since = before[1] if before is not None and before[0] == beat else now
            current[trial.number] = (beat, since)
            worker = (label_of(trial) or {}).get("worker")
            if worker and (now - since > self._grace or is_dead(worker)):
                found.append(trial)
        self._last = current
        return found


def process_name() -> str:
    """Return a name for this process that says whether it lives to others on its machine."""
    return f"{_MACHINE}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def is_dead(worker: object) -> bool:
    """Return whether a process of this machine is known to be gone, by its `process_name`."""
    machine, _, rest = str(worker).rpartition(":")[0].rpartition(":")
    return machine == _MACHINE and rest.isdigit() and not alive(int(rest))


def _machine() -> str:
    """Return a name for the machine and the space of its process numbers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return fingerprint(boot, os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # not Linux
        return fingerprint(socket.gethostname())


_MACHINE = _machine()
