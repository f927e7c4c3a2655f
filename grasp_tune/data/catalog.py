"""From the options of a config to the data; the one table of names and loaders."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from grasp_tune.config import dataset_options as kinds
from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.config.errors import EntryPointError
from grasp_tune.config.section import Section
from grasp_tune.data.data import Data
from grasp_tune.data.embedded import breast_cancer, digits
from grasp_tune.data.files import csv_table, npz
from grasp_tune.data.images import cifar10, image_folder, mnist
from grasp_tune.data.libsvm import libsvm
from grasp_tune.data.table import Array, AsGiven, Table, table_data


def load_data(options: Section) -> Data:
    """The data that a `problem.dataset` section describes; files are read here, and only here."""
    match options:
        case kinds.Digits():
            return digits(options)
        case kinds.BreastCancer():
            return breast_cancer(options)
        case kinds.Mnist():
            return mnist(options)
        case kinds.Cifar10():
            return cifar10(options)
        case kinds.ImageFolder():
            return image_folder(options)
        case kinds.Npz():
            return npz(options)
        case kinds.Libsvm():
            return libsvm(options)
        case kinds.Csv():
            return csv_table(options)
        case kinds.EntryPointData():
            return _own(options)
    raise TypeError(f"no loader for {type(options).__name__}, expected a problem.dataset section")


def _own(options: kinds.EntryPointData) -> Data:
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
    arrays = [_array(part) for part in given]
    x_test, y_test = arrays[2:] or (None, None)
    table = Table(arrays[0], arrays[1], x_test, y_test)
    return table_data(options.name, table, AsGiven())


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
