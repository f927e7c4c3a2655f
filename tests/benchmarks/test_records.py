"""Files of results: what was appended is read, packed to the same bytes, and never lost."""

import gzip
import json
import math
from pathlib import Path

import pytest

from benchmarks.records import RESULTS, Table, all_tables


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path, "made", ("name", "seed"))


def test_a_later_row_replaces_an_earlier_one(table: Table) -> None:
    table.append({"name": "b", "seed": 1, "loss": 0.5})
    table.append({"name": "a", "seed": 2, "loss": 0.25})
    table.append({"name": "b", "seed": 1, "loss": 0.125})
    rows = table.rows()
    assert list(rows) == [("a", 2), ("b", 1)]  # sorted
    assert rows["b", 1]["loss"] == 0.125


def test_packing_merges_and_gives_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    lines = [{"name": name, "seed": seed, "loss": seed / 8} for name in "ab" for seed in (1, 2)]
    packed: list[bytes] = []
    for order in (lines, lines[::-1]):
        table = Table(tmp_path / str(len(packed)), "made", ("name", "seed"))
        table.append(order[0])
        assert table.pack() == 1
        for row in order[1:]:
            table.append(row)
        assert len(table.rows()) == 4
        assert table.pack() == 4
        assert table.fresh.read_bytes() == b""
        packed.append(table.packed.read_bytes())
    assert packed[0] == packed[1]


def test_a_line_cut_short_loses_that_row_alone(table: Table) -> None:
    table.append({"name": "a", "seed": 1})
    table.append({"name": "a", "seed": 2})
    table.fresh.write_bytes(table.fresh.read_bytes()[:-5])
    assert list(table.rows()) == [("a", 1)]
    table.append({"name": "a", "seed": 3})
    assert list(table.rows()) == [("a", 1), ("a", 3)]


def test_numbers_that_json_does_not_know_come_back(table: Table) -> None:
    row = {"name": "a", "seed": 1, "loss": math.inf, "more": [{"x": -math.inf}, {"y": math.nan}]}
    table.append(row)
    table.pack()
    (line,) = gzip.decompress(table.packed.read_bytes()).splitlines()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    found = table.rows()["a", 1]
    assert found["loss"] == math.inf and found["more"][0]["x"] == -math.inf
    assert math.isnan(found["more"][1]["y"])


def test_the_results_of_this_checkout_can_be_read() -> None:
    assert all(table.rows() for table in all_tables(RESULTS))
