"""Oracle calls that outlive the process which made them."""

import os
from pathlib import Path

from grasp_tune.local.meter import Meter
from tests.local.sweeps import forked


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
