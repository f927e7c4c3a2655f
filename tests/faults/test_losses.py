"""Losses and gradients that are not finite."""

from pathlib import Path

import pytest

from benchmarks.faulting import losses


@pytest.mark.parametrize("value", ["-inf", "1e37"])
def test_a_run_that_leaves_the_finite_never_wins(tmp_path: Path, value: str) -> None:
    losses.loss_goes_wrong_far_away(tmp_path, value, ("convex",))


def test_a_gradient_that_is_not_finite_costs_its_run(tmp_path: Path) -> None:
    losses.gradient_goes_wrong_far_away(tmp_path, ("nonconvex",))


def test_a_gradient_that_is_not_finite_in_one_cell_changes_no_other(tmp_path: Path) -> None:
    losses.gradient_goes_wrong_in_one_cell(tmp_path)


def test_x0_is_returned_with_a_word_where_everything_diverges(tmp_path: Path) -> None:
    losses.everything_diverges(tmp_path)


@pytest.mark.parametrize("value", ["NaN", "+inf", "-inf"])
def test_a_start_that_is_not_finite_is_an_error(tmp_path: Path, value: str) -> None:
    losses.start_is_not_finite(tmp_path, value)
