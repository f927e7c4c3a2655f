"""How much disk the next tasks will take, said before they start.

What a checkpoint holds is known before it is written: at least every number of the model once. The
state of a run has its optimizer's numbers too, so this is a lower bound, good enough to refuse what
cannot end well.
"""

import logging
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from grasp_tune.core.errors import CheckpointError
from grasp_tune.core.tasks import Task

logger = logging.getLogger(__name__)

USUAL_BYTES = 4  # of one number; models in half precision have 2
LEAST_BYTES = 2
WORTH_A_LINE = 2**30  # bytes


@dataclass(frozen=True, slots=True)
class Room:
    """The checkpoints that some tasks will leave."""

    checkpoints: int
    numbers: int  # of each, at least

    @classmethod
    def of(cls, tasks: Iterable[Task], parameters: int, there: Collection[str] = ()) -> "Room":
        """Return what the tasks need; what is `there` already is replaced and takes no more."""
        keys = {key for task in tasks for key in task.writes}
        return cls(len(keys.difference(there)), parameters)

    @property
    def size(self) -> int:
        """Bytes in all, as a rule."""
        return self.checkpoints * self.numbers * USUAL_BYTES

    @property
    def least(self) -> int:
        """Bytes in all, below which it cannot be."""
        return self.checkpoints * self.numbers * LEAST_BYTES


def check_room(folder: Path, room: Room) -> None:
    """Raise `CheckpointError` where the disk cannot hold it; where it is much, say so."""
    free = shutil.disk_usage(folder).free
    what = f"{room.checkpoints} checkpoints of {room.numbers} numbers, about {_shown(room.size)}"
    if room.least > free:
        raise CheckpointError(
            f"{folder} lacks room: {what}, are to be written, and {_shown(free)} are free; make "
            "room and go on, or use another folder"
        )
    if room.size > free:
        logger.warning("%s may lack room: %s, and %s are free", folder, what, _shown(free))
    elif room.size > WORTH_A_LINE:
        logger.info("%s: %s, will be written; %s are free", folder, what, _shown(free))


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
