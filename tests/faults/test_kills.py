"""Processes that die in the middle of a sweep."""

import signal
from pathlib import Path

import pytest

from benchmarks.faulting import bodies, kills
from benchmarks.faulting.sweep import PHASES

pytestmark = pytest.mark.xdist_group("faults")  # they share a server of processes


@pytest.mark.parametrize("phase", PHASES)
def test_a_driver_killed_in_any_phase_goes_on_to_the_same_choice(
    tmp_path: Path, phase: str
) -> None:
    kills.driver_killed(tmp_path, phase)


def test_a_driver_killed_at_any_moment_goes_on_to_the_same_choice(tmp_path: Path) -> None:
    kills.driver_killed_at_random(tmp_path, moments=2)


def test_a_driver_killed_again_and_again_gets_there(tmp_path: Path) -> None:
    kills.driver_killed_over_and_over(tmp_path, times=4)


def test_a_killed_worker_costs_its_task_and_nothing_else(tmp_path: Path) -> None:
    kills.worker_killed(tmp_path)


def test_a_driver_killed_with_busy_workers_can_be_resumed_at_once(tmp_path: Path) -> None:
    kills.driver_of_workers_killed(tmp_path)


@pytest.mark.parametrize(
    ("number", "twice"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_a_stopped_driver_goes_on_to_the_same_choice(
    tmp_path: Path, number: signal.Signals, twice: bool
) -> None:
    kills.interrupted(tmp_path, number, twice=twice)


def test_a_killed_process_of_a_study_goes_on_to_the_same_choice(tmp_path: Path) -> None:
    bodies.optuna_driver_killed(tmp_path, "training")


def test_a_lost_artifact_of_the_chosen_point_is_made_again(tmp_path: Path) -> None:
    bodies.optuna_artifact_lost(tmp_path)
