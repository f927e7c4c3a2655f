"""One driver for one folder."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grasp_tune.core.errors import CheckpointError, InputError, LockedError
from grasp_tune.runtime.lock import NAME, folder_lock
from grasp_tune.runtime.sweep_folder import CallCounter
from tests.executors.sweeps import forked


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        words = rf"in use by process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(LockedError, match=words), folder_lock(tmp_path):
            pass
    with folder_lock(tmp_path):
        pass  # free again


@pytest.mark.parametrize("size", [2, 257])
def test_a_marker_of_another_size_is_refused_and_not_waited_for(size: int, tmp_path: Path) -> None:
    marker = tmp_path / NAME
    marker.write_bytes(b"{}".ljust(size))
    words = rf"json: got {size}, expected 256 that a sweep wrote: it is somebody else's"
    with pytest.raises(InputError, match=words), folder_lock(tmp_path):
        pass
    assert marker.read_bytes() == b"{}".ljust(size)


def test_a_marker_that_a_full_disk_has_cut_is_used_as_if_it_were_new(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        pass
    whole = (tmp_path / NAME).read_bytes()
    for size in (0, 4, 30, 255):
        (tmp_path / NAME).write_bytes(whole[:size])
        with folder_lock(tmp_path) as lock:
            lock.check()
        assert (tmp_path / NAME).stat().st_size == 256


def test_any_name_of_a_machine_fits_into_the_marker(tmp_path: Path) -> None:
    code = "import socket; socket.gethostname = lambda: chr(252) * 64; "
    code += "import pathlib, grasp_tune.runtime.lock as lock; "
    code += f"print(lock.folder_lock(pathlib.Path({str(tmp_path)!r})).__enter__().text.decode())"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert len(ended.stdout) == 257 and r"\\xfc" in ended.stdout  # with the line break of `print`


def test_the_death_of_the_holder_frees_the_folder(tmp_path: Path) -> None:
    def hold() -> None:
        with folder_lock(tmp_path):
            (tmp_path / "held").touch()
            time.sleep(60)

    process = forked(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(LockedError, match=f"process {process} "), folder_lock(tmp_path):
        pass
    os.kill(process, 9)
    os.waitpid(process, 0)
    with folder_lock(tmp_path):
        pass


def test_a_grandchild_that_outlives_its_driver_is_not_in_the_way(tmp_path: Path) -> None:
    def hold() -> None:
        with folder_lock(tmp_path):
            if os.fork() == 0:
                time.sleep(60)
            (tmp_path / "held").write_text(str(os.getpid()))
            os._exit(0)

    process = forked(hold)
    os.waitpid(process, 0)
    with folder_lock(tmp_path) as lock:
        lock.check()


def test_a_worker_of_a_dead_driver_stops_where_another_driver_goes_on(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"

    def hold() -> None:
        with folder_lock(tmp_path) as lock:
            if os.fork():
                os._exit(0)
            add = CallCounter(tmp_path / "calls", lock.check).counter()
            try:
                while not stopped.exists():
                    add(1)
                    time.sleep(0.01)
            except CheckpointError:
                stopped.touch()
            os._exit(0)

    os.waitpid(forked(hold), 0)
    calls = CallCounter(tmp_path / "calls")
    while calls.total < 50:  # it goes on as long as nobody else wants the folder
        time.sleep(0.01)
    with folder_lock(tmp_path) as lock:
        assert lock.crashed
        end = time.monotonic() + 60
        while not stopped.exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert stopped.exists()
    with folder_lock(tmp_path) as lock:
        assert not lock.crashed
