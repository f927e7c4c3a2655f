"""The folder of a sweep: its lock, its state, its checkpoints, its count of calls.

    .grasp_tune.json  says that the folder is ours, and who uses it; see `lock`
    state.json      the outcomes so far; going on after a crash is reading it and asking again
    checkpoints/    what tasks leave for each other
    calls/          oracle calls as they happen, one small file a process
    clock.json      the seconds that were spent, where minutes are limited

Without a path everything is held in memory, or in a temporary folder where checkpoints are many
or several processes share them.
"""

import contextlib
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from grasp_tune.core.errors import CheckpointError, DamagedState, InputError
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome
from grasp_tune.engine.checkpoints import Store
from grasp_tune.runtime.call_counter import NAMES, CallCounter
from grasp_tune.runtime.files import (
    STATE_LIMIT,
    previous,
    read_json,
    read_sealed,
    remove,
    remove_stale,
    retried,
    write_fault,
    write_json_atomic,
    write_sealed,
)
from grasp_tune.runtime.lock import NAME as MARKER
from grasp_tune.runtime.lock import FolderLock, folder_lock
from grasp_tune.runtime.store import CheckpointStore, MemoryStore
from grasp_tune.runtime.usage import UsageMeter

logger = logging.getLogger(__name__)

STATE, CHECKPOINTS, CALLS, CLOCK = "state.json", "checkpoints", "calls", "clock.json"
IN_MEMORY = 64 * 2**20  # bytes of checkpoints, where there is no folder
USUAL_BYTES, LEAST_BYTES = 4, 2  # of one number; the least in half precision


def load_search(path: Path, spec: SweepSpec | None = None) -> Search:
    """Return the search of a state file; where that is damaged, of the one saved before it.

    Raises `CheckpointError` where neither can be read.
    """
    return Search.from_state(read_sealed(path, STATE_LIMIT), spec)


class SweepFolder:
    """Where one sweep keeps what it knows; made by `open_folder`.

    path: the folder, None for memory.
    store, calls: where checkpoints go and oracle calls are counted, if not in the folder.
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
        self.path, self._lock, self._made = path, lock, made
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

    @contextlib.contextmanager
    def deadline(self, minutes: float | None) -> Iterator[float]:
        """Give the time of `time.monotonic` at which the sweep must end, infinite without minutes.

        Time that an earlier process spent in the same folder counts, unless it was killed.
        """
        file, spent, begun = self.path and self.path / CLOCK, 0.0, time.monotonic()
        if minutes is None:
            yield math.inf
            return
        if file is not None and file.exists():
            found = read_json(file, 2**12)
            spent = found.get("seconds", -1.0) if isinstance(found, dict) else -1.0
            if not isinstance(spent, (int, float)) or not 0 <= spent < math.inf:
                raise InputError(f"{file}: got {found!r}, expected the seconds that were spent")
        try:
            yield begun + 60 * minutes - spent
        finally:
            if file is not None and file.parent.is_dir():
                with suppress(CheckpointError):
                    self.check()
                    write_json_atomic(file, {"seconds": spent + time.monotonic() - begun})

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
        keys = self.store.keys()
        for key in keys:
            with suppress(CheckpointError):  # not of this sweep
                self.store.read(key)
                self.store.delete(key)
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
    store, calls: as `SweepFolder` takes them.
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
        for place in (path / CHECKPOINTS, path / CALLS):
            if place.is_symlink():  # what is behind it may be somebody else's
                raise CheckpointError(f"{place} is a link, expected a folder of the sweep's own")
        for place in (path, path / CHECKPOINTS):  # what a killed run was writing
            remove_stale(place, alone=True)
        yield SweepFolder(path, store, calls, lock, made=made)


def check_room(folder: Path, checkpoints: int, numbers: int) -> None:
    """Raise `CheckpointError` where the disk cannot hold so many more checkpoints.

    numbers: of each, at least: those of the model. The state of a run has its optimizer's too, so
        this is a lower bound, good enough to refuse what cannot end well.
    """
    free, count = shutil.disk_usage(folder).free, checkpoints * numbers
    lack = (
        f"room: {checkpoints} checkpoints of {numbers} numbers, about "
        f"{count * USUAL_BYTES / 1e9:.2g} GB, are to be written, and {free / 1e9:.2g} GB are free"
    )
    if count * LEAST_BYTES > free:
        hint = "make room and go on, or use another folder"
        raise CheckpointError(f"{folder} lacks {lack}; {hint}")
    if count * USUAL_BYTES > free:
        logger.warning("%s may lack %s", folder, lack)
