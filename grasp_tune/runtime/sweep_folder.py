"""The folder of a sweep: its lock, its state, its checkpoints, its count of calls.

    .grasp_tune.json  marks the folder as ours, and says who uses it; see `lock`
    state.json      the outcomes so far; a resumed sweep reads them and asks for the next tasks
    checkpoints/    files that tasks leave for later tasks
    calls/          oracle calls as they happen, one small file per process
    clock.json      the seconds spent, if there is a time limit

Without a path it is a temporary folder without a state.
"""

import contextlib
import logging
import math
import os
import shutil
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from grasp_tune.core.errors import CheckpointError, DamagedState, number
from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import ProbeOutcome
from grasp_tune.engine.checkpoints import Store
from grasp_tune.runtime import files
from grasp_tune.runtime.lane_sharing import LaneSharing
from grasp_tune.runtime.lock import NAME, FolderLock, folder_lock
from grasp_tune.runtime.store import CheckpointStore

logger = logging.getLogger(__name__)

STATE, CHECKPOINTS, CALLS, CLOCK = "state.json", "checkpoints", "calls", "clock.json"
USUAL_BYTES, LEAST_BYTES = 4, 2  # bytes of one number: single precision, half precision
NAMES = "[0-9a-f]" * 32  # a pattern for the names of the files with counts
LOOK = 0.2  # seconds between two checks that the folder is still ours
_SIZE = 8  # bytes of a count


def load_search(path: Path, spec: SweepSpec | None = None, sweep: str | None = None) -> Search:
    """Return the search in a state file, or in its previous version; `spec` may extend it.

    sweep: the name of the sweep that it must belong to, if known; old files have no name.
    """
    state = files.read_sealed(path)
    if state.pop("sweep", sweep) != sweep and sweep is not None:
        raise DamagedState(f"{path} is another sweep's")
    return Search.from_state(state, spec, extend=True)


class CallCounter:
    """A counter of the calls of all processes of a sweep, with one small file for each process.

    The eight bytes of a file are rewritten at each call, which takes a microsecond. With a memory
    map, which would be faster, a failing disk would kill the process.

    folder: the folder of the files; without it only the calls of this process are counted.
    check: raises an error if another driver has taken over the folder, to end this one's workers.
    others: returns a number of calls that is known in another way; the larger number counts.
    """

    def __init__(
        self,
        folder: Path | None,
        check: Callable[[], None] = lambda: None,
        others: Callable[[], int] = lambda: 0,
    ) -> None:
        self._folder, self._check, self._others = folder, check, others
        self.own = 0  # calls of this process that are not counted in a file

    def counter(self) -> Callable[[int], None]:
        """Return a function that adds calls; if there is a folder, in its own file."""
        if (folder := self._folder) is None:
            return self._add

        def new_count() -> int:
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(folder / uuid.uuid4().hex, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.pwrite(file, bytes(_SIZE), 0)  # reserves the space, so that a full disk shows here
            return file

        self._check()
        file = files.in_words(new_count, f"{folder}/", needed=_SIZE)
        made, looked = 0, time.monotonic()

        def add(calls: int) -> None:
            nonlocal made, looked
            if (now := time.monotonic()) - looked > LOOK:
                looked = now
                self._check()
            made += calls
            count = made.to_bytes(_SIZE, "little")
            files.in_words(lambda: os.pwrite(file, count, 0), f"{folder}/", needed=_SIZE)

        weakref.finalize(add, os.close, file)
        return add

    def _add(self, calls: int) -> None:
        self.own += calls

    @property
    def total(self) -> int:
        """All calls so far, of all processes, also of earlier ones."""
        paths = [] if self._folder is None else self._folder.glob(NAMES)
        counts = [files.read_bytes(path, _SIZE) for path in paths]
        # A shorter file is just being created.
        whole = (int.from_bytes(item, "little") for item in counts if len(item) == _SIZE)
        return max(self.own + sum(whole), self._others())


@dataclass(eq=False)
class SweepFolder:
    """The folder of one sweep; created by `open_folder`."""

    path: Path
    lock: FolderLock
    store: Store  # for checkpoints
    calls: CallCounter
    made: bool  # the folder did not exist before
    kept: bool  # the folder is not temporary, so the sweep can be resumed
    sharing: LaneSharing = field(default_factory=LaneSharing)
    checked: int = 0  # rounds that `check_room` has checked

    def __post_init__(self) -> None:
        self._state = self.path / STATE
        self._spare = files.previous(self._state)
        self._fresh = not self._state.exists()  # no earlier sweep in it

    def search(self, spec: SweepSpec) -> Search:
        """Return the search as an earlier run left it, or a new one, also if it is damaged."""
        if self._state.exists():
            try:
                search = load_search(self._state, spec, self.lock.sweep)
                logger.info("going on from %s", self.path)
                return search
            except DamagedState as damaged:
                aside = self._state.with_name("state.damaged.json")
                with suppress(OSError):  # else the first state of the new run replaces it
                    files.check_place(aside)
                    self._state.replace(aside)
                words = f"it is kept as {aside.name}, and the run starts again from x0"
                logger.warning("%s; %s", damaged, words)
        # The previous version of an earlier run's state; the folder was cleared since.
        files.in_words(partial(files.remove, self._spare), self._spare, "removed")
        search = Search(spec)
        self.save(search)
        return search

    def save(self, search: Search) -> None:
        """Replace the state file, unless the folder is temporary."""
        if self.kept:
            self.lock.check()
            files.write_sealed(self._state, {"sweep": self.lock.sweep, **search.state()})

    @contextlib.contextmanager
    def deadline(self, minutes: float | None) -> Iterator[float]:
        """Yield the time (`time.monotonic`) at which the sweep must end, infinite without minutes.

        The time of earlier processes in the same folder counts, unless they were killed.
        """
        if minutes is None:
            yield math.inf
            return
        file, spent, begun = self.path / CLOCK, 0.0, time.monotonic()
        if file.exists():
            try:
                found = files.read_sealed(file).get("seconds")
                spent = number(f"{file}: seconds", found, "at least 0", lambda x: x >= 0)
            except DamagedState as damaged:
                logger.warning("%s; the time that was spent before is not known", damaged)
        try:
            yield begun + 60 * minutes - spent
        finally:
            with suppress(CheckpointError):
                self.lock.check()
                files.write_sealed(file, {"seconds": spent + time.monotonic() - begun})

    def check_room(self, search: Search) -> None:
        """Raise `CheckpointError` if the disk lacks space for the round; checked once per round."""
        if self.checked == len(search.rounds):
            return
        self.checked = len(search.rounds)
        sizes = [o.parameters for o in search.outcomes.values() if isinstance(o, ProbeOutcome)]
        if sizes:
            self.lock.check()
            keys = {key for task in search.round_tasks for key in task.writes}
            check_room(self.path, len(keys.difference(self.store.keys())), sizes[0])

    def clear(self) -> None:
        """Remove the files of a run that failed at its beginning, and nothing else."""
        if not self._fresh or not self.lock.held:
            return
        keys = self.store.keys()
        for key in keys:
            with suppress(CheckpointError):  # a checkpoint of another sweep
                self.store.read(key)
                self.store.delete(key)
        ours = [self._state, self._spare, self.path / NAME]
        for file in (*ours, *(self.path / CALLS).glob(NAMES)):
            file.unlink(missing_ok=True)
        for folder in (self.path / CHECKPOINTS, self.path / CALLS, *[self.path] * self.made):
            with suppress(OSError):  # it has other files, or was never created
                folder.rmdir()


@contextlib.contextmanager
def open_folder(
    path: Path | None, store: Store | None = None, calls: CallCounter | None = None
) -> Iterator[SweepFolder]:
    """Lock and yield the folder of a sweep, creating it if it is missing; None: a temporary one."""
    with contextlib.ExitStack() as stack:
        kept, made = path is not None, path is not None and not os.path.exists(path)
        if path is None:
            make = partial(TemporaryDirectory, prefix="grasp-tune-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(files.in_words(make, gettempdir(), needed=1)))
        files.in_words(partial(path.mkdir, parents=True, exist_ok=True), path, needed=1)
        held = stack.enter_context(folder_lock(path))
        for place in (path / CHECKPOINTS, path / CALLS):
            if place.is_symlink():  # its target may be somebody else's
                raise CheckpointError(f"{place} is a link, expected a folder of the sweep's own")
        for place in (path, path / CHECKPOINTS):  # leftovers of a killed run
            files.remove_stale(place, alone=True)
        store = store or CheckpointStore(path / CHECKPOINTS, held, durable=kept)
        calls = calls or CallCounter(path / CALLS, held.check)
        yield SweepFolder(path, held, store, calls, made, kept)


def check_room(folder: Path, checkpoints: int, numbers: int) -> None:
    """Raise `CheckpointError` if the disk cannot hold `checkpoints` of `numbers` numbers each."""
    free, count = shutil.disk_usage(folder).free, checkpoints * numbers
    size = f"about {count * USUAL_BYTES / 1e9:.2g} GB, are to be written"
    lack = f"room: {checkpoints} checkpoints of {numbers} numbers, {size}"
    lack += f", and {free / 1e9:.2g} GB are free"
    if count * LEAST_BYTES > free:
        raise CheckpointError(f"{folder} lacks {lack}; make room and go on, or use another folder")
    if count * USUAL_BYTES > free:
        logger.warning("%s may lack %s", folder, lack)
