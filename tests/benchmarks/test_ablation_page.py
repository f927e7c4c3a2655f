"""The table of the schedule's ingredients: changes of the loss, by hand."""

import math

from benchmarks.ablation_page import ablation_part
from tests.benchmarks.pages import cells
from tests.benchmarks.test_standings import record


def test_changes_are_measured_against_the_default() -> None:
    records = [record("mnist", "grasp-promote", 10, 0.5), record("iris", "grasp-promote", 10, 0.2)]
    variants = [
        record("mnist", "ablation-no-parabola", 10, 0.4),  # -20 %
        record("iris", "ablation-no-parabola", 10, 0.3),  # +50 %
        record("mnist", "ablation-short-rungs", 10, math.inf),
    ]
    text = ablation_part(variants, records)
    mean = cells(text, "no step between two of the list")
    assert mean == ["2", "+15.0", "+50.0 (iris)", "-20.0 (mnist)"]
    assert cells(text, "rungs half as long")[:2] == ["1", "+1000.0"]
    assert text.index("no step between") < text.index("rungs half")  # best first


def test_losses_near_zero_are_shown_as_they_are() -> None:
    records = [
        record("digits", "grasp-promote", 10, 2e-5),
        record("iris", "grasp-promote", 10, 0.2),
    ]
    variants = [
        record("digits", "ablation-no-bold", 10, 4e-4),
        record("iris", "ablation-no-bold", 10, 0.2),
    ]
    text = ablation_part(variants, records)
    assert cells(text, "the step never grows") == [
        "1",
        "+0.0",
        "+0.0 (iris)",
        "+0.0 (iris)",
        "0.0004",
    ]
    assert cells(text, "the default")[-1] == "2e-05"


def test_without_a_default_to_compare_with_there_is_no_table() -> None:
    assert ablation_part([], []) == ""
    assert ablation_part([record("mnist", "ablation-short-rungs", 10, 0.4)], []) == ""
