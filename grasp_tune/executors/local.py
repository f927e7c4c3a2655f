"""Tasks in this process, one after the other."""

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

    def poll(self, timeout: float) -> list[tuple[Task, Ended]]:
        """Run the task that was submitted; other errors than lost checkpoints are raised here."""
        if (task := self._task) is None:
            return []
        self._task = None
        try:
            return [(task, self._worker.run(task))]
        except CheckpointError as error:
            return [(task, error)]

    def cancel(self) -> None:
        self._task = None
