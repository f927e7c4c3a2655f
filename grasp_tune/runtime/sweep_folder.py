"""The folder of a sweep: its lock, its state, its checkpoints, its count of calls.

    .grasp_tune.json  says that the folder is ours, and who uses it; see `lock`
    state.json      the outcomes so far; going on after a crash is reading it and asking again
    checkpoints/    what tasks leave for each other
    calls/          oracle calls as they happen, one small file a process

Without a path everything is held in memory, or in a temporary folder where checkpoints are many
or several processes share them.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from grasp_tune.core.errors import CheckpointError, DamagedState
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome
from grasp_tune.engine.checkpoints import Store
from grasp_tune.runtime.call_counter import NAMES, CallCounter
from grasp_tune.runtime.disk_space import check_room
from grasp_tune.runtime.files import (
    STATE_LIMIT,
    previous,
    read_sealed,
    remove,
    remove_stale,
    retried,
    write_fault,
    write_sealed,
)
from grasp_tune.runtime.lock import NAME as MARKER
from grasp_tune.runtime.lock import FolderLock, folder_lock
from grasp_tune.runtime.store import SUFFIX, CheckpointStore, MemoryStore
from grasp_tune.runtime.usage import UsageMeter

logger = logging.getLogger(__name__)

STATE, CHECKPOINTS, CALLS = "state.json", "checkpoints", "calls"
IN_MEMORY = 64 * 2**20  # bytes of checkpoints, where there is no folder


def load_search(path: Path, spec: SweepSpec | None = None) -> Search:
    """Return the search of a state file; where that is damaged, of the one saved before it.

    Raises `CheckpointError` where neither can be read.
    """
    return Search.from_state(read_sealed(path, STATE_LIMIT), spec)


class SweepFolder:
    """Where one sweep keeps what it knows; made by `open_folder`.

    path: the folder, None for memory.
    store: where checkpoints go, if not into the folder.
    calls: where oracle calls are counted, if not in the folder.
    lock: the folder's, held by this process.
    made: the folder did not exist before.
    """

    def __init__(
        self,
        path: Path | None,
        store: Store | None = None,
        calls: CallCounter | None = None,
        lock: FolderLock | None = None,
        *,
        made: bool = False,
    ) -> None:
        self.path, self._lock = path, lock
        self._made = made
        self._fresh = path is None or not (path / STATE).exists()  # no sweep had begun in it
        self._checked = 0  # rounds whose need for disk was looked at
        self.usage = UsageMeter()
        self.store: Store = store or (
            MemoryStore(IN_MEMORY) if path is None else CheckpointStore(path / CHECKPOINTS, lock)
        )
        self.calls = calls or CallCounter(None if path is None else path / CALLS, self.check)

    def check(self) -> None:
        """Raise `CheckpointError` where the folder was removed, or taken over by another run."""
        if self._lock is not None:
            self._lock.check()

    def search(self, spec: SweepSpec) -> Search:
        """Return the search as an earlier run left it, or a new one.

        A state of which nothing can be used is put aside: its work is done again, to the same
        result, and shows among the repeated calls.
        """
        if self.path is None:
            return Search(spec)
        path = self.path / STATE
        if path.exists():
            try:
                search = load_search(path, spec)
            except DamagedState as damaged:
                aside = path.with_name("state.damaged.json")
                with suppress(OSError):  # else it is replaced by the first state of the new run
                    path.replace(aside)
                logger.warning(
                    "%s; it is kept as %s, and the run starts again from x0", damaged, aside.name
                )
            else:
                logger.info("going on from %s", self.path)
                return search
        remove(previous(path))  # of another run, whose folder was cleared
        search = Search(spec)
        self.save(search)
        return search

    def save(self, search: Search) -> None:
        """Replace the state file, where there is a folder."""
        if self.path is not None:
            self.check()
            write_sealed(self.path / STATE, search.state())

    def discard(self, keys: tuple[str, ...]) -> None:
        """Remove checkpoints that nobody will read again."""
        for key in keys:
            try:
                self.store.delete(key)
            except CheckpointError as error:  # it takes room and does no other harm
                logger.warning("%s", error)

    def check_room(self, search: Search) -> None:
        """Look, once a round, whether the disk can hold what the round will leave."""
        if self.path is None or self._checked == search.rounds:
            return
        self._checked = search.rounds
        sizes = [o.parameters for o in search.outcomes.values() if isinstance(o, ProbeOutcome)]
        if sizes:
            keys = {key for task in search.round_tasks for key in task.writes}
            check_room(self.path, len(keys.difference(self.store.keys())), sizes[0])

    def clear(self) -> None:
        """Remove what a run that never got anywhere has written, and nothing else."""
        if not self._fresh or self.path is None:
            return
        state = self.path / STATE
        ours = [state, previous(state), self.path / MARKER, *(self.path / CALLS).glob(NAMES)]
        ours += (self.path / CHECKPOINTS).glob(f"*{SUFFIX}")
        for file in ours:
            file.unlink(missing_ok=True)
        for folder in (self.path / CHECKPOINTS, self.path / CALLS, *[self.path] * self._made):
            with suppress(OSError):  # somebody else has put something there, or it was never made
                folder.rmdir()


@contextlib.contextmanager
def open_folder(
    path: Path | None,
    *,
    shared: bool = False,
    store: Store | None = None,
    calls: CallCounter | None = None,
) -> Iterator[SweepFolder]:
    """Hold the folder of a sweep, made where it is missing.

    shared: several processes will use it, so that memory does not do in place of a folder.
    store: where checkpoints go, if not into the folder.
    calls: counts oracle calls, if not in the folder.
    """
    with contextlib.ExitStack() as stack:
        if path is None and shared:
            temporary = tempfile.TemporaryDirectory(prefix="grasp-tune-")
            path = Path(stack.enter_context(temporary))
        if path is None:
            folder = SweepFolder(None, store, calls)
            if isinstance(folder.store, MemoryStore):
                stack.callback(folder.store.close)
            yield folder
            return
        made = not path.exists()
        try:
            retried(lambda: path.mkdir(parents=True, exist_ok=True))
        except OSError as fault:
            raise CheckpointError(write_fault(path, fault, 1)) from fault
        lock = stack.enter_context(folder_lock(path))
        for place in (path, path / CHECKPOINTS):  # what a killed run was writing
            remove_stale(place, alone=True)
        yield SweepFolder(path, store, calls, lock, made=made)
