"""From the options of a config to the data: each kind's loader, and functions of the user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.config.errors import EntryPointError
from grasp_tune.config.section import Section
from grasp_tune.data.data import Data
from grasp_tune.data.options import Dataset, OwnData
from grasp_tune.data.options import Table as TableOptions
from grasp_tune.data.table import Array, Table, table_data


def load_data(options: Section) -> Data:
    """The data that a `problem.dataset` section describes; files are read here, and only here."""
    if not isinstance(options, Dataset):
        kind = type(options).__name__
        raise TypeError(f"no loader for {kind}, expected a problem.dataset section")
    data: Data = load_entry_point(options.loader, "problem.dataset.name")(options)
    return data


def own_data(options: OwnData) -> Data:
    """What the user's function gives, as data."""
    given = load_entry_point(options.name, "problem.dataset.name")(**options.options)
    if isinstance(given, Data):
        return given
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 4):
        got = f"{len(given)} values" if isinstance(given, (tuple, list)) else type(given).__name__
        raise EntryPointError(
            f"problem.dataset.name: {options.name} returned {got}, expected (x, y), "
            "(x, y, x_test, y_test) or a Data"
        )
    x, y, *test = (_array(part) for part in given)
    x_test, y_test = test or (None, None)
    table = Table(x, y, x_test, y_test)
    return table_data(options.name, table, TableOptions(name=options.name))


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
