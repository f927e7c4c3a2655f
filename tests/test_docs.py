"""The docs: the site builds, every page is reachable, and the examples run as printed."""

import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import grasp_tune as gt
from grasp_tune.config import load_experiment, run_experiment

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ELSEWHERE = {"extending.md", "optuna.md"}  # below, and in tests/optuna


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language on a page, in order."""
    text = page.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


PAGES = [p for p in sorted(DOCS.glob("*.md")) if p.name not in ELSEWHERE and blocks(p, "python")]


def every_argument_is_told(name: str, page: str) -> None:
    value: Any = named(name)
    if isinstance(value, type) and not issubclass(value, Exception):
        _, _, text = page.partition(f'id="{name}"')
        table = re.split("<h[34] ", text, maxsplit=1)[0]
        told = re.findall(r'<tr class="doc-section-item">\s*<td>\s*<code>(\w+)</code>', table)
        kinds = inspect.signature(value).parameters.values()
        wanted = {
            item.name for item in kinds if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)
        }
        assert wanted <= set(told), f"{name}: {wanted - set(told)}"


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "reference" / "index.html").read_text("utf-8")
    assert "as many oracle calls as one plain training makes" in reference  # a documented argument
    for module, page in (("", "index"), (".ray", "ray"), (".optuna", "optuna")):
        text = (tmp_path / "reference" / f"{page}.html").read_text("utf-8")
        for name in importlib.import_module(f"grasp_tune{module}").__all__:
            every_argument_is_told(f"grasp_tune{module}.{name}", text)
    assert "<math" in (tmp_path / "guarantee.html").read_text("utf-8")
    index = (tmp_path / "index.html").read_text("utf-8")
    scripts = re.findall(r'<script src="([^"]+)"', index)
    assert all((tmp_path / name).is_file() for name in scripts)  # nothing comes from elsewhere
    assert "data:image/png" in (tmp_path / "notebooks" / "first-run.html").read_text("utf-8")


def test_every_page_is_reachable_from_the_index() -> None:
    seen, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.is_relative_to(DOCS):
            continue
        seen.add(page)
        if page.suffix == ".md":
            links = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
            waiting += [(page.parent / link).resolve() for link in links]
    assert {path for path in DOCS.rglob("*") if path.is_file()} == seen


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "index.md").read_text("utf-8")
    told = re.findall(r"^::: grasp_tune\.(\w+)$", page, re.MULTILINE)
    assert set(told) == set(gt.__all__) - {"__version__"}


def named(words: str) -> object:
    """What a dotted name stands for, such as `gt.Result.save`; fields of dataclasses count."""
    parts = re.sub(r"^gt\b", "grasp_tune", words).split(".")
    found: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], start=1):
        if not hasattr(found, part) and part in getattr(found, "__dataclass_fields__", {}):
            return part
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[: at + 1]))
        found = getattr(found, part)
    return found


def test_files_and_names_that_pages_speak_of_exist() -> None:
    folders = "grasp_tune|tests|benchmarks|scripts|docs|examples|configs|hub|results"
    for page in (*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        told = re.findall(r"`([\w/.-]+)`", page.read_text("utf-8"))
        for words in dict.fromkeys(told):
            if re.match(rf"({folders})/", words):
                assert (ROOT / words).exists(), f"{page.name}: {words}"
            elif re.fullmatch(r"(grasp_tune|gt)(\.\w+)+", words):
                assert named(words) is not None, f"{page.name}: {words}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in blocks(page, "python"):
        exec(compile(source, str(page), "exec"), names)


def test_a_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    notebook = json.loads((DOCS / "notebooks" / "first-run.ipynb").read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] or cell["execution_count"]  # it was run before it was kept
            exec(re.sub(r"^%.*", "", "".join(cell["source"]), flags=re.MULTILINE), names)
    assert names["loss_of"](names["result"].model) < min(names["losses"])


def test_what_the_page_on_extending_shows_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "extending.md"
    python = [source for source in blocks(page, "python") if "class Thing" not in source]
    assert len(python) == 3
    Path("my_module.py").write_text("\n\n".join(python), encoding="utf-8")
    configs = blocks(page, "yaml")
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
