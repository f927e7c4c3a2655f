"""Per cent behind, per cent missed, and the totals: by hand."""

import math
from dataclasses import replace

import pytest

from benchmarks.records import Record
from benchmarks.standings import CAP, collect, totals


def record(workload: str, method: str, seed: int, loss: float) -> Record:
    return Record(
        workload=workload,
        method=method,
        seed=seed,
        budget=500,
        calls=480,
        seconds=1.5,
        diverged=not math.isfinite(loss),
        loss=loss,
        gradient=2.0 * loss,
        accuracy=0.75,
        start_loss=5.0,
        note="",
        source="",
    )


def test_behind_and_missed_by_hand() -> None:
    records = [
        record("w", "a", 1, 0.4),
        record("w", "a", 2, 0.6),
        record("w", "b", 1, 0.7),
        record("w", "b", 2, 0.5),
    ]
    (row,) = collect(records, ["w"], ["a", "b"])
    # Means 0.5 and 0.6: b is 0.1 / 0.5 = 20 % behind, and missed 0.1 of the 4.5 from 5 to 0.5.
    assert row.best == pytest.approx(0.5)
    assert row.best_method == "a"
    assert row.behind("a") == 0.0
    assert row.behind("b") == pytest.approx(20.0)
    assert row.missed("b") == pytest.approx(100 * 0.1 / 4.5)
    # Spread of 0.4 and 0.6 around 0.5: sqrt((0.01 + 0.01) / 1)
    assert row.entries["a"].spread == pytest.approx(math.sqrt(0.02))
    assert not row.fitted


def test_only_seeds_that_all_methods_have_are_averaged() -> None:
    records = [record("w", "a", seed, 0.1 * seed) for seed in (1, 2, 3)]
    records += [record("w", "b", seed, 0.3) for seed in (2, 3)]
    (row,) = collect(records, ["w"], ["a", "b"])
    assert row.entries["a"].loss == pytest.approx(0.25)  # seeds 2 and 3
    assert row.entries["a"].seeds == row.entries["b"].seeds == 2


def test_a_method_that_has_hardly_begun_does_not_shrink_the_others() -> None:
    records = [record("w", "a", seed, 0.1 * seed) for seed in (1, 2, 3)]
    records += [record("w", "b", 3, 0.2)]
    (row,) = collect(records, ["w"], ["a", "b"], least=2)
    assert list(row.entries) == ["a"]
    assert row.entries["a"].seeds == 3
    (row,) = collect(records, ["w"], ["a", "b"])
    assert row.entries["a"].seeds == row.entries["b"].seeds == 1


def test_a_diverged_method_counts_as_the_cap_in_the_mean() -> None:
    records = [record("v", "a", 1, 0.5), record("v", "b", 1, math.inf)]
    records += [record("w", "a", 1, 0.75), record("w", "b", 1, 0.5)]
    rows = collect(records, ["v", "w"], ["a", "b"])
    first, second = totals(rows, ["a", "b"])
    # a: 0 and 50 %; b: the cap and 0.
    assert first.method == "a"
    assert first.mean_behind == pytest.approx(25.0)
    assert first.worst_behind == pytest.approx(50.0)
    assert second.mean_behind == pytest.approx(CAP / 2)
    assert second.worst_behind == math.inf
    assert (second.mean_missed, second.worst_missed) == (50.0, 100.0)
    assert (second.close, second.diverged) == (1, 1)


def test_incomplete_rows_and_rare_methods_stay_out_of_the_totals() -> None:
    names = ["u", "v", "w", "x"]
    records = [record(name, "a", 1, 0.5) for name in names]
    records += [record(name, "b", 1, 1.0) for name in names[:3]]  # 3 of 4: nearly all
    records += [record("u", "c", 1, 0.1)]  # 1 of 4: rare
    found = {t.method: t for t in totals(collect(records, names, ["a", "b", "c"]), ["a", "b", "c"])}
    assert set(found) == {"a", "b"}
    assert found["a"].workloads == found["b"].workloads == 3
    # b is 900 % behind c on u, and 100 % behind a on v and w.
    assert found["b"].mean_behind == pytest.approx((900.0 + 100.0 + 100.0) / 3)


def test_a_best_loss_near_zero_is_marked() -> None:
    (row,) = collect([record("w", "a", 1, 0.0049)], ["w"], ["a"])
    assert row.fitted  # 0.0049 < 5 / 1000
    (row,) = collect([replace(record("w", "a", 1, 0.0), loss=0.0051)], ["w"], ["a"])
    assert not row.fitted
