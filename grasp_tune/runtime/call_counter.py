"""Oracle calls as they happen, in files that survive the death of their process.

Eight bytes a process, mapped into memory: counting costs a store. That is how work repeated after a
fault is told apart from budget.
"""

import mmap
import struct
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from grasp_tune.runtime.files import in_words, read_bytes

NAMES = "[0-9a-f]" * 32  # of the files, as a pattern
LOOK = 0.2  # seconds between two looks at whose folder it is
_COUNT = struct.Struct("<q")


class CallCounter:
    """The calls of every process that ever worked on a sweep: a small file each in `folder`.

    folder: where the files are; without it the calls of this process alone are counted.
    check: called before a file is made, and now and then; raises where the folder is another's by
        now, so that the workers of a driver that died end where another driver goes on.
    others: gives a number of calls that is known in another way, where that is larger.
    """

    def __init__(
        self,
        folder: Path | None,
        check: Callable[[], None] = lambda: None,
        others: Callable[[], int] = lambda: 0,
    ) -> None:
        self._folder, self._check, self._others = folder, check, others
        self.own = 0  # calls of this process that no file counts

    def counter(self) -> Callable[[int], None]:
        """Return a function that adds to a count of its own."""
        if (folder := self._folder) is None:
            return self._add
        self._check()
        memory = in_words(lambda: _new_count(folder), f"{folder}/", needed=_COUNT.size)
        looked = time.monotonic()

        def add(calls: int) -> None:
            nonlocal looked
            if (now := time.monotonic()) - looked > LOOK:
                looked = now
                self._check()
            _COUNT.pack_into(memory, 0, _COUNT.unpack_from(memory)[0] + calls)

        return add

    def _add(self, calls: int) -> None:
        self.own += calls

    @property
    def total(self) -> int:
        """All calls so far, by whichever process, in this run or an earlier one."""
        files = [] if self._folder is None else self._folder.glob(NAMES)
        counts = [read_bytes(path, _COUNT.size) for path in files]
        # One that is shorter is just being made.
        known = self.own + sum(_COUNT.unpack(item)[0] for item in counts if len(item) == 8)
        return max(known, self._others())


def _new_count(folder: Path) -> mmap.mmap:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / uuid.uuid4().hex, "x+b") as file:
        file.write(_COUNT.pack(0))  # no holes: a full disk shows here, not in the mapping
        file.flush()
        return mmap.mmap(file.fileno(), _COUNT.size)
