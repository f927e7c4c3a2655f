"""The ask/tell core under fire."""

from pathlib import Path

from scripts.faulting import interleavings


def test_late_double_unknown_and_wrong_results_change_nothing(tmp_path: Path) -> None:
    interleavings.fuzz(tmp_path, searches=12)


def test_numbers_of_any_size_end_in_a_choice_or_in_one_line(tmp_path: Path) -> None:
    interleavings.absurd_numbers(tmp_path, searches=120)
