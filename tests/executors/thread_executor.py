"""A whole executor in one class: a thread beside the driver. CONTRIBUTING.md points here."""

import queue
import threading
from collections.abc import Iterator

from grasp_tune.core.tasks import Task
from grasp_tune.runtime.driver import MakeWorker
from grasp_tune.runtime.executor import Ended
from grasp_tune.runtime.sweep_folder import SweepFolder


class ThreadExecutor:
    """Runs tasks in one thread of this process, and takes two at a time.

    One thread only: a model's random numbers come from generators that all threads share.
    """

    def __init__(self, folder: SweepFolder, make_worker: MakeWorker) -> None:
        self._worker = make_worker()
        self._waiting: queue.Queue[Task | None] = queue.Queue()
        self._ended: queue.Queue[tuple[Task, Ended]] = queue.Queue()
        self._under_way = 0
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def free(self) -> bool:
        return self._under_way < 2

    def submit(self, task: Task) -> None:
        self._under_way += 1
        self._waiting.put(task)

    def poll(self, timeout: float) -> Iterator[tuple[Task, Ended]]:
        try:
            found = self._ended.get(timeout=timeout)
        except queue.Empty:
            return
        self._under_way -= 1
        yield found

    def cancel(self) -> None:
        self._cancelled.set()
        self._waiting.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (task := self._waiting.get()) is not None and not self._cancelled.is_set():
            try:
                ended: Ended = self._worker.run(task)
            except Exception as error:
                ended = error
            self._ended.put((task, ended))
