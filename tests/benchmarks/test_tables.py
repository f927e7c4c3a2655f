"""A cell of the paper's tables, small."""

import math
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.records import cells_table
from benchmarks.tables import Cell, read_tables, run_cell, yardstick


@pytest.mark.parametrize("kind", ["smooth", "universal", "nonconvex"])
def test_a_cell_of_a_table_is_measured_against_its_yardstick(
    kind: tables.Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.Table("small", "small", kind, "iris", 200, ("a", "b"))
    monkeypatch.setitem(tables.TABLES, "small", table)
    pair, share = (0.1, 0.01), 16
    results = cells_table(tmp_path)
    run_cell(yardstick("small", 2, None, results))
    run_cell(Cell("small", "paper", pair, share, 2, None, results))
    (found,) = read_tables(results)
    assert found.seeds == (2,)
    own, tuned = found.cells["paper", pair, share], found.tuned
    assert math.isfinite(own.quality)
    assert found.rho("paper", pair, share) == pytest.approx(own.quality / tuned.quality - 1.0)
    assert found.smallest.quality <= tuned.quality and found.smallest.loss >= tuned.loss
    assert (own.loss == own.quality) == (kind != "nonconvex")
    assert found.rho("promote", pair, share) is None  # not run
