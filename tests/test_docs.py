"""The examples on the pages about the command line and about extending run as printed."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from grasp_tune.config import load_experiment, run_experiment

ROOT = Path(__file__).resolve().parents[1]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language on a page, in order."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_command_line_page_runs_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (source,) = blocks("cli.md", "python")
    names: dict[str, object] = {}
    exec(compile(source, "cli.md", "exec"), names)
    assert "model" in names
    assert float(capsys.readouterr().out) > 0


def test_what_the_page_on_extending_shows_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    python = [source for source in blocks("extending.md", "python") if "class Thing" not in source]
    assert len(python) == 3
    Path("my_module.py").write_text("\n\n".join(python), encoding="utf-8")
    configs = blocks("extending.md", "yaml")
    assert len(configs) == 2
    challenger = ["challengers=['my_module:my_base']"]
    try:
        for at, text in enumerate(configs):
            Path("own.yaml").write_text(text, encoding="utf-8")
            experiment = load_experiment(
                "own.yaml",
                overrides=["budget=600", "method.base=my_module:my_base"]
                if at
                else ["budget=600", *challenger],
                environment={},
            )
            finished = run_experiment(experiment, f"o{at}", progress=False)
            assert finished.result.score < 2.4  # ln 10 and a little: the start of digits
    finally:
        sys.modules.pop("my_module", None)
