"""The workloads: the classical ones, listed here, and the modern ones of `benchmarks/modern`.

`held_out` means that this workload was never used to decide anything about the method.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch import nn

from benchmarks import datasets as data
from benchmarks import models
from benchmarks.datasets import Arrays
from benchmarks.modern import MODERN
from benchmarks.workload import Workload


def _flat(load: Callable[[Path], Arrays]) -> Callable[[Path], Arrays]:
    return lambda folder: load(folder).changed(lambda x: x.flatten(1))


def _scaled(load: Callable[[Path], Arrays], factor: float) -> Callable[[Path], Arrays]:
    return lambda folder: load(folder).changed(lambda x: x * factor)


def _columns(load: Callable[[Path], Arrays]) -> Callable[[Path], Arrays]:
    return lambda folder: load(folder).changed(data.random_columns)


def _made(load: Callable[[], Arrays]) -> Callable[[Path], Arrays]:
    return lambda folder: load()


_LIBSVM = {
    "a9a": ("a9a", partial(data.libsvm, name="a9a", features=123), 123),
    "mushrooms": ("mushrooms", partial(data.libsvm, name="mushrooms", features=126), 126),
}
_MNIST, _FEATURES = ("MNIST/raw/train-images-idx3-ubyte",), ("cifar10-probe512.npz",)


def _logistic() -> list[Workload]:
    """Logistic regression on two tables, each in four scalings."""
    made = []
    for name, (file, load, features) in _LIBSVM.items():
        scalings: list[tuple[str, str, Callable[[Path], Arrays]]] = [
            ("", "", load),
            ("-x0.01", ", features x 0.01", _scaled(load, 0.01)),
            ("-x100", ", features x 100", _scaled(load, 100.0)),
            ("-columns", ", columns x 10^-2..10^2", _columns(load)),
        ]
        for suffix, words, changed in scalings:
            made.append(
                Workload(
                    f"{name}{suffix}",
                    f"{name} logistic{words}",
                    True,
                    changed,
                    models.linear(features, 1),
                    models.logistic,
                    (f"libsvm/{file}",),
                )
            )
    return made


_A9A = _LIBSVM["a9a"][1]
_ALL: list[Workload] = [
    Workload(
        "digits",
        "digits softmax",
        True,
        _flat(_made(data.digits)),
        models.linear(64, 10),
        models.cross_entropy,
    ),
    Workload(
        "mnist",
        "MNIST softmax",
        True,
        _flat(data.mnist),
        models.linear(784, 10),
        models.cross_entropy,
        _MNIST,
    ),
    Workload(
        "cifar-probe",
        "CIFAR-10 probe softmax",
        True,
        data.cifar_features,
        models.linear(512, 10),
        models.cross_entropy,
        _FEATURES,
    ),
    *_logistic(),
    Workload(
        "cancer",
        "breast cancer logistic, raw columns",
        True,
        _made(partial(data.sklearn_table, "breast_cancer")),
        models.linear(30, 1),
        models.logistic,
    ),
    Workload(
        "wine",
        "wine softmax, raw columns",
        True,
        _made(partial(data.sklearn_table, "wine")),
        models.linear(13, 3),
        models.cross_entropy,
    ),
    Workload(
        "diabetes",
        "diabetes linear, squared loss",
        True,
        _made(lambda: _as_numbers(data.sklearn_table("diabetes"))),
        models.linear(10, 1),
        models.squared,
    ),
    Workload(
        "digits-mlp",
        "digits MLP 64-64-10",
        False,
        _flat(_made(data.digits)),
        models.mlp((64, 64, 10)),
        models.cross_entropy,
    ),
    Workload(
        "a9a-mlp",
        "a9a MLP 123-32-1",
        False,
        _A9A,
        models.mlp((123, 32, 1)),
        models.logistic,
        ("libsvm/a9a",),
    ),
    Workload(
        "cover",
        "made-up land cover softmax, raw columns",
        True,
        _made(data.cover),
        models.linear(54, 7),
        models.cross_entropy,
    ),
    Workload(
        "housing",
        "made-up house prices linear, squared loss, raw columns",
        True,
        _made(data.housing),
        models.linear(8, 1),
        models.squared,
    ),
    Workload(
        "words",
        "made-up word counts logistic",
        True,
        _made(data.words),
        models.linear(1000, 1),
        models.logistic,
    ),
    Workload(
        "iris",
        "iris softmax, raw columns",
        True,
        _made(partial(data.sklearn_table, "iris")),
        models.linear(4, 3),
        models.cross_entropy,
    ),
    Workload(
        "teacher",
        "tanh MLP 20-32-1 on a made-up teacher, squared loss",
        False,
        _made(data.teacher),
        models.mlp((20, 32, 1), nn.Tanh),
        models.squared,
    ),
    Workload(
        "digits-cnn",
        "CNN on digits 8 x 8",
        False,
        _made(data.digits),
        models.small_cnn(8),
        models.cross_entropy,
        budget=4_000,
    ),
    Workload(
        "mnist-cnn",
        "CNN on MNIST",
        False,
        data.mnist,
        models.small_cnn(28),
        models.cross_entropy,
        _MNIST,
        budget=2_000,
        sample=10_000,
    ),
    Workload(
        "cifar-resnet18",
        "ResNet-18 on CIFAR-10 pictures",
        False,
        data.cifar_images,
        models.resnet18,
        models.cross_entropy,
        (data.CIFAR_ARCHIVE,),
        budget=150,
        batch_size=32,
        sample=1_024,
    ),
]


for budget, name, words in ((10_000, "", ""), (1_500, "-short", ", short")):
    _ALL += [
        Workload(
            f"cifar-mlp{name}",
            f"CIFAR-10 probe MLP 512-64-10{words}",
            False,
            data.cifar_features,
            models.mlp((512, 64, 10)),
            models.cross_entropy,
            _FEATURES,
            budget=budget,
            held_out=budget < 10_000,
        ),
        Workload(
            f"mnist-odd{name}",
            f"MNIST odd or even logistic{words}",
            True,
            lambda folder: _odd(data.mnist(folder)),
            models.linear(784, 1),
            models.logistic,
            _MNIST,
            budget=budget,
            held_out=True,
        ),
        Workload(
            f"friedman{name}",
            f"Friedman's first problem, GELU MLP 10-32-1, squared loss{words}",
            False,
            _made(data.friedman),
            models.mlp((10, 32, 1), nn.GELU),
            models.squared,
            budget=budget,
            held_out=budget < 10_000,
        ),
    ]


def _odd(arrays: Arrays) -> Arrays:
    """Return flat arrays; the label is whether the digit is odd."""
    test = None if arrays.y_test is None else arrays.y_test % 2
    flat = arrays.changed(lambda x: x.flatten(1))
    return Arrays(flat.x, flat.y % 2, flat.x_test, test)


def _as_numbers(arrays: Arrays) -> Arrays:
    """Return the arrays with numbers as labels, for regression."""
    test = None if arrays.y_test is None else arrays.y_test.float()
    return Arrays(arrays.x, arrays.y.float(), arrays.x_test, test)


WORKLOADS: Mapping[str, Workload] = {item.name: item for item in (*_ALL, *MODERN)}
