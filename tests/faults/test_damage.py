"""Checkpoints and states that are not what was written."""

from pathlib import Path

import pytest

from benchmarks.faulting import damage
from benchmarks.faulting.patches import quiet
from grasp_tune.core.errors import DamagedState
from grasp_tune.runtime.files import previous, read_sealed, write_sealed

pytestmark = pytest.mark.xdist_group("faults")


@pytest.mark.parametrize("kind", ["with one bit flipped", "missing"])
def test_damaged_checkpoints_are_made_again_before_a_run_goes_on(tmp_path: Path, kind: str) -> None:
    damage.checkpoints_damaged_before_resume(tmp_path, kind)


@pytest.mark.parametrize("workers", [1, 2])
def test_checkpoints_that_decay_between_rounds_are_made_again(tmp_path: Path, workers: int) -> None:
    damage.checkpoints_damaged_while_running(tmp_path, workers)


def test_the_chosen_checkpoint_is_made_again_after_the_end(tmp_path: Path) -> None:
    damage.chosen_checkpoint_damaged(tmp_path)


def test_a_run_goes_on_from_the_spare_of_a_truncated_state(tmp_path: Path) -> None:
    damage.state_truncated_everywhere(tmp_path, every=211)


def test_a_run_without_any_usable_state_starts_over_and_says_so(tmp_path: Path) -> None:
    damage.state_damaged_beyond_use(tmp_path)


def test_the_state_of_another_program_is_left_alone(tmp_path: Path) -> None:
    damage.foreign_state(tmp_path)


def test_a_sealed_file_is_never_read_with_a_byte_missing_or_a_bit_changed(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_sealed(path, {"a": [1.5, "nan"]})
    whole = path.read_bytes()
    assert read_sealed(path, 1000) == {"a": [1.5, "nan"]}
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        for content in (whole[:place], bytes(changed)):
            path.write_bytes(content)
            with pytest.raises(DamagedState, match=r"is damaged"):
                read_sealed(path, 1000)


@pytest.mark.parametrize("place", [*range(12), 100])
def test_a_state_that_is_damaged_anywhere_falls_back_to_its_spare(
    tmp_path: Path, place: int
) -> None:
    path = tmp_path / "state.json"
    for number in range(2):
        write_sealed(path, {"number": number, "text": "x" * 100})
    whole = bytearray(path.read_bytes())
    whole[place] ^= 1
    for content in (bytes(whole), b"\0" * len(whole), b""):
        path.write_bytes(content)
        with quiet():
            assert read_sealed(path, 1000)["number"] == 0


def test_the_spare_is_what_was_written_before(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for number in range(3):
        write_sealed(path, {"number": number})
    numbers = [read_sealed(file, 1000)["number"] for file in (path, previous(path))]
    assert numbers == [2, 1]
    path.write_bytes(path.read_bytes()[:-1])
    with quiet():
        assert read_sealed(path, 1000) == {"number": 1}
    previous(path).unlink()
    with pytest.raises(DamagedState, match="checksum does not match"):
        read_sealed(path, 1000)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["state.json"]
