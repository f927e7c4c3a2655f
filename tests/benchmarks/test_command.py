"""The benchmark's commands, on small workloads that need no files."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import datasets
from benchmarks.command import main, picked, seed_list
from benchmarks.records import Table, read_records
from benchmarks.workloads import WORKLOADS


def test_what_has_a_result_is_not_run_again(tmp_path: Path, peers: Table) -> None:
    arguments = ["peers", "--only", "iris", "--methods", "sgd,adamw", "--seeds", "3-4"]
    arguments += ["--processes", "1", "--results", str(tmp_path)]
    assert main(arguments) == 0
    first, second, _, last = peers.fresh.read_text().splitlines(keepends=True)
    assert '"method":"sgd","seed":3' in second and '"method":"sgd","seed":4' in last
    peers.fresh.write_text(first + second.replace('"calls":300', '"calls":299'))
    assert main(["pack", "--results", str(tmp_path)]) == 0
    assert main(arguments) == 0
    assert len(peers.fresh.read_text().splitlines()) == 2  # those that were gone
    found = {(record.method, record.seed): record for record in read_records(peers)}
    assert set(found) == {("sgd", 3), ("sgd", 4), ("adamw", 3), ("adamw", 4)}
    assert found["sgd", 3].calls == 299
    assert main([*arguments, "--again"]) == 0
    found = {(record.method, record.seed): record for record in read_records(peers)}
    assert found["sgd", 3].calls == 300


def test_a_failed_job_is_told_and_the_others_go_on(
    tmp_path: Path,
    peers: Table,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(folder: Path) -> datasets.Arrays:
        raise OSError("no such disk")

    broken = replace(WORKLOADS["iris"], name="broken", load=fail)
    monkeypatch.setitem(WORKLOADS, "broken", broken)
    arguments = ["peers", "--only", "broken,iris", "--methods", "sgd", "--seeds", "3"]
    assert main([*arguments, "--processes", "1", "--results", str(tmp_path)]) == 1
    assert "broken sgd seed 3: FAILED: OSError: no such disk" in capsys.readouterr().err
    assert set(peers.rows()) == {("iris", "sgd", 3)}


def test_a_workload_without_its_files_is_skipped_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["peers", "--only", "mnist", "--data", str(tmp_path), "--results", str(tmp_path)]
    assert main([*arguments, "--processes", "1"]) == 0
    assert "mnist: skipped, MNIST/raw/train-images-idx3-ubyte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "minst"], "--only: 'minst' matches nothing; there are digits"),
        (["--methods", "gdo"], "--methods: 'gdo' matches nothing; there are grasp-promote"),
        (["--seeds", "ten"], "--seeds: got 'ten', expected numbers such as 10-14"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_patterns_and_seeds() -> None:
    assert picked(["dog", "ldog", "kt"], "*dog", "--methods") == ["dog", "ldog"]
    assert picked(["grasp-a", "dog"], "[!g]*", "--methods") == ["dog"]
    assert seed_list("3,7-9") == [3, 7, 8, 9]
