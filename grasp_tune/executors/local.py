"""Tasks in this process, one after the other."""

from collections.abc import Iterator

from grasp_tune.core.errors import CheckpointError
from grasp_tune.core.tasks import Task
from grasp_tune.runtime.driver import MakeWorker
from grasp_tune.runtime.executor import Ended
from grasp_tune.runtime.sweep_folder import SweepFolder


class InProcess:
    """An executor that runs a task while it is polled."""

    def __init__(self, folder: SweepFolder, make_worker: MakeWorker) -> None:
        self._worker = make_worker()
        self._task: Task | None = None

    @property
    def free(self) -> bool:
        return self._task is None

    def submit(self, task: Task) -> None:
        self._task = task

    def poll(self, timeout: float) -> Iterator[tuple[Task, Ended]]:
        """Run the task that was submitted; other errors than lost checkpoints are raised here."""
        if self._task is None:
            return
        task, self._task = self._task, None
        try:
            ended: Ended = self._worker.run(task)
        except CheckpointError as error:
            ended = error
        yield task, ended

    def cancel(self) -> None:
        self._task = None
