"""The folder that driver and workers share, on a disk and on any other pyarrow file system."""

from pathlib import Path

import pytest
import torch
from pyarrow import fs as arrow

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.tasks import ProbeOutcome, ProbeTask
from grasp_tune.ray.depot import Depot
from grasp_tune.ray.remote_store import RemoteStore

TASK = ProbeTask("probe", (0, 7))
OUTCOME = ProbeOutcome(7, "feed", 7, 1.25, 2.0, 12, 7, 0.5, float("nan"))


def remote(folder: Path) -> arrow.FileSystem:
    """A file system that is not the local one, as a bucket is not."""
    return arrow.SubTreeFileSystem(str(folder), arrow.LocalFileSystem())


def depots(folder: Path) -> list[Depot]:
    return [
        Depot(arrow.LocalFileSystem(), str(folder / "experiment"), "run"),
        Depot(remote(folder), "elsewhere", "run"),
    ]


def test_an_outcome_comes_back_for_the_very_task_that_wrote_it(tmp_path: Path) -> None:
    for depot in depots(tmp_path):
        assert depot.read_outcome(TASK) is None
        depot.write_outcome(TASK, OUTCOME, 64)
        found = depot.read_outcome(TASK)
        assert found is not None
        assert repr(found) == repr((OUTCOME, 64))  # NaN included
        assert depot.read_outcome(ProbeTask("probe", (0, 8))) is None


def test_a_damaged_outcome_is_none(tmp_path: Path) -> None:
    depot = depots(tmp_path)[0]
    depot.write_outcome(TASK, OUTCOME, 0)
    (path,) = tmp_path.glob("**/probe.json")
    path.write_text(path.read_text()[:40])
    assert depot.read_outcome(TASK) is None


def test_calls_of_all_processes_are_added_up(tmp_path: Path) -> None:
    depot, other = depots(tmp_path)[0], depots(tmp_path)[0]
    assert depot.calls() == 0
    first, second = depot.counter(), other.counter()
    first(3)
    second(5)
    first(1)
    assert depot.calls() == 9
    assert Depot.at(str(depot)).calls() == 9


def test_a_remote_store_keeps_what_a_folder_keeps(tmp_path: Path) -> None:
    store = RemoteStore(remote(tmp_path), "deep/checkpoints")
    assert store.keys() == ()
    tensors = {"param.a": torch.arange(6.0).reshape(2, 3), "buffer.n": torch.tensor(4)}
    store.write("x0", tensors, {"count": 3})
    found = store.read("x0")
    assert found.meta == {"count": 3}
    assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)
    assert store.keys() == ("x0",)
    assert store.exists("x0")
    assert store.size("x0") == (tmp_path / "deep/checkpoints/x0.safetensors").stat().st_size
    store.delete("x0")
    store.delete("x0")
    assert not store.exists("x0")
    for missing in (lambda: store.read("x0"), lambda: store.size("x0")):
        with pytest.raises(CheckpointError, match="checkpoint x0 is missing") as error:
            missing()
        assert error.value.key == "x0"
    with pytest.raises(InputError, match="checkpoint key"):
        store.read("../x0")


def test_a_damaged_remote_checkpoint_is_named(tmp_path: Path) -> None:
    store = RemoteStore(remote(tmp_path), "checkpoints")
    store.write("x0", {"a": torch.ones(3)}, {})
    path = tmp_path / "checkpoints/x0.safetensors"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="truncated") as error:
        store.read("x0")
    assert error.value.key == "x0"
