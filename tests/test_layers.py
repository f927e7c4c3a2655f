"""Imports point one way: `lint-imports` reads the contracts in setup.cfg; the rest is tried out."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import grasp_tune

ROOT = Path(grasp_tune.__file__).parents[1]
FRAMEWORKS = frozenset({"ray", "optuna"})


def loaded_by(code: str, watched: frozenset[str]) -> list[str]:
    """Which of the watched packages a fresh interpreter has loaded after running the code."""
    report = f"import sys; print(sorted({set(watched)!r} & set(sys.modules)))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    loaded: list[str] = ast.literal_eval(done.stdout)  # all of it: importing must not print
    return loaded


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports(%r))"
    command = [sys.executable, "-c", code % str(ROOT / "setup.cfg")]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def test_imports_point_one_way() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def test_the_check_sees_a_planted_violation(tmp_path: Path) -> None:
    package = tmp_path / "grasp_tune"
    for path in Path(grasp_tune.__file__).parent.rglob("*.py"):
        copy = package / path.relative_to(ROOT / "grasp_tune")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    with (package / "core" / "plan.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef late() -> None:\n    import grasp_tune.engine.worker\n")
    done = lint(tmp_path)
    assert done.returncode != 0
    assert "grasp_tune.core.plan -> grasp_tune.engine.worker" in done.stdout


@pytest.mark.parametrize("module", ["grasp_tune", "grasp_tune.core"])
def test_planning_loads_no_framework(module: str) -> None:
    code = f"import {module}; import grasp_tune as gt; dir(gt)"
    assert loaded_by(code, FRAMEWORKS | {"torch"}) == []


def test_a_plan_from_the_public_names_loads_no_framework() -> None:
    code = "import grasp_tune as gt; gt.NonConvex().plan(budget=10_000, grad_norm=1.3)"
    assert loaded_by(code, FRAMEWORKS | {"torch"}) == []


def test_only_their_bodies_load_ray_and_optuna() -> None:
    found = pkgutil.walk_packages(grasp_tune.__path__, "grasp_tune.")
    bodies = ("grasp_tune.ray", "grasp_tune.optuna", "grasp_tune.executors")
    others = [m.name for m in found if not m.name.startswith(bodies) and "__main__" not in m.name]
    assert len(others) > 50
    # Their frameworks take ten seconds to load, and what those load is not at issue.
    stand_in = (
        "import sys; from types import SimpleNamespace as Module\n"
        "sys.modules['transformers'] = Module(TrainerCallback=object)\n"
        "names = ('lightning', 'lightning.pytorch', 'lightning.pytorch.callbacks')\n"
        "sys.modules.update(dict.fromkeys(names, Module(Callback=object)))\n"
    )
    lines = "\n".join(f"import {name}" for name in others)
    assert loaded_by(stand_in + lines, FRAMEWORKS) == []


def test_the_watch_sees_what_is_loaded() -> None:
    assert loaded_by("import optuna", FRAMEWORKS) == ["optuna"]
