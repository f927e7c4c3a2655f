"""Bad input is one line on standard error, exit code 2, and nothing has started."""

import json
import re
from pathlib import Path

import pytest

import grasp_tune
from grasp_tune.config import load_experiment
from tests.cli.conftest import Command

COMMANDS = ("init", "plan", "run", "resume", "report", "compare")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_each_command_with_an_example(command: Command, name: str) -> None:
    ended = command(name, "--help")
    assert ended.code == 0
    assert f"Example: grasp-tune {name}" in ended.out
    assert not ended.err


def test_help_lists_the_commands_and_the_first_steps(command: Command) -> None:
    ended = command("--help")
    assert ended.code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name}  ", ended.out, re.MULTILINE)
    assert command("--version").out == f"grasp-tune {grasp_tune.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "nothing.yaml", "--out", "o"], "nothing.yaml: got no such file, expected a YAML"),
        (["run", "small.yaml"], "--out: got nothing, expected a folder for the results"),
        (
            ["run", "small.yaml", "--out", "o", "--set", "budgett=5"],
            "--set: budgett: got an unknown key, expected budget, the nearest key",
        ),
        (
            ["run", "small.yaml", "--out", "o", "--set", "budget=0"],
            "--set: budget: got 0, expected >= 1",
        ),
        (
            ["run", "small.yaml", "--out", "rows.npz"],
            "rows.npz, which is a file, expected a folder",
        ),
        (["run", "small.yaml", "--out", "."], "which holds other files and no config.yaml"),
        (
            ["run", "small.yaml", "--out", "o", "--set", "problem.dataset.path=gone.npz"],
            "gone.npz",
        ),
        (
            ["run", "small.yaml", "--out", "o", "--set", "problem.loss=no_such_module:loss"],
            "problem.loss: got no_such_module:loss, whose module cannot be imported",
        ),
        (
            ["run", "small.yaml", "--out", "o", "--set", "problem.batch_size=41"],
            "problem.batch_size: got 41, expected at most the 40 training rows",
        ),
        (["resume", "o"], "o: got no such folder, expected the folder of a run"),
        (["resume", "."], "a folder without config.yaml, expected the folder of a run"),
        (["report", "o"], "got no such folder, expected the folder of a run"),
        (
            ["compare", "small.yaml", "--out", "o", "--methods", "adamv"],
            "--methods: got 'adamv', expected some of grasp-promote, grasp-paper",
        ),
        (
            ["compare", "small.yaml", "--out", "o", "--set", "method=deterministic"],
            "problem.batch_size: got 4 with method: deterministic",
        ),
        (["plan", "small.yaml", "--set", "schedule=paper", "--set", "budget=30"], "budget"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(
    command: Command, place: Path, arguments: list[str], line: str
) -> None:
    before = sorted(place.iterdir())
    ended = command(*arguments)
    assert ended.code == 2
    assert not ended.out
    assert line in ended.err
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    assert sorted(place.iterdir()) == before


def test_options_that_do_not_exist_are_bad_input_too(command: Command, place: Path) -> None:
    ended = command("run", "small.yaml", "--otu", "o")
    assert ended.code == 2
    assert "--otu" in ended.err and not ended.out
    assert command("compare", "small.yaml").code == 2


def test_init_writes_a_config_that_loads_and_replaces_nothing(
    command: Command, place: Path
) -> None:
    ended = command("init", "mine.yaml")
    assert (ended.code, ended.out) == (0, "mine.yaml\n")
    assert "grasp-tune plan mine.yaml" in ended.err
    assert load_experiment("mine.yaml", environment={}).problem.dataset.name == "digits"
    again = command("init", "mine.yaml")
    assert (again.code, again.out) == (2, "")
    assert "mine.yaml: got a file that exists, expected a new name, or --force" in again.err
    assert command("init", "mine.yaml", "--force").code == 0
    assert command("init", "no/such/place.yaml").code == 2


def test_init_prints_the_schema_for_editors(command: Command, place: Path) -> None:
    schema = json.loads(command("init", "--schema").out)
    assert {"problem", "budget", "include"} <= set(schema["properties"])
    assert not (place / "experiment.yaml").exists()
