"""What is written on a study and on its trials, under which names, and that a worker lives.

Goes past Optuna's public interface to its storage: system attributes, and trials that are born
with attributes, have no other door.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from grasp_tune.core.errors import InputError
from grasp_tune.core.records import Json, fingerprint
from grasp_tune.core.spec import SweepSpec

logger = logging.getLogger(__name__)

TASK = "grasp:task"  # trial, user attribute: the task that it holds, or that none was left
CALLS = "grasp:calls"  # trial: the oracle calls that it used
BEAT = "grasp:beat"  # trial: changes while its worker lives
PLAN = "grasp:plan"  # study: the cells that a sampler gives to trials, as a sweep
SETTING = "grasp:spec"  # study: the sweep that runs on it
CHOICE = "grasp:choice"  # study: the chosen candidate and its certificate

PIECE = 30_000  # characters a value: some databases hold 64 KB


def trials_of(study: Study) -> list[FrozenTrial]:
    """Return all trials by number, as stored now; not to be changed."""
    # Not `study.get_trials`: it may answer from before the last write, and some pruners filter it.
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def label_of(trial: FrozenTrial | optuna.Trial) -> dict[str, Any]:
    """Return what a trial says of its task; empty where it says nothing, as others' trials do."""
    label = trial.user_attrs.get(TASK)
    # Optuna's retries inherit the attributes of the trial that failed, its number too.
    if isinstance(label, dict) and label.get("trial", trial.number) == trial.number:
        return label
    return {}


def show_trial(study: Study, trial: FrozenTrial, shown: dict[str, Json]) -> None:
    """Write user attributes on a trial, also as Optuna hands it to the objective."""
    for name, value in shown.items():
        study._storage.set_trial_user_attr(trial._trial_id, name, value)
        trial.user_attrs[name] = value


def end_trial(study: Study, trial_id: int, state: TrialState, *values: float) -> bool:
    """Return whether the trial has now ended this way; False where it had ended already."""
    try:
        return study._storage.set_trial_state_values(trial_id, state, values or None)
    except RuntimeError:  # UpdateFinishedTrialError
        return False


def in_memory(study: Study) -> bool:
    """Return whether no other process can see the study."""
    return isinstance(study._storage, optuna.storages.InMemoryStorage)


def in_optimize(study: Study) -> bool:
    """Return whether `study.optimize` runs in this thread, as far as can be told."""
    return bool(getattr(getattr(study, "_thread_local", None), "in_optimize_loop", False))


def pieces_of(value: Json) -> list[str]:
    """Return JSON values as text, in pieces that every database holds."""
    text = json.dumps(value, separators=(",", ":"))
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def joined(attributes: Mapping[str, Any], key: str) -> Json:
    """Return the values whose pieces are among the attributes; None where there are none."""
    pieces: list[str] = []
    while piece := attributes.get(f"{key}:{len(pieces)}"):
        pieces.append(str(piece))
    return json.loads("".join(pieces)) if pieces else None


def set_study_json(study: Study, key: str, value: Json) -> None:
    """Write JSON values of any length on a study."""
    pieces = [*pieces_of(value), ""]  # the last one ends a longer text that was there before
    for at in reversed(range(len(pieces))):  # whoever finds the first piece finds all of them
        study._storage.set_study_user_attr(study._study_id, f"{key}:{at}", pieces[at])


def study_json(study: Study, key: str, wanted: Json = None) -> Json:
    """Return what `set_study_json` wrote, after writing `wanted` where there is nothing.

    Of two processes that write at the same time one wins, for both: what is there in the end is
    read again. Later writers do not exist, because they find something.
    """
    try:
        found = joined(study._storage.get_study_user_attrs(study._study_id), key)
    except ValueError as error:
        where = f"study {study.study_name}, {key}"
        raise InputError(f"{where}: damaged, or not written by grasp_tune: {error}") from None
    if found is None and wanted is not None:
        set_study_json(study, key, wanted)
        return study_json(study, key)
    return found


def agreed_sweep(study: Study, spec: SweepSpec, key: str = SETTING) -> str:
    """Return the name of the sweep on a study that all processes agree on; `InputError` if none."""
    if difference := spec.difference(study_json(study, key, spec.to_dict())):
        advice = "use a new study" + (", or GraspSampler.from_study(study)" if key == PLAN else "")
        raise InputError(
            f"the sweep on study {study.study_name!r} differs from this one: {difference}; {advice}"
        )
    return fingerprint(spec.to_dict(), study.study_name)


@dataclass(frozen=True, slots=True)
class Timing:
    """How often a worker says that it lives, and after how much silence it is thought dead.

    every: seconds between two signs of life.
    grace: seconds of silence.
    """

    every: float = 5.0
    grace: float = 60.0

    @classmethod
    def of(cls, study: Study) -> "Timing":
        """Return the study's own timing where its storage has a heartbeat, else ours."""
        storage = study._storage
        every = getattr(storage, "get_heartbeat_interval", lambda: None)()
        if every is None:
            return cls()
        grace = getattr(getattr(storage, "_backend", storage), "grace_period", None)
        return cls(float(every), float(grace or 2 * every))


def beat(study: Study, trials: Iterable[int], calls: int) -> None:
    """Say on some trials of this process that it lives, and how many calls it made.

    Optuna's own heartbeat exists for relational databases alone and asks for equal clocks.
    """
    for trial_id in trials:
        try:
            study._storage.set_trial_system_attr(trial_id, BEAT, time.time())
            study._storage.set_trial_system_attr(trial_id, CALLS, calls)
        except RuntimeError:
            continue  # the trial was ended from outside; its worker will notice at the end
        except (optuna.exceptions.StorageInternalError, OSError) as fault:
            logger.info("a heartbeat could not be written: %s", fault)


@contextlib.contextmanager
def beating(
    study: Study, every: float, trials: Iterable[int], calls: Callable[[], int]
) -> Iterator[None]:
    """Beat in a thread of its own while the block runs."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(every):
            beat(study, trials, calls())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
