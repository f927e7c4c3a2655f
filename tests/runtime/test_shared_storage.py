"""The folder that driver and workers share, on a disk and on any other pyarrow file system."""

from pathlib import Path

import pytest
import torch
from pyarrow import fs as arrow

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask
from grasp_tune.runtime.shared_storage import SharedStorage, store_on

TASK = ProbeTask("probe", (0, 7))
OUTCOME = ProbeOutcome(7, "feed", 7, 1.25, 2.0, 12, 7, 0.5, float("nan"))


def remote(folder: Path) -> arrow.FileSystem:
    """A file system that is not the local one, as a bucket is not."""
    return arrow.SubTreeFileSystem(str(folder), arrow.LocalFileSystem())


def storages(folder: Path, run: str = "run") -> list[SharedStorage]:
    folder.mkdir(exist_ok=True)
    return [
        SharedStorage(arrow.LocalFileSystem(), str(folder / "experiment" / run)),
        SharedStorage(remote(folder), f"elsewhere/{run}"),
    ]


def test_an_outcome_comes_back_for_the_very_task_that_wrote_it(tmp_path: Path) -> None:
    for storage in storages(tmp_path):
        assert storage.read_outcome(TASK) is None
        storage.write_outcome(TASK, OUTCOME, 64)
        found = storage.read_outcome(TASK)
        assert found is not None
        assert repr(found) == repr((OUTCOME, 64))  # NaN included
        assert storage.read_outcome(ProbeTask("probe", (0, 8))) is None


def test_a_damaged_outcome_is_none(tmp_path: Path) -> None:
    storage = storages(tmp_path)[0]
    storage.write_outcome(TASK, OUTCOME, 0)
    (path,) = tmp_path.glob("**/outcomes/probe.safetensors")
    path.write_bytes(path.read_bytes()[:-40])
    assert storage.read_outcome(TASK) is None


def test_files_of_another_sweep_are_refused(tmp_path: Path) -> None:
    for storage, other in zip(
        storages(tmp_path / "a"), storages(tmp_path / "b", "other"), strict=True
    ):
        storage.store.write("x0", {"param.w": torch.ones(3)}, {})
        storage.write_outcome(TASK, OUTCOME, 0)
        other.store.write("x1", {}, {})
        other.write_outcome(TASK, OUTCOME, 0)
    for mine, theirs in zip(*(sorted(tmp_path.glob(f"{at}/**/*.s*")) for at in "ab"), strict=True):
        theirs.with_name(mine.name).write_bytes(mine.read_bytes())
    for other in storages(tmp_path / "b", "other"):
        with pytest.raises(CheckpointError, match="its sweep is 'run', expected 'other'"):
            other.store.read("x0")
        assert other.read_outcome(TASK) is None


def test_calls_of_all_processes_are_added_up(tmp_path: Path) -> None:
    storage, other = storages(tmp_path)[0], storages(tmp_path)[0]
    assert storage.calls.total == 0
    first, second = storage.calls.counter(), other.calls.counter()
    first(3)
    second(5)
    first(1)
    assert storage.calls.total == 9
    assert storages(tmp_path)[0].calls.total == 9


def test_a_remote_store_keeps_what_a_folder_keeps(tmp_path: Path) -> None:
    store = store_on(remote(tmp_path), "deep/checkpoints", "run")
    assert store.keys() == ()
    tensors = {"param.a": torch.arange(6.0).reshape(2, 3), "buffer.n": torch.tensor(4)}
    store.write("x0", tensors, {"count": 3})
    found = store.read("x0")
    assert found.meta == {"count": 3}
    assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)
    assert store.keys() == ("x0",)
    assert store.exists("x0")
    assert (tmp_path / "deep/checkpoints/x0.safetensors").is_file()
    store.delete("x0")
    store.delete("x0")
    assert not store.exists("x0")
    with pytest.raises(CheckpointError, match="checkpoint x0 is missing") as error:
        store.read("x0")
    assert error.value.key == "x0"
    with pytest.raises(InputError, match="checkpoint key"):
        store.read("../x0")


def test_a_damaged_remote_checkpoint_is_named(tmp_path: Path) -> None:
    store = store_on(remote(tmp_path), "checkpoints", "run")
    store.write("x0", {"a": torch.ones(3)}, {})
    path = tmp_path / "checkpoints/x0.safetensors"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r"is damaged|truncated") as error:
        store.read("x0")
    assert error.value.key == "x0"
