"""The OptunaHub entry: what the registry wants is there, and it runs as it is."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grasp_tune.optuna import GraspSampler

HUB = Path(__file__).parents[2] / "hub"


def run_python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=HUB.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_front_matter_has_what_the_registry_reads() -> None:
    text = (HUB / "README.md").read_text(encoding="utf-8")
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert match is not None
    front = yaml.safe_load(match[1])
    assert set(front) == {"author", "title", "description", "tags", "optuna_versions", "license"}
    assert front["license"] == "MIT License"
    assert "sampler" in front["tags"]
    for heading in ("Abstract", "APIs", "Installation", "Example"):
        assert f"\n## {heading}\n" in text
    for name in inspect.signature(GraspSampler).parameters:  # those that it names, and no others
        assert re.search(rf"GraspSampler\(.*\b{name}=.*\)", text), name
    licence = (HUB.parent / "LICENSE").read_text(encoding="utf-8")
    assert (HUB / "LICENSE").read_text(encoding="utf-8") == licence


# Stands in for the registry's loader, which is not installed: it loads the entry as a package.
LOADER = """
import importlib.util, sys, types

def load_module(package):
    assert package == "samplers/grasp"
    spec = importlib.util.spec_from_file_location("grasp_entry", "hub/__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["grasp_entry"] = module
    spec.loader.exec_module(module)
    return module

sys.modules["optunahub"] = types.SimpleNamespace(load_module=load_module)
"""


def test_the_examples_run() -> None:
    text = (HUB / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = LOADER + code + "\nassert study.best_value < 1e-3\n"
    code += "import runpy; runpy.run_path('hub/example.py', run_name='__main__')"
    assert "best step size" in run_python("-c", code)


def test_the_entry_says_what_it_needs_and_passes_the_registry_s_linter() -> None:
    needed = (HUB / "requirements.txt").read_text(encoding="utf-8").split()
    assert needed == ["grasp_tune[optuna]"]
    for words in (["check"], ["format", "--check"]):  # with its settings, in hub/ruff.toml
        run_python("-m", "ruff", *words, "--no-cache", "hub")


def test_its_own_tests_pass() -> None:
    pytest.importorskip("optuna.testing.pytest_samplers")  # from Optuna 4.8 on
    out = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "hub/tests")
    assert re.search(r"\b6[0-9] passed", out), out
