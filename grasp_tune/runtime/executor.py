"""The interface of executors: submit, poll, cancel. An executor only runs tasks.

The driver decides about retries, lost checkpoints and the order of tasks. A new executor is one
class with these methods; tests/executors/contract.py tests what it must guarantee.
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
    """The end of a task whose worker is gone; the task may be tried again."""

    reason: str


# How a task ended. After a `CheckpointError` with a key, that checkpoint is made again. Any other
# exception ends the sweep, because it would occur on every worker.
Ended = Outcome | Died | Exception


class Executor(Protocol):
    """Runs tasks somewhere, any number of them at the same time."""

    @property
    def free(self) -> bool:
        """Whether `submit` may be called now."""

    def submit(self, task: Task) -> None:
        """Accept a task to run; only called while `free`."""

    def poll(self, timeout: float) -> Iterable[tuple[Task, Ended]]:
        """Return the tasks that have ended since; wait up to `timeout` seconds for the first."""

    def cancel(self) -> None:
        """Stop the running tasks and release all workers; called once, at the end."""


def portable(error: Exception, task: Task) -> Exception:
    """Return the error with a note of where it was raised; a `SearchError` if pickling fails."""
    if isinstance(error, GraspError):
        return error  # its message is enough
    where = "".join(traceback.format_exception(error))
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"raised in the worker that ran {task.id}:\n{where}")
            return error
    except Exception:  # rebuilding an error may raise anything
        pass
    return SearchError(f"{task.id} failed: {error}\n{where}")
