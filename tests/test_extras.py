"""The core alone trains, plans and reports; a missing extra is named when it is used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import grasp_tune
from grasp_tune.core.errors import MissingExtra
from grasp_tune.extras import need

ROOT = Path(grasp_tune.__file__).parents[1]

CORE = """\
import sys
for name in ("ray", "optuna", "plotly", "pandas", "torchvision", "PIL", "filelock"):
    sys.modules[name] = None  # as if it were not installed
from grasp_tune.cli import main

def ends(code, *words):
    got = main([*words])
    assert got == code, (words, got)

small = ["--set", "budget=60", "--set", "problem.model={name: mlp, hidden: [4]}"]
ends(0, "init", "mine.yaml")
ends(0, "plan", "mine.yaml", *small)
ends(0, "run", "mine.yaml", "--out", "o", "-q", *small)
ends(0, "report", "o")
ends(0, "resume", "o", "-q")
for backend in ("ray", "optuna"):
    ends(2, "run", "mine.yaml", "--out", backend, *small, "--set", f"backend={backend}")
import grasp_tune.ray, grasp_tune.optuna
assert "GraspSearcher" in dir(grasp_tune.ray)
"""


def test_the_core_runs_without_any_framework(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CORE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o" / "report.html").exists()
    for extra in ("ray", "optuna"):
        line = f"grasp_tune.{extra} needs {extra}, which is not installed; run: pip install"
        assert f"{line} 'grasp_tune[{extra}]'" in done.stderr
        assert not (tmp_path / extra).exists()


def test_a_missing_package_is_named_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"digits needs scikit-learn.*grasp_tune\[datasets\]"):
        need("sklearn.datasets", "datasets", "digits", "scikit-learn")
