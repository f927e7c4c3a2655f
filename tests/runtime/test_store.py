"""Checkpoint stores: what was written comes back, and no half-written file ever."""

import errno
import math
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.engine.tensor_file import Content
from grasp_tune.runtime import files
from grasp_tune.runtime.store import CheckpointStore, TemporaryStore

Kept = CheckpointStore

SHARED = torch.arange(12.0).reshape(3, 4)
ALL_KINDS: dict[str, Tensor] = {
    "float": torch.tensor([0.1, -0.0, math.inf, math.nan, 1e-45]),
    "double": torch.tensor([0.1, math.pi], dtype=torch.float64),
    "bfloat": torch.tensor([1.5, -3e38]).to(torch.bfloat16),
    "half": torch.tensor([6e-8, 65504.0]).to(torch.float16),
    "float8": torch.tensor([1.5, -3.0]).to(torch.float8_e4m3fn),
    "complex": torch.tensor([1 + 2j, -3j]).conj(),
    "flag": torch.tensor([[True, False], [False, True]]),
    "long": torch.tensor([2**62, -(2**63)]),
    "byte": torch.tensor([0, 255], dtype=torch.uint8),
    "scalar": torch.tensor(3.25),
    "count": torch.tensor(9),
    "empty": torch.zeros(0),
    "empty-rows": torch.zeros(3, 0, 2, dtype=torch.int64),
    "whole": SHARED,
    "row": SHARED[1],  # shares memory with `whole`
    "across": SHARED.t(),  # not contiguous
    "strided": SHARED[:, ::2],
    "expanded": torch.tensor([7.0]).expand(4),
    "image": torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).to(
        memory_format=torch.channels_last
    ),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}
if hasattr(torch, "uint64"):  # from torch 2.3 on
    ALL_KINDS["unsigned"] = torch.tensor([2**63 + 11], dtype=torch.uint64)


def bits(tensor: Tensor) -> bytes:
    """The numbers as bytes: NaN equals NaN, and 0 is not -0."""
    plain = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


@pytest.fixture(params=["kept", "temporary"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return CheckpointStore(tmp_path / "points") if request.param == "kept" else TemporaryStore()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSES", (0.0,) * len(files.PAUSES))


def test_every_kind_of_tensor_comes_back_bit_for_bit(store: Kept) -> None:
    meta: dict[str, str | int | float] = {
        "text": "é\n\"'",
        "big": 2**80,
        "number": 0.1 + 0.2,
        "nan": math.nan,
    }
    store.write("all", ALL_KINDS, meta)
    found = store.read("all")
    assert list(found.tensors) == sorted(ALL_KINDS)
    for name, tensor in ALL_KINDS.items():
        back = found.tensors[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape), name
        assert bits(back) == bits(tensor), name
        assert not back.requires_grad
    assert math.isnan(float(found.meta.pop("nan")))
    meta.pop("nan")
    assert found.meta == meta


def test_what_was_read_belongs_to_the_reader(store: Kept) -> None:
    source = torch.ones(3)
    store.write("point", {"x": source, "y": source}, {"a": 1})
    source.zero_()
    first = store.read("point")
    first.tensors["x"].fill_(5.0)
    first.meta["a"] = 2
    second = store.read("point")
    assert second.tensors["x"].tolist() == second.tensors["y"].tolist() == [1.0, 1.0, 1.0]
    assert second.meta == {"a": 1}


def test_keys_and_deletion(store: Kept) -> None:
    assert store.keys() == ()
    assert not store.exists("b.2")
    store.write("b.2", {"x": torch.ones(10)}, {})
    store.write("a_1-z", {}, {"only": "meta"})
    assert store.keys() == ("a_1-z", "b.2")
    assert store.exists("b.2")
    store.write("b.2", {"x": torch.ones(1000)}, {})  # replaces
    assert store.read("b.2").tensors["x"].shape == (1000,)
    store.delete("b.2")
    store.delete("b.2")
    assert store.keys() == ("a_1-z",)
    with pytest.raises(CheckpointError, match=r"checkpoint b\.2 is missing") as caught:
        store.read("b.2")
    assert caught.value.key == "b.2"


BAD_KEYS = ["", ".a", "..", "a/b", "../a", "a\\b", "A", "a b", "a\0", "a\n", "é", "a" * 121, "/a"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_that_could_leave_the_folder_are_refused(store: Kept, key: str) -> None:
    for action in (store.read, store.exists, store.delete):
        with pytest.raises(InputError, match="must be 1 to 120 of"):
            action(key)
    with pytest.raises(InputError, match="must be 1 to 120 of"):
        store.write(key, {}, {})
    assert store.keys() == ()


@given(key=st.text(alphabet="ab./\\-_~:\0 A", max_size=8))
@settings(max_examples=200)
def test_a_path_is_always_in_the_folder(key: str) -> None:
    folder = Path("/nowhere/points")
    try:
        path = CheckpointStore(folder).path(key)
    except InputError:
        return
    assert Path(os.path.normpath(path)).parent == folder


def test_the_longest_key_works(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write("k" * 120, {"x": torch.ones(1)}, {})
    assert store.keys() == ("k" * 120,)


def test_opening_a_store_makes_nothing_and_foreign_files_are_no_keys(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a" / "b")
    assert store.keys() == ()
    assert not (tmp_path / "a").exists()
    store.write("x", {}, {})
    (tmp_path / "a" / "b" / "Notes.safetensors").write_bytes(b"")
    (tmp_path / "a" / "b" / "readme.txt").write_bytes(b"")
    assert store.keys() == ("x",)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.booleans())
@settings(max_examples=150)
def test_damage_anywhere_is_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int, cut: bool
) -> None:
    store = CheckpointStore(tmp_path_factory.mktemp("damage"))
    store.write("point", {"x": torch.arange(50.0), "n": torch.tensor(3)}, {"step": 1})
    path = store.path("point")
    data = bytearray(path.read_bytes())
    place %= len(data)
    if cut:
        del data[place:]
    else:
        data[place] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="checkpoint point: ") as caught:
        store.read("point")
    assert "\n" not in str(caught.value)
    assert caught.value.key == "point"


class Bomb:
    """Leaves a mark if anyone unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mkdir, (str(self.mark), 0o755)


def test_a_pickled_file_is_refused_and_its_code_never_runs(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    mark = tmp_path / "ran"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        store.path("point").write_bytes(pickle.dumps(Bomb(mark), protocol))
        with pytest.raises(CheckpointError, match="no checkpoint of grasp_tune"):
            store.read("point")
    torch.save(Bomb(mark), store.path("point"))
    with pytest.raises(CheckpointError, match="no checkpoint of grasp_tune"):
        store.read("point")
    assert not mark.exists()


def test_a_folder_in_the_place_of_a_file_is_one_clear_error(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.path("point").mkdir()
    assert not store.exists("point")
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        store.read("point")
    with pytest.raises(CheckpointError, match="cannot be written"):
        store.write("point", {}, {})
    with pytest.raises(CheckpointError, match="cannot be removed"):
        store.delete("point")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be written"):
        CheckpointStore(tmp_path / "file").write("point", {}, {})


class FaultyDisk:
    """Fails the n-th call of os.fsync, which comes twice in each write: file, then folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: dict[int, int]) -> None:
        self.calls, self._faults, self._real = 0, faults, os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, handle: int) -> None:
        self.calls += 1
        if number := self._faults.get(self.calls):
            raise OSError(number, os.strerror(number))
        self._real(handle)


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT]
)
def test_a_fault_that_passes_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = CheckpointStore(tmp_path)
    # The file's fsync fails, then the folder's, then both succeed: 1 + 2 + 2 calls.
    disk = FaultyDisk(monkeypatch, {1: number, 3: number})
    store.write("point", {"x": torch.arange(9.0)}, {})
    assert disk.calls == 5
    assert store.read("point").tensors["x"].tolist() == list(range(9))
    assert os.listdir(tmp_path) == ["point.safetensors"]


def test_a_full_disk_is_not_tried_again_and_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.write("point", {"x": torch.zeros(4)}, {})
    disk = FaultyDisk(monkeypatch, {1: errno.ENOSPC})
    size = Content.of({"x": torch.ones(1000)}, {}, "point").size
    assert size > 4000
    with pytest.raises(CheckpointError, match=f"needs {size} bytes and the disk is full"):
        store.write("point", {"x": torch.ones(1000)}, {})
    assert disk.calls == 1
    assert os.listdir(tmp_path) == ["point.safetensors"]
    assert store.read("point").tensors["x"].tolist() == [0.0] * 4


def test_a_really_full_device_is_one_clear_error() -> None:
    # /dev/full takes every open and fails every write, as a full disk does.
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    words = "^a cannot be written: it needs 77 bytes and the disk is full$"
    with pytest.raises(CheckpointError, match=words):
        files.in_words(lambda: full.write_bytes(b"x"), "a", needed=77)


def test_a_fault_that_stays_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    disk = FaultyDisk(monkeypatch, dict.fromkeys(range(1, 100), errno.EIO))
    with pytest.raises(CheckpointError, match="cannot be written: Input/output error"):
        store.write("point", {"x": torch.ones(3)}, {})
    assert disk.calls == len(files.PAUSES) + 1
    assert os.listdir(tmp_path) == []


def test_a_read_that_fails_for_a_moment_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.write("point", {"x": torch.ones(3)}, {})
    faults = [errno.ESTALE, errno.EIO]
    real = os.fstat

    def fstat(handle: int) -> os.stat_result:
        if faults:
            raise OSError(faults.pop(), "passing")
        return real(handle)

    monkeypatch.setattr("grasp_tune.runtime.store.os.fstat", fstat)
    assert store.read("point").tensors["x"].tolist() == [1.0] * 3
    assert faults == []


def test_an_interrupt_in_the_middle_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.write("point", {"x": torch.zeros(2)}, {})
    real = Content.write

    def interrupted(content: Content, file: BinaryIO) -> None:
        real(content, file)
        raise KeyboardInterrupt

    monkeypatch.setattr(Content, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write("point", {"x": torch.ones(2)}, {})
    assert os.listdir(tmp_path) == ["point.safetensors"]
    assert store.read("point").tensors["x"].tolist() == [0.0, 0.0]


def test_a_killed_writer_leaves_the_old_checkpoint_and_no_rubbish(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write("point", {"x": torch.zeros(2)}, {})
    code = (
        "import os, signal, sys, torch\n"
        "from grasp_tune.runtime.store import CheckpointStore\n"
        "def kill(handle): os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.fsync = kill\n"
        "CheckpointStore(sys.argv[1]).write('point', {'x': torch.ones(2)}, {})\n"
    )
    root = str(Path(files.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, check=False
    )
    assert ended.returncode < 0
    assert len(os.listdir(tmp_path)) == 2
    again = CheckpointStore(tmp_path)
    assert again.read("point").tensors["x"].tolist() == [0.0, 0.0]
    assert len(os.listdir(tmp_path)) == 2  # whoever only reads removes nothing
    again.write("other", {}, {})
    assert sorted(os.listdir(tmp_path)) == ["other.safetensors", "point.safetensors"]


def test_writers_of_the_same_key_never_mix(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write("point", {"x": torch.zeros(5000)}, {})

    def write(value: int) -> None:
        for _ in range(15):
            store.write("point", {"x": torch.full((5000,), float(value))}, {"value": value})

    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert store.read("point").tensors["x"].unique().numel() == 1
    for thread in threads:
        thread.join()
    last = store.read("point")
    assert last.tensors["x"].tolist() == [float(last.meta["value"])] * 5000
    assert os.listdir(tmp_path) == ["point.safetensors"]
