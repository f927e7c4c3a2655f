"""Labels to classes, shares kept aside, columns standardized and scaled; by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.config.errors import DataError
from grasp_tune.data.data import Task, encode_labels, kept_rows, table_data
from grasp_tune.data.options import Table


def options(**keys: Any) -> Table:
    return Table(name="t", **keys)


def arrays(*given: Any) -> tuple[Any, ...]:
    return given


X = np.array([[1.0, 5.0], [3.0, 5.0], [5.0, 5.0], [7.0, 5.0]])
Y = np.array([2, 1, 2, 1])


@pytest.mark.parametrize(
    ("y", "codes", "names"),
    [
        ([0, 1, 0], [0, 1, 0], ("0", "1")),
        ([-1, 1, -1], [0, 1, 0], ("-1", "1")),
        ([1.0, 2.0, 1.0], [0, 1, 0], ("1", "2")),
        ([7, 3, 5], [2, 0, 1], ("3", "5", "7")),
        (["yes", "no", "no"], [1, 0, 0], ("no", "yes")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        ([[3], [4], [3]], [0, 1, 0], ("3", "4")),
        ([[0, 1.0, 0], [1, 0, 0], [0, 0, 1]], [1, 0, 2], ("0", "1", "2")),
    ],
)
def test_classes_are_counted_from_zero_in_their_order(
    y: list[Any], codes: list[int], names: tuple[str, ...]
) -> None:
    got, _, labels = encode_labels("t", np.array(y), None, "auto")
    assert got.tolist() == codes
    assert got.dtype == torch.int64
    assert labels == names


@pytest.mark.parametrize(
    ("y", "task"),
    [
        ([0.5, 2.0], "auto"),
        ([1, 2], "regression"),
        ([[1, 2], [3, 4]], "auto"),
        ([[1, 0], [0, 1]], "regression"),
    ],
)
def test_numbers_to_predict_stay_numbers(y: list[Any], task: Task) -> None:
    got, _, labels = encode_labels("t", np.array(y), None, task)
    assert labels is None
    assert got.tolist() == y
    assert got.dtype == torch.float32


def test_labels_that_make_no_sense_are_told() -> None:
    with pytest.raises(DataError, match=r"nan or inf"):
        encode_labels("t", np.array([0.0, np.nan]), None, "auto")
    with pytest.raises(
        DataError, match=r"the test rows have the label 9, which no training row has"
    ):
        encode_labels("t", np.array([1, 2]), np.array([2, 9]), "auto")
    with pytest.raises(DataError, match=r"labels are text"):
        encode_labels("t", np.array(["a", "b"]), None, "regression")
    with pytest.raises(DataError, match=r"10001 different labels.*task: regression"):
        encode_labels("t", np.arange(10_001), None, "auto")
    with pytest.raises(DataError, match=r"no rows"):
        encode_labels("t", np.array([]), None, "auto")


def test_columns_are_standardized_by_the_training_rows_then_scaled() -> None:
    # Column 1 has mean 4 and variance (9 + 1 + 1 + 9) / 4 = 5; column 2 is constant.
    table = arrays(X, Y, np.array([[9.0, 6.0]]), np.array([1]))
    data = table_data("t", table, options(scale=10.0, standardize=True))
    root = 5.0**0.5
    assert data.x[:, 0].tolist() == pytest.approx([-30 / root, -10 / root, 10 / root, 30 / root])
    assert data.x[:, 1].tolist() == [0.0] * 4
    assert data.x_test is not None
    assert data.x_test.flatten().tolist() == pytest.approx([50 / root, 10.0])
    assert data.spec.classes == 2
    assert data.spec.features == 2


def test_a_column_that_is_constant_but_for_rounding_is_not_blown_up() -> None:
    x = np.full((7, 1), 0.1)  # their mean is not exactly 0.1
    arrays = [x, np.arange(7) % 2, np.array([[0.3]]), np.array([1])]
    data = table_data("t", arrays, Table(name="t", standardize=True))
    assert data.x_test is not None
    assert data.x.abs().max() < 1e-6 and data.x_test.item() == pytest.approx(0.2)


def test_integers_become_numbers_and_shapes_stay() -> None:
    table = arrays(np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), np.array([0, 1]))
    data = table_data("t", table, options(scale=0.5))
    assert data.x.dtype == torch.float32
    assert data.x[1, 2].flatten().tolist() == [10.0, 10.5, 11.0, 11.5]
    assert data.spec.input_shape == (3, 2, 2)


@given(st.integers(2, 60), st.floats(0.01, 0.99))
def test_a_test_share_parts_the_rows_without_loss(count: int, share: float) -> None:
    rows = np.arange(count, dtype=np.float64)[:, None]
    table = arrays(rows, np.linspace(0.5, 1.7, count))
    data = table_data("t", table, options(test_share=share))
    assert data.x_test is not None
    both = torch.cat([data.x, data.x_test]).flatten()
    assert sorted(both.tolist()) == list(range(count))
    # Every row kept its label: both grow with the row's number.
    assert bool((data.x[:, 0].argsort() == data.y.argsort()).all())


def test_fewer_rows_are_picked_once_and_for_all() -> None:
    kept = kept_rows(100, 7)
    assert len(set(kept.tolist())) == 7
    assert kept.tolist() == sorted(kept.tolist()) == kept_rows(100, 7).tolist()
    assert kept_rows(5, 9).tolist() == kept_rows(5, None).tolist() == [0, 1, 2, 3, 4]
    data = table_data("t", arrays(X, np.array([0.5, 1.5, 2.5, 3.5])), options(rows=2))
    assert ((data.x[:, 0] - 1) / 2 + 0.5).tolist() == data.y.tolist()


def test_tables_that_do_not_fit_are_told() -> None:
    with pytest.raises(DataError, match=r"4 rows but 3 labels"):
        table_data("t", arrays(X, Y[:3]), options())
    with pytest.raises(DataError, match=r"a test row has shape .3,., a training row .2,."):
        table_data("t", arrays(X, Y, np.ones((1, 3)), Y[:1]), options())
    with pytest.raises(DataError, match=r"nan or inf"):
        table_data("t", arrays(X * np.nan, Y), options())
    with pytest.raises(DataError, match=r"got 1 class, expected at least 2"):
        table_data("t", arrays(X, Y * 0), options())
    with pytest.raises(DataError, match=r"test_share must be 0, got 0.5"):
        table_data("t", arrays(X, Y, X, Y), options(test_share=0.5))
