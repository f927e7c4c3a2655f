"""Imports point one way: method <- training <- bodies and peers <- facade <- experiment <- cli.

Read from the source with `ast`, so that an import inside a function or under TYPE_CHECKING counts
too, and once more by importing everything in a fresh interpreter and looking at what was loaded.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import grasp_tune

PACKAGE = Path(grasp_tune.__file__).parent
FRAMEWORKS = frozenset({"ray", "optuna"})


@dataclass(frozen=True)
class Layer:
    """What the modules of one layer may import, beside the standard library and themselves."""

    below: frozenset[str] = frozenset()  # layers of the package, anywhere in a file
    late: frozenset[str] = frozenset()  # layers of the package, inside functions only
    frameworks: frozenset[str] = frozenset()  # of Ray and Optuna, anywhere in a file
    late_frameworks: frozenset[str] = frozenset()  # inside functions only
    only: frozenset[str] | None = None  # if given, the only outside packages allowed


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LAYERS = {
    "method": Layer(only=names("numpy")),
    "training": Layer(names("method")),
    "local": Layer(names("method training")),
    "ray": Layer(names("method training"), frameworks=names("ray")),
    "optuna": Layer(names("method training"), frameworks=names("optuna")),
    # Peers such as TPE and ASHA are the frameworks' own; the others must run without them.
    "peers": Layer(names("method training"), late_frameworks=FRAMEWORKS),
    "facade": Layer(names("method training local"), late=names("ray optuna")),
    "experiment": Layer(names("method training local peers facade"), late=names("ray optuna")),
    "commands": Layer(
        names("method training local peers facade experiment"), late=names("ray optuna")
    ),
    "cli": Layer(names("method experiment commands")),
    "__main__": Layer(names("cli")),
}
TOP = names("experiment commands cli")  # may use the public names of `grasp_tune`, as a user would


@dataclass(frozen=True)
class Import:
    """One imported name, absolute, and where it was found."""

    target: str
    line: int
    late: bool  # inside a function


def find_imports(source: str, module: str, *, is_package: bool) -> Iterator[Import]:
    """All imports of a module, relative ones resolved, `import_module("...")` included."""
    package = module if is_package else module.rpartition(".")[0]

    def visit(node: ast.AST, late: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(alias.name, node.lineno, late)
            case ast.ImportFrom():
                base = node.module or ""
                if node.level:
                    parts = package.split(".")
                    anchor = ".".join(parts[: len(parts) - (node.level - 1)])
                    base = f"{anchor}.{base}".rstrip(".")
                for alias in node.names:
                    yield Import(f"{base}.{alias.name}", node.lineno, late)
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                yield Import(target, node.lineno, late)
        inside = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), False)


def complaint(layer_name: str, found: Import) -> str | None:
    """Why a module of this layer may not import that, or None if it may."""
    layer = LAYERS[layer_name]
    root, _, rest = found.target.partition(".")
    if root != "grasp_tune":
        return complain_outside(layer_name, layer, root, found.late)
    target = rest.partition(".")[0]
    if target in (layer_name, "__version__"):
        return None
    if target not in LAYERS:
        return None if layer_name in TOP else f"{layer_name} imports the public grasp_tune.{target}"
    if target in layer.below or (found.late and target in layer.late):
        return None
    where = " outside a function" if target in layer.late else ""
    return f"{layer_name} imports {target}{where}"


def complain_outside(layer_name: str, layer: Layer, root: str, late: bool) -> str | None:
    if root in FRAMEWORKS:
        if root in layer.frameworks or (late and root in layer.late_frameworks):
            return None
        where = " outside a function" if root in layer.late_frameworks else ""
        return f"{layer_name} imports the framework {root}{where}"
    if layer.only is None or root in layer.only or root in sys.stdlib_module_names:
        return None
    return f"{layer_name} imports {root}"


def check_module(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """The complaints about one module, each with its line."""
    layer_name = module.split(".")[1]
    if layer_name not in LAYERS:
        return [f"{module}: no layer of that name; say in {Path(__file__).name} where it belongs"]
    found = find_imports(source, module, is_package=is_package)
    complaints = ((item.line, complaint(layer_name, item)) for item in found)
    return [f"{module}:{line}: {text}" for line, text in complaints if text]


def modules() -> dict[str, Path]:
    """The dotted names of all modules below the package's own `__init__`, with their files."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts != ("__init__",):
            found[".".join(("grasp_tune", *parts)).removesuffix(".__init__")] = path
    return found


def loaded_by(code: str, watched: frozenset[str]) -> list[str]:
    """Which of the watched packages a fresh interpreter has loaded after running the code."""
    report = f"import sys; print(sorted({set(watched)!r} & set(sys.modules)))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent, check=False)
    assert done.returncode == 0, done.stderr
    loaded: list[str] = ast.literal_eval(done.stdout)  # all of it: importing must not print
    return loaded


def test_imports_point_one_way() -> None:
    found = modules()
    assert "grasp_tune.method.plan" in found  # the check looks at the real package
    complaints = [
        line
        for module, path in found.items()
        for line in check_module(
            path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py"
        )
    ]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("method.plan", "import torch", "method imports torch"),
        ("method.plan", "import numpy as np, ray", "method imports the framework ray"),
        ("method.plan", "def f():\n    import torch.nn", "method imports torch"),
        ("method.plan", "from ..training import worker", "method imports training"),
        ("method.schedules.paper", "from ...local.runner import run", "method imports local"),
        ("method.plan", "if TYPE_CHECKING:\n    import grasp_tune.cli", "method imports cli"),
        ("method.plan", "import_module('grasp_tune.training')", "method imports training"),
        ("training.worker", "import optuna", "training imports the framework optuna"),
        ("training.worker", "from grasp_tune import ray", "training imports ray"),
        ("training.worker", "from grasp_tune import Plan", "imports the public grasp_tune.Plan"),
        ("training.worker", "from grasp_tune.facade import minimize", "training imports facade"),
        ("local.runner", "import grasp_tune.ray.searcher", "local imports ray"),
        ("ray.searcher", "import optuna", "ray imports the framework optuna"),
        ("ray.searcher", "from grasp_tune.optuna import GraspSampler", "ray imports optuna"),
        ("optuna.sampler", "async def f():\n    import ray", "optuna imports the framework ray"),
        ("peers.tpe", "import optuna", "peers imports the framework optuna outside a function"),
        ("facade", "from grasp_tune.ray import run", "facade imports ray outside a function"),
        ("facade", "from .experiment import schema", "facade imports experiment"),
        ("experiment.report", "from grasp_tune import cli", "experiment imports cli"),
        ("cli", "def run():\n    import ray", "cli imports the framework ray"),
        ("helpers", "", "no layer of that name"),
    ],
)  # fmt: skip
def test_the_check_sees_a_planted_violation(module: str, source: str, expected: str) -> None:
    (found,) = check_module(source, f"grasp_tune.{module}")
    assert expected in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("method.plan", "import math, numpy as np\nfrom .errors import PlanError"),
        ("method.schedules.paper", "from ..plan import Plan\nfrom grasp_tune.method import tasks"),
        ("training.result", "import torch\nfrom grasp_tune import __version__"),
        ("ray.searcher", "import ray\nfrom ray.tune import Tuner\nfrom ..training import worker"),
        ("peers.tpe", "def f():\n    import optuna"),
        ("facade", "def f():\n    from grasp_tune.ray import run"),
        ("experiment.run", "import grasp_tune as gt\nfrom grasp_tune import minimize"),
    ],
)  # fmt: skip
def test_the_check_lets_allowed_imports_pass(module: str, source: str) -> None:
    assert check_module(source, f"grasp_tune.{module}") == []


def test_relative_imports_of_a_package_start_at_itself() -> None:
    source = "from . import plan\nfrom .. import training"
    found = list(find_imports(source, "grasp_tune.method", is_package=True))
    assert [item.target for item in found] == ["grasp_tune.method.plan", "grasp_tune.training"]


@pytest.mark.parametrize("module", ["grasp_tune", "grasp_tune.method"])
def test_planning_loads_no_framework(module: str) -> None:
    code = f"import {module}; import grasp_tune as gt; dir(gt)"
    assert loaded_by(code, FRAMEWORKS | {"torch"}) == []


def test_a_plan_from_the_public_names_loads_no_framework() -> None:
    code = "import grasp_tune as gt; gt.NonConvex().plan(budget=10_000, grad_norm=1.3)"
    assert loaded_by(code, FRAMEWORKS | {"torch"}) == []


def test_only_their_bodies_load_ray_and_optuna() -> None:
    bodies = ("grasp_tune.ray", "grasp_tune.optuna")
    others = [name for name in modules() if not name.startswith(bodies) and "__main__" not in name]
    assert loaded_by("\n".join(f"import {name}" for name in others), FRAMEWORKS) == []


def test_the_watch_sees_what_is_loaded() -> None:
    assert loaded_by("import optuna", FRAMEWORKS) == ["optuna"]
