"""The page's list of targets: what counts as met, by hand."""

import math

from benchmarks.standings import collect
from benchmarks.tables import PAIRS, TABLES, Finished, Found
from benchmarks.targets_page import targets_part
from tests.benchmarks.pages import cells
from tests.benchmarks.test_standings import record

METHODS = ("grasp-promote", "dog", "sgd")


def page(*losses: tuple[str, float, float, float]) -> str:
    """The part for workloads with these losses of promote, DoG and SGD."""
    records = [
        record(workload, method, 10, loss)
        for workload, *row in losses
        for method, loss in zip(METHODS, row, strict=True)
    ]
    return targets_part(collect(records, [item[0] for item in losses], METHODS), [])


def test_a_workload_may_be_two_per_cent_behind_and_no_more() -> None:
    text = page(("mnist", 1.019, 1.0, 2.0), ("a9a", 1.03, 1.0, 2.0), ("iris", 0.9, 1.0, 2.0))
    within = "at most 2 % behind the best of all methods, all workloads"
    assert cells(text, within) == ["2 of 3", "**no**"]
    (miss,) = (line for line in text.splitlines() if "DoG" in line and "1.03" in line)
    assert [cell.strip() for cell in miss.split("|")][6] == "3.0"


def test_a_peer_may_win_on_the_mean_and_lose_in_the_worst_case() -> None:
    # promote: 20, 20, 20, mean and worst 20. DoG: 0, 0, 30, mean 10 and worst 30.
    text = page(("mnist", 1.2, 1.0, 9.0), ("a9a", 1.2, 1.0, 9.0), ("iris", 1.2, 1.3, 1.0))
    mean, worst = (
        f"ahead of every peer {at}, all workloads" for at in ("on the mean", "in the worst case")
    )
    assert cells(text, mean)[1] == "**no**" and "DoG" in cells(text, mean)[0]
    assert cells(text, worst)[1] == "yes"


def test_the_median_and_the_farthest_count_too() -> None:
    # promote: 4, 4, 0; DoG: 0, 0, 900. Never more than 5 %, and on the median DoG is ahead.
    text = page(("mnist", 1.04, 1.0, 9.0), ("a9a", 1.04, 1.0, 9.0), ("iris", 1.0, 10.0, 9.0))
    far = "never more than 5 % behind the best of all methods, all workloads"
    assert cells(text, far) == ["4.0 %", "yes"]
    assert cells(text, "ahead of every peer on the median, all workloads")[1] == "**no**"
    assert cells(text, "ahead of every peer on the mean, all workloads")[1] == "yes"


def test_hindsight_is_a_target_on_the_median() -> None:
    records = [record(name, "grasp-promote", 10, 1.0) for name in ("mnist", "a9a", "iris")]
    rows = collect(records, ["mnist", "a9a", "iris"], METHODS)
    line = {"mnist": (0.5, "x"), "a9a": (0.99, "x"), "iris": (2.0, "x")}  # 100, 1.01, -50
    text = targets_part(rows, [], line)
    words = "on the median at most 2 % behind hindsight, 3 workloads"
    assert cells(text, words) == ["1.0 %", "yes"]


def test_one_cell_above_zero_misses_the_target_of_a_table() -> None:
    table = TABLES["nonconvex-cnn"]
    found = {("promote", pair, 4): Found(0.5, 0.5) for pair in PAIRS}
    good = Finished(table, Found(1.0, 1.0), 0.1, Found(1.0, 1.0), found, (10,))
    for quality, word in ((1.0, "yes"), (1.01, "**no**"), (math.nan, "**no**")):
        changed = {**found, ("promote", PAIRS[0], 4): Found(quality, 0.5)}
        text = targets_part([], [Finished(table, good.tuned, 0.1, good.smallest, changed, (10,))])
        assert cells(text, f"rho at most 0 in every cell, {table.title}")[1] == word
