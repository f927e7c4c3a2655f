"""Disks that are full, slow or faulty."""

from pathlib import Path

import pytest

from benchmarks.faulting import disk

pytestmark = pytest.mark.xdist_group("faults")


@pytest.mark.parametrize("what", ["checkpoint", "state"])
def test_a_full_disk_is_one_error_and_the_run_goes_on_with_room(tmp_path: Path, what: str) -> None:
    disk.full_while_writing(tmp_path, what)


def test_a_file_system_that_really_fills_up(tmp_path: Path) -> None:
    try:
        disk.really_full(tmp_path)
    except disk.NoMount as reason:
        pytest.skip(str(reason))


def test_a_round_that_cannot_fit_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    disk.obviously_too_small(tmp_path)


def test_faults_that_pass_are_survived(tmp_path: Path) -> None:
    disk.unreliable(tmp_path)


def test_faults_that_stay_are_given_up_with_one_sentence(tmp_path: Path) -> None:
    disk.broken_for_good(tmp_path)
