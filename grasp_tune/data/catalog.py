"""From the options of a config to the data: of functions, packages and tables in files."""

import zipfile
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from grasp_tune.config.entry_point import call_entry_point, load_entry_point
from grasp_tune.config.errors import EntryPointError, require, shown
from grasp_tune.data.data import KEY, Array, Data, check_memory, existing_file, reading, table_data
from grasp_tune.data.options import BreastCancer, Dataset, Digits, Libsvm, Npz, OwnData, Table
from grasp_tune.engine.problem import Rows, as_data
from grasp_tune.engine.streams import fixed_randomness
from grasp_tune.extras import need


def load_data(options: Dataset) -> Data:
    """The data that a `problem.dataset` section describes; files are read here, and only here."""
    name = options.loader or f"{__name__}:{options.name}"
    data: Data = load_entry_point(name, f"{KEY}.name")(options)
    return data


def own_data(options: OwnData) -> Data:
    given = call_entry_point(options.name, KEY, options.options)
    if isinstance(given, Data):
        return given
    parts = given if isinstance(given, (tuple, list)) else (given,)
    if all(isinstance(part, TorchDataset | DataLoader) for part in parts):
        parts = [array for source in parts for array in _all_rows(source, options)]
    elif all(isinstance(part, tuple) for part in parts):  # (x, y), (x_test, y_test)
        parts = [array for pair in parts for array in pair]
    if len(parts) not in (2, 4):
        got = f"{len(parts)} values" if parts is given else type(given).__name__
        raise EntryPointError(
            f"{KEY}.name: {options.name} returned {got}, expected (x, y), (x, y, x_test, y_test) "
            "or a Data"
        )
    try:
        arrays = [np.asarray(p.detach().cpu() if isinstance(p, Tensor) else p) for p in parts]
    except ValueError as error:
        got = f"rows of different shapes ({error})"
        raise EntryPointError(f"{KEY}.name: {options.name} returned {got}") from None
    return table_data(options.name, arrays, Table(name=options.name))


def _all_rows(source: Any, options: OwnData) -> list[Array]:
    """Inputs and labels of all rows of a `Dataset` or a `DataLoader`."""
    if isinstance(source, TorchDataset):
        collate = load_entry_point(options.collate_fn, f"{KEY}.collate_fn")
        source = DataLoader(source, 256, num_workers=options.num_workers, collate_fn=collate)
    if isinstance(rows := as_data(source, 256), Rows):  # every row once, in order
        how = {"num_workers": source.num_workers, "collate_fn": rows.collate}
        source = DataLoader(rows.items, 256, **how)
    try:
        with fixed_randomness(0, "rows"):
            x, y = zip(*list(source), strict=True)
        return [np.concatenate([np.asarray(part) for part in parts]) for parts in (x, y)]
    except (TypeError, ValueError, RuntimeError) as error:
        raise EntryPointError(
            f"{KEY}.name: {options.name} gave batches that are no pairs of arrays of one shape "
            f"({error}); expected (x, y), which {KEY}.collate_fn can make of a list of rows"
        ) from error


def digits(options: Digits) -> Data:
    bunch = _sklearn("digits").load_digits()
    # The files count ink from 0 to 16.
    return table_data("digits", [bunch.images[:, None] / 16.0, bunch.target], options)


def spirals(options: Digits) -> Data:
    """Points on three spiral arms with a little noise, the same every time."""
    random, arm = np.random.default_rng(7004), np.arange(3000) % 3
    radius = random.random(3000)
    angle = 4 * radius + arm * 2 * np.pi / 3 + 0.15 * random.standard_normal(3000)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return table_data("spirals", [x, arm], options)


def breast_cancer(options: BreastCancer) -> Data:
    bunch = _sklearn("breast_cancer").load_breast_cancer()
    labels = tuple(map(str, bunch.target_names))
    return table_data("breast_cancer", [bunch.data, bunch.target], options, labels=labels)


def libsvm(options: Libsvm) -> Data:
    """The rows of a file in LIBSVM's text format, and of a second one as test rows."""
    how = "a text file with lines such as: +1 3:0.5 7:1"
    files = [existing_file(options.path, "path", how)]
    if options.test_path is not None:
        files.append(existing_file(options.test_path, "test_path", how))
    for file in files:  # a value takes at least four characters in the file and sixteen bytes here
        check_memory(file.name, 4.0 * file.stat().st_size, options.max_gib)
    read = _sklearn("libsvm").load_svmlight_files
    names, zero = [str(file) for file in files], options.zero_based
    with reading(" or ".join(names), "LIBSVM", how):
        parts = read(names, n_features=options.features, dtype=np.float32, zero_based=zero)
    needed = 4.0 * sum(np.prod(part.shape) for part in parts[::2])
    check_memory(files[0].name, needed, options.max_gib)
    arrays = [part.toarray() if part.ndim == 2 else part for part in parts]
    return table_data(files[0].name, arrays, options, options.task)


def _sklearn(name: str) -> Any:
    return need("sklearn.datasets", "datasets", f"the data set {name}", "scikit-learn")


def npz(options: Npz) -> Data:
    """Arrays of one .npz file: (rows, ...) inputs, one label per row."""
    how = (
        f"an .npz file with arrays {options.x} (rows, ...) and {options.y} (rows,), and if you "
        f"have test rows {options.x_test} and {options.y_test}; numpy.savez writes one"
    )
    file, table = existing_file(options.path, "path", how), []
    with reading(file, ".npz", how):
        with zipfile.ZipFile(file) as archive:
            # Before anything is unpacked: a small file can hold very much nothing.
            check_memory(file.name, sum(i.file_size for i in archive.infolist()), options.max_gib)
        with np.load(file, allow_pickle=False) as arrays:
            tests = not {options.x_test, options.y_test}.isdisjoint(arrays.files)
            for key in ("x", "y", "x_test", "y_test")[: 4 if tests else 2]:
                name = getattr(options, key)
                there = ", ".join(sorted(arrays.files)[:20]) or "none"
                fault = f"has no array {shown(name)}, only {there}; name the right one with "
                require(file.name, name in arrays.files, f"{fault}{KEY}.{key}")
                table.append(values := arrays[name])
                right = values.dtype.kind in ("iuf" if key.startswith("x") else "iufbU")
                require(file.name, right, f"{name} holds {values.dtype}, expected real numbers")
    shape = table[0].shape
    require(file.name, len(shape) > 1, f"{options.x} has shape {shape}, expected (rows, features)")
    return table_data(file.stem, table, options, options.task)
