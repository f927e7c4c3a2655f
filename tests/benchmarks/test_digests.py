"""Digests: the same for the same sweep, another one for another."""

import json
from pathlib import Path

import pytest

from benchmarks.digests import cases, main
from benchmarks.records import RESULTS


def test_a_case_that_changed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "digests.json"
    arguments = ["--only", "tiny-promote", "--file", str(file)]
    assert main(["record", *arguments]) == 0
    assert main(["check", *arguments]) == 0
    kept = json.loads(file.read_text())
    kept["tiny-promote"][0] = "0" * 24
    file.write_text(json.dumps(kept))
    assert main(["check", *arguments]) == 1
    assert "tiny-promote differs: was ['000000000000000000000000'" in capsys.readouterr().out


def test_every_case_has_its_digest() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) == 47
    assert set(json.loads((RESULTS / "digests.json").read_text())) == set(names)
