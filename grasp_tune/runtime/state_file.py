"""The state of a search as a file: sealed JSON, and the one before it as a spare."""

from pathlib import Path

from grasp_tune.core.search import Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.runtime.files import read_sealed, write_sealed

STATE_LIMIT = 64 * 2**20  # bytes; a state file larger than this is not ours


def save_search(search: Search, path: Path) -> None:
    """Replace the state file atomically; the one before stays beside it."""
    write_sealed(path, search.state())


def load_search(path: Path, spec: SweepSpec | None = None) -> Search:
    """Return the search that `save_search` wrote; where that file is damaged, the one before it.

    Raises `CheckpointError` where neither can be read.
    """
    return Search.from_state(read_sealed(path, STATE_LIMIT), spec)
