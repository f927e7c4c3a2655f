"""The yardstick of the paper's tables."""

import math

import pytest

from benchmarks.bases import COARSE, tune


def test_tuning_finds_the_smallest_of_a_valley() -> None:
    # |log2(value) - 3.3|: the grid of quarter powers reaches 2^3.25.
    tuned = tune(lambda value: abs(math.log2(value) - 3.3) + 1.0)
    assert tuned.value == pytest.approx(2.0**3.25)
    assert len(tuned.tried) <= len(COARSE) + 6
