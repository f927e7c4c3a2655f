"""Optional packages: imported when they are used, and named with the extra that installs them."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from grasp_tune.core.errors import MissingExtra

_declared: list[Any] = []  # a library that is collected takes its schemas along


def need(module: str, extra: str, purpose: str, package: str = "") -> ModuleType:
    """Return an optional module; raise MissingExtra, with the command to run, where it is missing.

    module: what is imported. extra: the extra of this package that installs it.
    purpose: what needs it, for the message. package: its name for people, if not the module's.
    """
    try:
        return _mended(module)
    except ImportError as error:
        raise missing_extra(package or module.partition(".")[0], extra, purpose) from error


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtra:
    """The error of an optional package that is not installed, with the command that installs it."""
    return MissingExtra(
        f"{purpose} needs {package}, which is not installed; run: pip install 'grasp_tune[{extra}]'"
    )


def _mended(module: str) -> ModuleType:
    """The module, imported once more with torchvision's operators declared where they are lost.

    torchvision built for another torch cannot load its compiled operators, and then its import
    fails, although nothing here uses them. With their signatures declared, everything in plain
    Python (data sets, ResNets, Lightning) works as usual.
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
