"""The interface of executors: submit, poll, cancel. An executor runs tasks and decides nothing.

The driver decides on retries, lost checkpoints and the order of tasks. A new executor is one class
with these methods; tests/executors/contract.py tests what it must guarantee.
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


# How a task ended. A `CheckpointError` with a key means that this checkpoint is made again; any
# other exception ends the run, since it would be raised anywhere.
Ended = Outcome | Died | Exception


class Executor(Protocol):
    """Runs tasks somewhere, as many at the same time as it likes."""

    @property
    def free(self) -> bool:
        """Whether `submit` may be called now."""

    def submit(self, task: Task) -> None:
        """Take a task to run; only called while `free`."""

    def poll(self, timeout: float) -> Iterable[tuple[Task, Ended]]:
        """The tasks that have ended since, waiting up to `timeout` seconds for the first."""

    def cancel(self) -> None:
        """Stop the running tasks and release all workers; called once, at the end."""


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
