"""How much disk the next tasks will take, said before they start.

What a checkpoint holds is known before it is written: at least every number of the model once. The
state of a run has its optimizer's numbers too, so this is a lower bound, good enough to refuse what
cannot end well.
"""

import logging
import shutil
from pathlib import Path

from grasp_tune.core.errors import CheckpointError

logger = logging.getLogger(__name__)

USUAL_BYTES = 4  # of one number
LEAST_BYTES = 2  # of one number, in half precision
WORTH_A_LINE = 2**30  # bytes


def check_room(folder: Path, checkpoints: int, numbers: int) -> None:
    """Raise `CheckpointError` where the disk cannot hold them; where it is much, say so.

    checkpoints: how many will be written that are not there yet.
    numbers: of each, at least.
    """
    free, count = shutil.disk_usage(folder).free, checkpoints * numbers
    size = count * USUAL_BYTES
    what = f"{checkpoints} checkpoints of {numbers} numbers, about {_shown(size)}"
    if count * LEAST_BYTES > free:
        raise CheckpointError(
            f"{folder} lacks room: {what}, are to be written, and {_shown(free)} are free; make "
            "room and go on, or use another folder"
        )
    if size > free:
        logger.warning("%s may lack room: %s, and %s are free", folder, what, _shown(free))
    elif size > WORTH_A_LINE:
        logger.info("%s: %s, will be written; %s are free", folder, what, _shown(free))


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
