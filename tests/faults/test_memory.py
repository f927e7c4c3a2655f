"""Memory that does not grow with the number of candidates."""

from pathlib import Path

import pytest
import torch

from benchmarks.faulting import memory
from grasp_tune.core.errors import CheckpointError
from grasp_tune.runtime.store import TemporaryStore
from grasp_tune.runtime.sweep_folder import check_room

pytestmark = pytest.mark.xdist_group("faults")


def test_peak_memory_is_flat_in_the_number_of_candidates(tmp_path: Path) -> None:
    memory.many_candidates(tmp_path, side=300, few=20, many=60)


def test_a_temporary_store_goes_away() -> None:
    store = TemporaryStore()
    store.write("point", {"x": torch.ones(3)}, {})
    folder = store.folder
    assert folder.is_dir()
    del store
    assert not folder.exists()


def test_the_room_for_a_round_is_known_before_it_is_trained(tmp_path: Path) -> None:
    check_room(tmp_path, 5, 1000)
    with pytest.raises(
        CheckpointError, match="lacks room: 5 checkpoints of 1000000000000000000 numbers"
    ):
        check_room(tmp_path, 5, 10**18)
