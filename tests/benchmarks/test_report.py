"""The results page, from nothing and from two runs."""

from pathlib import Path

import pytest

from benchmarks.command import main
from benchmarks.contest import Job, run_job
from benchmarks.records import contest_table, sizes_table
from benchmarks.tables_page import sizes_part


def test_the_report_is_made_of_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    assert main(["report", "--results", str(results), "--docs", str(docs)]) == 0
    assert (docs / "results.md").read_text().startswith("# Results")
    for method in ("dog", "sgd"):
        run_job(Job("iris", method, 4, None, contest_table(results, "peers")))
    assert main(["report", "--results", str(results), "--docs", str(docs)]) == 0
    page = (docs / "results.md").read_text()
    assert "| iris softmax, raw columns, *held out* | 300 |" in page
    assert "DoG, averaged" in page
    assert (docs / "figures" / "peers.svg").read_text().startswith("<svg")
    assert capsys.readouterr().out.splitlines()[-1] == str(docs / "results.md")


def test_runs_at_the_papers_size_are_listed_and_diverged_ones_say_so(tmp_path: Path) -> None:
    table = sizes_table(tmp_path)
    assert sizes_part(table) == ""
    measured = {"loss": 0.125, "gradient": 0.5, "accuracy": 0.712, "test_loss": 1.25}
    table.append({"run": "sgd-0.1", "seed": 10, "note": "", **measured})
    table.append({"run": "sgd-9", "seed": 10, "note": "diverged"})
    page = sizes_part(table)
    assert "| sgd-0.1 | 0.125 | 0.5 | 71.2 | 1.25 |  |" in page
    assert "| sgd-9 | diverged | diverged | diverged | diverged | diverged |" in page
