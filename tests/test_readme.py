"""The README's examples run as printed, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

from grasp_tune.cli import main

README = Path(__file__).resolve().parents[1] / "README.md"
TEXT = README.read_text("utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


EXAMPLES = blocks("python")
ON_RAY = [source for source in EXAMPLES if "from ray" in source]
PLAIN = [source for source in EXAMPLES if source not in ON_RAY]


def run(source: str) -> None:
    exec(compile(source, str(README), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("source", PLAIN, ids=range(1, len(PLAIN) + 1))
def test_readme_example_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(source)


@pytest.mark.parametrize("source", ON_RAY, ids=range(1, len(ON_RAY) + 1))
def test_readme_example_runs_on_ray(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_session: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where Tune keeps its results by default
    run(source)


def test_readme_config_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (config,) = blocks("yaml")
    Path("digits.yaml").write_text(config, encoding="utf-8")
    commands = re.findall(r"^grasp-tune (plan|run|resume) (.*?)(?:\s+#.*)?$", TEXT, re.MULTILINE)
    assert [name for name, _ in commands] == ["plan", "run", "resume"]
    for name, rest in commands:
        assert main([name, *rest.split()]) == 0
    assert Path("runs/digits/report.html").exists()


def test_readme_has_examples() -> None:
    assert len(PLAIN) >= 3 and ON_RAY  # empty lists would let the tests above vanish
    assert max(len(source.splitlines()) for source in EXAMPLES) <= 24


def test_links_lead_to_files() -> None:
    for page in (README, *sorted((README.parent / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
