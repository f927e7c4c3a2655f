"""Memory that does not grow with the number of candidates."""

from pathlib import Path

import pytest
import torch

from benchmarks.faulting import memory
from grasp_tune.core.errors import CheckpointError
from grasp_tune.runtime.store import MemoryStore
from grasp_tune.runtime.sweep_folder import check_room

pytestmark = pytest.mark.xdist_group("faults")


def test_peak_memory_is_flat_in_the_number_of_candidates(tmp_path: Path) -> None:
    memory.many_candidates(tmp_path, side=300, few=20, many=60)


def test_checkpoints_beyond_the_limit_are_files_that_go_away() -> None:
    store = MemoryStore(limit=3000)
    for number in range(5):
        store.write(f"point{number}", {"x": torch.full((200,), float(number))}, {"n": number})
    # A checkpoint has 800 bytes of numbers and some 200 of header: three would be too many.
    assert list(store.sizes()) == ["point0", "point1"]
    assert len(set(store.sizes().values())) == 1
    for number in range(5):
        found = store.read(f"point{number}")
        assert found.tensors["x"].tolist() == [float(number)] * 200
        assert found.meta == {"n": number}
    store.delete("point0")
    store.write("point4", {"x": torch.zeros(1)}, {})  # there is room in memory again
    assert list(store.sizes()) == ["point1", "point4"]
    assert store.keys() == ("point1", "point2", "point3", "point4")
    assert store._folder is not None and (folder := Path(store._folder.name)).exists()
    store.close()
    assert not folder.exists()
    with pytest.raises(CheckpointError, match="is missing"):
        store.read("point3")


def test_the_room_for_a_round_is_known_before_it_is_trained(tmp_path: Path) -> None:
    check_room(tmp_path, 5, 1000)
    with pytest.raises(
        CheckpointError, match="lacks room: 5 checkpoints of 1000000000000000000 numbers"
    ):
        check_room(tmp_path, 5, 10**18)
