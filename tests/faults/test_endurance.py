"""Clocks that jump, and many sweeps in one process."""

from pathlib import Path

import pytest

from benchmarks.faulting import endurance

pytestmark = pytest.mark.xdist_group("faults")


def test_clocks_may_jump(tmp_path: Path) -> None:
    endurance.clocks_jump(tmp_path)


def test_many_sweeps_in_one_process_leave_nothing_behind(tmp_path: Path) -> None:
    endurance.soak(tmp_path, sweeps=10)
