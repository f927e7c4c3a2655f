"""Atomic files: whole or not at all, under faults, kills and a full disk."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.core.errors import CheckpointError
from grasp_tune.runtime import files
from grasp_tune.runtime.files import (
    PAUSES,
    read_json,
    remove_stale,
    replace_atomically,
    retried,
    write_json_atomic,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def write_old(file: BinaryIO) -> None:
    file.write(b"old")


@given(value=VALUES)
def test_json_comes_back_as_it_was(value: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("json") / "state.json"
    write_json_atomic(path, value)
    assert read_json(path, 10**6) == value
    assert [item.name for item in path.parent.iterdir()] == ["state.json"]


def test_infinities_and_nan_come_back(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "a.json", {"x": float("inf"), "y": float("nan")})
    found = read_json(tmp_path / "a.json", 100)
    assert found["x"] == float("inf")
    assert found["y"] != found["y"]


@pytest.mark.parametrize("fault", [OSError(errno.EACCES, "no"), KeyboardInterrupt()])
def test_a_failed_write_keeps_the_old_content_and_leaves_nothing(
    tmp_path: Path, fault: BaseException
) -> None:
    path = tmp_path / "state.json"
    replace_atomically(path, write_old)

    def half(file: BinaryIO) -> None:
        file.write(b"half of the n")
        raise fault

    with pytest.raises(type(fault)):
        replace_atomically(path, half)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_fault_of_the_system_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "state.json"
    replace_atomically(path, write_old)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    # {"a":[1,2,345]} has 15 characters.
    with pytest.raises(CheckpointError, match="needs 15 bytes and the disk is full"):
        write_json_atomic(path, {"a": [1, 2, 345]})
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_killed_writer_leaves_the_old_content_and_the_next_run_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json_atomic(path, "old")
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from grasp_tune.runtime.files import replace_atomically\n"
        "def write(file):\n"
        "    file.write(b'new'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "replace_atomically(Path(sys.argv[1]), write)\n"
    )
    root = str(Path(files.__file__).parents[2])
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert ended.returncode < 0
    assert len(os.listdir(tmp_path)) == 2
    remove_stale(tmp_path)
    assert os.listdir(tmp_path) == ["state.json"]
    assert read_json(path, 100) == "old"


def test_only_what_nobody_is_writing_is_removed(tmp_path: Path) -> None:
    token = "0123456789abcdef"
    mine = tmp_path / f".a.json.{files.process_name()}.{token}.tmp"
    elsewhere = tmp_path / f".a.json.another-host.1.{token}.tmp"
    old_elsewhere = tmp_path / f".b.json.another-host.1.{token}.tmp"
    foreign = tmp_path / ".editor.tmp"
    for path in (mine, elsewhere, old_elsewhere, foreign):
        path.write_bytes(b"x")
    for path in (old_elsewhere, foreign):
        os.utime(path, (0, 0))
    remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, elsewhere.name, foreign.name}


def test_passing_faults_are_tried_again_with_longer_pauses() -> None:
    slept: list[float] = []
    faults = [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT]

    def action() -> str:
        if faults:
            raise OSError(faults.pop(), "passing")
        return "done"

    assert retried(action, slept.append) == "done"
    assert slept == list(PAUSES)
    assert slept == sorted(slept)


def test_a_fault_that_stays_ends_after_the_last_attempt() -> None:
    attempts = 0

    def action() -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(errno.EIO, "stays")

    with pytest.raises(OSError, match="stays"):
        retried(action, lambda pause: None)
    assert attempts == len(PAUSES) + 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.ENOENT])
def test_a_fault_that_cannot_pass_is_not_tried_again(number: int) -> None:
    attempts = 0

    def action() -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(number, "for good")

    with pytest.raises(OSError, match="for good"):
        retried(action, lambda pause: None)
    assert attempts == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": [1, 2', "is damaged, or no JSON file"),
        (b"\xff\xfe\x00", "is damaged, or no JSON file"),
        (b"", "is damaged, or no JSON file"),
        (b"[" * 200_000, "is damaged, or no JSON file"),
        (b'"' + b"x" * 300_000 + b'"', "more than 250000 bytes"),
    ],
)
def test_a_file_that_is_not_ours_is_one_sentence(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_json(path, 250_000)
    assert "\n" not in str(caught.value)


def test_the_limit_is_inclusive(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps([1, 2]))  # "[1, 2]" has 6 bytes
    assert read_json(path, 6) == [1, 2]
    with pytest.raises(CheckpointError, match="more than 5 bytes"):
        read_json(path, 5)


def test_missing_files_and_folders_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        read_json(tmp_path / "none.json", 10)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path, 10)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_json_atomic(tmp_path / "none" / "state.json", 1)
