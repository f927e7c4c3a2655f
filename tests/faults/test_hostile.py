"""Files from strangers."""

from pathlib import Path

import pytest

from benchmarks.faulting import hostile

pytestmark = pytest.mark.xdist_group("faults")


def test_hostile_configs_are_refused_in_one_line_and_in_little_memory(tmp_path: Path) -> None:
    hostile.hostile_configs(tmp_path)


def test_any_yaml_gives_a_value_or_one_line(tmp_path: Path) -> None:
    hostile.random_configs(tmp_path, seconds=1.0)


def test_tampered_results_and_states_are_refused_or_harmless(tmp_path: Path) -> None:
    hostile.hostile_results(tmp_path, seconds=3.0)


def test_oversized_files_are_refused_in_little_memory(tmp_path: Path) -> None:
    hostile.oversized_files(tmp_path)


def test_checkpoints_run_no_code_and_stay_in_their_folder(tmp_path: Path) -> None:
    hostile.hostile_checkpoints(tmp_path, seconds=1.0)


def test_artifact_ids_stay_in_their_store(tmp_path: Path) -> None:
    hostile.hostile_artifact_ids(tmp_path)


def test_markup_in_a_report_is_text(tmp_path: Path) -> None:
    hostile.hostile_report(tmp_path)
