"""Oracle calls that outlive the process which made them."""

import os
from pathlib import Path

from grasp_tune.runtime.call_counter import CallCounter
from tests.executors.sweeps import forked


def test_the_calls_of_dead_processes_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def count() -> None:
        add = CallCounter(path).counter()
        for _ in range(7):
            add(3)
        os.kill(os.getpid(), 9)

    os.waitpid(forked(count), 0)
    calls = CallCounter(path)
    assert calls.total == 21
    calls.counter()(4)
    calls.counter()(5)
    assert calls.total == CallCounter(path).total == 30


def test_a_damaged_file_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    path.mkdir()
    (path / "damaged").write_bytes(b"short")
    calls = CallCounter(path)
    calls.counter()(2)
    assert calls.total == 2


def test_a_file_that_is_cut_while_it_is_used_counts_on(tmp_path: Path) -> None:
    calls = CallCounter(tmp_path / "calls")
    add = calls.counter()
    add(2)
    (file,) = (tmp_path / "calls").iterdir()
    os.truncate(file, 0)
    add(3)
    assert calls.total == 5


def test_without_a_folder_this_process_is_counted() -> None:
    calls = CallCounter(None)
    calls.counter()(2)
    calls.counter()(3)
    assert calls.total == 5
