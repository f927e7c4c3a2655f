"""Names of a package that are loaded when they are first used (PEP 562)."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def lazy_names(
    package: str, file: str, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names live elsewhere.

    The names are those that the package imports for type checkers, `if TYPE_CHECKING`.

    package, file: the package's `__name__` and `__file__`.
    extra: a framework that all of them need, and the extra of the same name that installs it.
    """
    blocks = (x for x in ast.parse(Path(file).read_text("utf-8")).body if isinstance(x, ast.If))
    imports = [x for block in blocks for x in block.body if isinstance(x, ast.ImportFrom)]
    homes = {name.name: str(item.module) for item in imports for name in item.names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if extra is not None:
            from grasp_tune.extras import need

            need(extra, extra, package)
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # the next use finds it without asking here
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)
