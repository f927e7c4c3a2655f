"""The rules by which scripts/environment.py keeps, updates or remakes an environment.

Making one for real takes minutes and is what every clean clone does; here pip is left out.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "environment.py"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, over a checkout of two small files, with pip replaced by a log."""
    spec = importlib.util.spec_from_file_location("environment", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "environment", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in module.INPUTS:
        (checkout / name).write_text(name)
    monkeypatch.setattr(module, "ROOT", checkout)
    log: list[tuple[str, ...]] = []

    def make(folder: Path, **_: object) -> None:
        log.append(("venv",))
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(sys.executable)

    def install(folder: Path, extras: frozenset[str]) -> None:
        log.append(("pip", *sorted(extras)))
        (folder / "package").touch()

    monkeypatch.setattr(module.venv, "create", make)
    monkeypatch.setattr(module, "install", install)
    monkeypatch.setattr(module, "log", log, raising=False)
    return module


def test_second_call_installs_nothing(environment: ModuleType, tmp_path: Path) -> None:
    environment.prepare(tmp_path / "venv", "all,dev")
    environment.prepare(tmp_path / "venv", "dev")  # fewer extras are there already
    assert environment.log == [("venv",), ("pip", "all", "dev")]


def test_more_extras_are_added_to_what_is_there(environment: ModuleType, tmp_path: Path) -> None:
    environment.prepare(tmp_path / "venv", "report")
    environment.prepare(tmp_path / "venv", "dev")
    environment.prepare(tmp_path / "venv", "dev,report")
    assert environment.log == [("venv",), ("pip", "report"), ("pip", "dev", "report")]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_input_installs_again(environment: ModuleType, tmp_path: Path, name: str) -> None:
    environment.prepare(tmp_path / "venv", "dev")
    (tmp_path / "checkout" / name).write_text("changed")
    environment.prepare(tmp_path / "venv", "dev")
    assert environment.log == [("venv",), ("pip", "dev"), ("pip", "dev")]


def test_an_installation_cut_short_is_made_anew(
    environment: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(folder: Path, extras: frozenset[str]) -> None:
        (folder / "half-a-package").touch()
        raise KeyboardInterrupt

    environment.prepare(tmp_path / "venv", "dev")
    with monkeypatch.context() as patch:
        patch.setattr(environment, "install", die)
        with pytest.raises(KeyboardInterrupt):
            environment.prepare(tmp_path / "venv", "all")
    environment.prepare(tmp_path / "venv", "dev")
    assert environment.log == [("venv",), ("pip", "dev"), ("venv",), ("pip", "dev")]
    assert not (tmp_path / "venv" / "half-a-package").exists()


def test_an_environment_whose_interpreter_is_gone_is_made_anew(
    environment: ModuleType, tmp_path: Path
) -> None:
    environment.prepare(tmp_path / "venv", "dev")
    python = tmp_path / "venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(tmp_path / "no-such-python")
    environment.prepare(tmp_path / "venv", "dev")
    assert environment.log == [("venv",), ("pip", "dev")] * 2


def test_an_unreadable_stamp_counts_as_none(environment: ModuleType, tmp_path: Path) -> None:
    environment.prepare(tmp_path / "venv", "dev")
    (tmp_path / "venv" / environment.STAMP).write_text('{"inputs": ')
    environment.prepare(tmp_path / "venv", "dev")
    assert environment.log == [("venv",), ("pip", "dev")] * 2


def test_a_folder_of_someone_else_is_left_alone(environment: ModuleType, tmp_path: Path) -> None:
    theirs = tmp_path / "venv" / "precious"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    with pytest.raises(SystemExit, match="was not made by these scripts"):
        environment.prepare(tmp_path / "venv", "dev")
    assert theirs.read_text() == "mine"
    assert environment.log == []
