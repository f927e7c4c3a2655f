"""Functions named in a config, `module:function`, imported only when they are asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

from grasp_tune.config.errors import EntryPointError, shown


def load_entry_point(name: str, key: str) -> Callable[..., Any]:
    """The function that `name` stands for; `key` is where the config names it.

    Modules in the working directory are found too, after all installed ones.
    """
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last: no file lying here can stand in for an installed package
    try:
        target: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
    except ImportError as error:
        raise EntryPointError(
            f"{key}: got {name}, whose module cannot be imported ({error}); expected a module that "
            f"is installed or lies in {here}"
        ) from error
    except AttributeError:
        raise EntryPointError(
            f"{key}: got {name}, but {module} has no {shown(attribute)}"
        ) from None
    if not callable(target):
        raise EntryPointError(f"{key}: got {name}, a {type(target).__name__}, expected a function")
    return target
