"""Imports that wait for their first use: the names of a package (PEP 562), optional packages."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from grasp_tune.core.errors import MissingExtra

_declared: list[Any] = []  # a library that is collected takes its schemas along


def lazy_names(
    package: str, file: str, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names live elsewhere.

    The names are those that `file` imports for type checkers, `if TYPE_CHECKING`.
    extra: a framework that all of them need, and the extra of the same name that installs it.
    """
    blocks = (x for x in ast.parse(Path(file).read_text("utf-8")).body if isinstance(x, ast.If))
    imports = [x for block in blocks for x in block.body if isinstance(x, ast.ImportFrom)]
    homes = {name.name: str(item.module) for item in imports for name in item.names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if extra is not None:
            need(extra, extra, package)
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next use finds it without asking here
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)


def need(module: str, extra: str, purpose: str, package: str = "") -> ModuleType:
    """Return an optional module; raise MissingExtra, with the command to run, where it is missing.

    extra: what installs it. purpose: what needs it. package: its name, if not the module's.
    """
    try:
        return _mended(module)
    except ImportError as error:
        raise missing_extra(package or module.partition(".")[0], extra, purpose) from error


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtra:
    command = f"pip install 'grasp_tune[{extra}]'"
    return MissingExtra(f"{purpose} needs {package}, which is not installed; run: {command}")


def _mended(module: str) -> ModuleType:
    """The module, imported once more with torchvision's operators declared where they are lost.

    torchvision built for another torch cannot load its compiled operators, which nothing here uses.
    With their signatures declared, everything in plain Python (ResNets, Lightning) works.
    """
    try:
        return import_module(module)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error) or _declared:
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half imported
    from torch.library import Library

    _declared.append(Library("torchvision", "FRAGMENT"))
    for name in ("nms", "qnms"):
        _declared[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return import_module(module)
