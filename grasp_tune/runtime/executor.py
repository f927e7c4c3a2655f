"""Whoever runs tasks, in three verbs: submit, poll, cancel. Executors translate and decide nothing.

Retries, lost checkpoints and the order of tasks are the driver's business. A new executor is one
class with these verbs; tests/executors/contract.py says what it must hold.
"""

import pickle
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from grasp_tune.core.errors import GraspError, SearchError
from grasp_tune.core.tasks import Outcome, Task


@dataclass(frozen=True, slots=True)
class Died:
    """A task whose worker vanished; it may be tried again."""

    reason: str


# How a task ended. A `CheckpointError` with a key is a checkpoint to make again; any other
# exception ends the run, since it would happen anywhere.
Ended = Outcome | Died | Exception


class Executor(Protocol):
    """Runs tasks somewhere, as many at the same time as it likes."""

    @property
    def free(self) -> bool:
        """Whether it can take another task now."""

    def submit(self, task: Task) -> None:
        """See to it that the task is run; only called while `free`."""

    def poll(self, timeout: float) -> Iterable[tuple[Task, Ended]]:
        """The tasks that have ended since, waiting up to `timeout` seconds for the first."""

    def cancel(self) -> None:
        """Give up what is under way and let go of all workers; called once, at the end."""


def portable(error: Exception, task: Task) -> Exception:
    """Return the error with a note of where it was raised; a `SearchError` if it cannot travel."""
    if isinstance(error, GraspError):
        return error  # one sentence, which says everything
    where = "".join(traceback.format_exception(error))
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"raised in the worker that ran {task.id}:\n{where}")
            return error
    except Exception:  # whatever its class does when it is rebuilt
        pass
    return SearchError(f"{task.id} failed: {error}\n{where}")
