"""Functions named in a config, `module:function`, imported only when they are asked for."""

import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Mapping
from typing import Any

from grasp_tune.config.errors import EntryPointError, shown
from grasp_tune.core.errors import misfit

_WORDS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_ENTRY_POINT = re.compile(rf"{_WORDS}:{_WORDS}\Z", re.ASCII)


def is_entry_point(text: object) -> bool:
    """Whether the text has the form `module:function`."""
    return isinstance(text, str) and _ENTRY_POINT.match(text) is not None


def load_entry_point(name: str | None, key: str) -> Any:
    """The function that `module:function`, named at a key of the config, stands for.

    Every other name is returned as it is. Modules in the working directory are found too.
    """
    if name is None or not is_entry_point(name):
        return name
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last: no file lying here can stand in for an installed package
    module, _, attribute = name.partition(":")
    try:
        target = pkgutil.resolve_name(name)
        fault = "" if callable(target) else f"a {type(target).__name__}, expected a function"
    except ImportError as error:
        fault = f"whose module cannot be imported ({error}); expected one installed or in {here}"
    except AttributeError:
        fault = f"but {module} has no {shown(attribute)}"
    if fault:
        raise EntryPointError(f"{key}: got {name}, {fault}")
    return target


def call_entry_point(name: str, key: str, options: Mapping[str, Any], *given: object) -> Any:
    """What the function of a section with `name` and `options` returns for what it is `given`."""
    function = load_entry_point(name, f"{key}.name")
    if why := misfit(function, *given, **options):  # told before its body runs
        takes = f"{name}{inspect.signature(function)}"
        right = "expected such a function, called with " + "its data and " * len(given)
        raise EntryPointError(f"{key}: got {takes}, {why}; {right}{key}.options")
    return function(*given, **options)
