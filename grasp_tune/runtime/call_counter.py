"""Oracle calls as they happen, in files that survive the death of their process.

Eight bytes a process, written again at each call, a microsecond: that is how work repeated after a
fault is told apart from budget. Mapped into memory they would cost less, but a disk that fails, or
a file that is cut, would end the process.
"""

import os
import time
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path

from grasp_tune.runtime.files import in_words, read_bytes

NAMES = "[0-9a-f]" * 32  # of the files, as a pattern
LOOK = 0.2  # seconds between two looks at whose folder it is
_SIZE = 8  # bytes of a count


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
        file = in_words(lambda: _new_count(folder), f"{folder}/", needed=_SIZE)
        made, looked = 0, time.monotonic()

        def add(calls: int) -> None:
            nonlocal made, looked
            if (now := time.monotonic()) - looked > LOOK:
                looked = now
                self._check()
            made += calls
            count = made.to_bytes(_SIZE, "little")
            in_words(lambda: os.pwrite(file, count, 0), f"{folder}/", needed=_SIZE)

        weakref.finalize(add, os.close, file)
        return add

    def _add(self, calls: int) -> None:
        self.own += calls

    @property
    def total(self) -> int:
        """All calls so far, by whichever process, in this run or an earlier one."""
        files = [] if self._folder is None else self._folder.glob(NAMES)
        counts = [read_bytes(path, _SIZE) for path in files]
        # One that is shorter is just being made.
        whole = (int.from_bytes(item, "little") for item in counts if len(item) == _SIZE)
        known = self.own + sum(whole)
        return max(known, self._others())


def _new_count(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / uuid.uuid4().hex, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    os.pwrite(file, bytes(_SIZE), 0)  # no holes: a full disk shows here, not in a call
    return file
