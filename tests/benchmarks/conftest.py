"""A workload small enough for a test, and a table to put its results in."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import contest, tables
from benchmarks.records import Table, contest_table
from benchmarks.workloads import WORKLOADS


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Iris with three hundred oracle calls, and no bundle kept from another test."""
    monkeypatch.setitem(
        WORKLOADS,
        "iris",
        replace(WORKLOADS["iris"], budget=300, batch_size=16, held_out=True),
    )
    for cached in (contest._bundle, contest._start_loss, tables._bundle):
        cached.cache_clear()
    yield
    for cached in (contest._bundle, contest._start_loss, tables._bundle):
        cached.cache_clear()


@pytest.fixture
def peers(tmp_path: Path) -> Table:
    """The table of the contest in a folder of this test."""
    return contest_table(tmp_path, "peers")
