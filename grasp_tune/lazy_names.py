"""Names of a package that are loaded when they are first used (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, homes: Mapping[str, str], extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names live in other modules.

    package: the package's `__name__`.
    homes: for each name, the module that defines it.
    extra: a framework that all of them need, and the extra of the same name that installs it.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if extra is not None:
            from grasp_tune.extras import need

            need(extra, extra, package)
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next use finds it without asking here
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, listed
