"""A sweep whose workers are started by others: its storage, and what a saved state brings back."""

import json
from pathlib import Path

import pytest
import torch
from pyarrow import fs as arrow

import grasp_tune as gt
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.core.search import ATTEMPTS, Search
from grasp_tune.core.spec import SweepSpec
from grasp_tune.core.tasks import Arm, ProbeOutcome, ProbeTask, Segment, TrainTask
from grasp_tune.runtime.driver import SELECT
from grasp_tune.runtime.shared_sweep import SharedStorage, SharedSweep, Work, fault_row, store_on

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
        storage.write_outcome(TASK, OUTCOME)
        found = storage.read_outcome(TASK)
        assert found is not None
        assert repr(found) == repr(OUTCOME)  # NaN included
        assert storage.read_outcome(ProbeTask("probe", (0, 8))) is None


def test_a_damaged_outcome_is_none(tmp_path: Path) -> None:
    storage = storages(tmp_path)[0]
    storage.write_outcome(TASK, OUTCOME)
    (path,) = tmp_path.glob("**/outcomes/probe.safetensors")
    path.write_bytes(path.read_bytes()[:-40])
    assert storage.read_outcome(TASK) is None


def test_files_of_another_sweep_are_refused(tmp_path: Path) -> None:
    for storage, other in zip(
        storages(tmp_path / "a"), storages(tmp_path / "b", "other"), strict=True
    ):
        storage.store.write("x0", {"param.w": torch.ones(3)}, {})
        storage.write_outcome(TASK, OUTCOME)
        other.store.write("x1", {}, {})
        other.write_outcome(TASK, OUTCOME)
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


def test_a_probe_that_was_given_up_is_asked_for_again_after_a_restore() -> None:
    spec = SweepSpec(gt.NonConvex(), 300)
    sweep = SharedSweep(spec, {})
    for number in range(ATTEMPTS - 1):
        assert isinstance(sweep.next(f"trial{number}"), Work)
        sweep.gone(f"trial{number}", "the network is down")
    assert isinstance(sweep.next("last"), Work)
    with pytest.raises(gt.SearchError, match="the network is down"):
        sweep.gone("last", "the network is down")
    again = SharedSweep(spec, {})
    again.load(sweep.state())
    work = again.next("fresh")
    assert isinstance(work, Work) and work.task.id.startswith("probe")


def test_failures_outlive_the_driver() -> None:
    spec = SweepSpec(gt.NonConvex(), 300)
    sweep = SharedSweep(spec, {})
    for number in range(ATTEMPTS - 1):
        sweep.next(f"trial{number}")
        sweep.gone(f"trial{number}", "the network is down")
    again = SharedSweep(spec, {})
    again.load(json.loads(json.dumps(sweep.state())))
    again.begin_again(probe_parts=1)
    again.next("last")
    with pytest.raises(gt.SearchError, match="probe failed 3 times"):
        again.gone("last", "the network is down")


def test_only_a_checkpoint_that_the_work_reads_is_made_again() -> None:
    spec = SweepSpec(gt.NonConvex(), 300)
    task = TrainTask("part", (Segment(Arm.of(1, "sgd", 0.1), 10, 20),))
    works = Work("run", task, 0, {}), Work("run", SELECT, 0, {}, Search(spec))
    for work, key in zip(works, (task.reads[0], "x0"), strict=True):
        assert fault_row(CheckpointError("gone", key), work)["checkpoint"] == key
        assert "full" in fault_row(gt.InputError("a full sentence"), work)["reason"]
        for other in (None, "run009-call20-state"):  # a disk that is full, somebody else's
            with pytest.raises(CheckpointError, match="disk"):
                fault_row(CheckpointError("disk", other), work)
