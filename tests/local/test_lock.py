"""One driver for one folder."""

import os
import socket
import time
from pathlib import Path

import pytest

from grasp_tune.local.lock import folder_lock
from grasp_tune.local.meter import Meter
from grasp_tune.method.errors import LockedError
from tests.local.sweeps import forked


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        words = rf"in use by process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(LockedError, match=words), folder_lock(tmp_path):
            pass
    with folder_lock(tmp_path):
        pass  # free again


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


def test_a_meter_remembers_the_calls_of_dead_processes(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def count() -> None:
        counter = Meter(path).counter(1)
        for _ in range(7):
            counter(3)
        os.kill(os.getpid(), 9)

    os.waitpid(forked(count), 0)
    meter = Meter(path)
    assert meter.total == 21
    meter.counter(1)(4)  # the slot goes on from where it was
    meter.counter(2)(5)
    assert meter.total == Meter(path).total == 30


def test_a_damaged_meter_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    path.write_bytes(b"short")
    meter = Meter(path)
    meter.counter(0)(2)
    assert meter.total == 2
