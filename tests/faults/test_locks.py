"""Two drivers for one folder."""

from pathlib import Path

import pytest

from benchmarks.faulting import locks

pytestmark = pytest.mark.xdist_group("faults")


def test_a_second_driver_is_refused_by_name_and_a_stale_lock_is_not_in_the_way(
    tmp_path: Path,
) -> None:
    locks.two_drivers(tmp_path)
