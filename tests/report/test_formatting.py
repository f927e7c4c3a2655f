"""Text for terminals: texts below each other, tables, and nothing cut in a log."""

import os
import sys
from types import SimpleNamespace

import pytest

from grasp_tune.report.formatting import columns, estimate, labelled, templates


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("name ", "calls"), ("a", "7"), ("long one", "1,234")]
    assert columns(rows) == "name      calls\na             7\nlong one  1,234"


def test_an_estimate_ends_where_its_error_does() -> None:
    assert estimate(0.13634, 0.0461) == "0.136 ± 0.046"
    assert estimate(30_308_424.0, 728_010.0) == "30,310,000 ± 730,000"
    assert estimate(2.4835e-10, 2.49e-10) == "2.5e-10 ± 2.5e-10"
    assert estimate(-0.98657, 1.04e-5) == "-0.98657 ± 1e-05"
    assert estimate(0.0, 0.0) == "0" and estimate(5224.0, None) == "5,224"


def test_a_log_is_not_cut_and_a_terminal_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(columns: int) -> str:
        with monkeypatch.context() as patch:  # pytest asks for the width as well
            patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            patch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 9)))
            return labelled(text)

    text = "a | one two three four\nreport | /a-long/path"
    whole = "a       one two three four\nreport  /a-long/path\n"
    assert labelled(text) == printed(0) == whole
    assert printed(16) == "a       one two\n        three\n        four\nreport  /a-long/path\n"


def test_pages_escape_what_is_put_in_and_text_does_not() -> None:
    page = templates().get_template("comparison.txt")
    found = SimpleNamespace(left_out=("KT", "DoG, averaged"))
    told = page.render(headline="a < b", rows=[("x", "y"), ("<1>", "2")], page="p", found=found)
    assert told.startswith("a < b\n") and "<1>  2" in told
    assert "brings most): KT; DoG, averaged\n" in told
    html = templates().get_template("page.html")
    given: dict[str, object] = {
        "digests": "",
        "refresh": None,
        "figures": {},
        "scripts": [],
        "body": "<i>",
    }
    assert "<title>a &lt; b</title>" in html.render(title="a < b", **given)
