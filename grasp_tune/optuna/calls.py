"""Oracle calls as they happen, in files that outlive their processes.

A trial knows the calls of its worker as of its last sign of life. Where the sweep has a folder,
each process counts in a mapped file there too, so that what a killed one had asked is known to the
call.
"""

import mmap
import struct
import uuid
from collections.abc import Callable
from pathlib import Path

from grasp_tune.runtime.files import retried

FOLDER = "calls"  # below the output folder
_COUNT = struct.Struct("<q")


class CallFiles:
    """The counts of all processes that ever worked on a sweep, one small file each."""

    def __init__(self, out: Path, sweep: str) -> None:
        self._folder = out / FOLDER / sweep  # several studies may keep their files in one folder

    def counter(self) -> Callable[[int], None]:
        """Return a function that adds to a count of its own."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / uuid.uuid4().hex, "x+b") as file:
            file.write(_COUNT.pack(0))
            file.flush()
            memory = mmap.mmap(file.fileno(), _COUNT.size)
        total = 0

        def add(calls: int) -> None:
            nonlocal total
            total += calls
            _COUNT.pack_into(memory, 0, total)

        return add

    @property
    def total(self) -> int:
        """All calls so far; 0 where nobody has counted."""
        total = 0
        for path in sorted(self._folder.glob("*")):
            content = retried(path.read_bytes)
            if len(content) == _COUNT.size:  # else its process is just making it
                total += _COUNT.unpack(content)[0]
        return total
