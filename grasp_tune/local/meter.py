"""Oracle calls as they happen, in a file that survives the death of the process.

Eight bytes a process, mapped into memory: counting costs a store, and what a killed process had
already asked of the oracle is known when the run goes on. That is how repeated work is told apart
from budget.
"""

import mmap
import struct
from pathlib import Path

from grasp_tune.method.errors import CheckpointError
from grasp_tune.method.statefile import write_fault

SLOTS = 512  # processes that may count at the same time
_FORMAT = struct.Struct("<q")


class Meter:
    """Counters in one mapped file, one slot a process."""

    def __init__(self, path: Path | None) -> None:
        size = SLOTS * _FORMAT.size
        if path is None:
            self._map = mmap.mmap(-1, size)  # shared with forked workers, gone with them
            return
        try:
            with open(path, "a+b") as file:
                file.seek(0, 2)
                if file.tell() != size:  # new, or damaged: counting starts again
                    file.truncate(0)
                    file.write(bytes(size))  # no holes: a full disk shows here, not in the mapping
                    file.flush()
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as fault:
            raise CheckpointError(write_fault(path, fault, size)) from fault

    def counter(self, slot: int) -> "Counter":
        """Return the counter of one process."""
        return Counter(self._map, slot % SLOTS)

    @property
    def total(self) -> int:
        """All calls counted so far, by whichever process, in this run or an earlier one."""
        return sum(_FORMAT.unpack_from(self._map, slot * _FORMAT.size)[0] for slot in range(SLOTS))


class Counter:
    """One process's count; calling it adds."""

    def __init__(self, memory: mmap.mmap, slot: int) -> None:
        self._memory, self._at = memory, slot * _FORMAT.size
        self._count = _FORMAT.unpack_from(memory, self._at)[0]

    def __call__(self, calls: int) -> None:
        self._count += calls
        _FORMAT.pack_into(self._memory, self._at, self._count)
