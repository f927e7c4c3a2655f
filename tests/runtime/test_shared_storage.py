"""The folder that driver and workers share, on a disk and on any other pyarrow file system."""

from pathlib import Path

from pyarrow import fs as arrow

from grasp_tune.core.tasks import ProbeOutcome, ProbeTask
from grasp_tune.runtime.shared_storage import SharedStorage

TASK = ProbeTask("probe", (0, 7))
OUTCOME = ProbeOutcome(7, "feed", 7, 1.25, 2.0, 12, 7, 0.5, float("nan"))


def remote(folder: Path) -> arrow.FileSystem:
    """A file system that is not the local one, as a bucket is not."""
    return arrow.SubTreeFileSystem(str(folder), arrow.LocalFileSystem())


def storages(folder: Path) -> list[SharedStorage]:
    return [
        SharedStorage(arrow.LocalFileSystem(), str(folder / "experiment/run")),
        SharedStorage(remote(folder), "elsewhere/run"),
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


def test_calls_of_all_processes_are_added_up(tmp_path: Path) -> None:
    storage, other = storages(tmp_path)[0], storages(tmp_path)[0]
    assert storage.calls.total == 0
    first, second = storage.calls.counter(), other.calls.counter()
    first(3)
    second(5)
    first(1)
    assert storage.calls.total == 9
    assert storages(tmp_path)[0].calls.total == 9
