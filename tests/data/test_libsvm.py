"""LIBSVM's text format, honest and broken."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.config.errors import DataError, MissingDataError
from grasp_tune.config.loader import experiment_from
from grasp_tune.data import Data, load_data


def load(path: Path, **options: Any) -> Data:
    dataset = {"name": "libsvm", "path": str(path), **options}
    return load_data(experiment_from({"problem": {"dataset": dataset}}).problem.dataset)


def test_sparse_rows_become_dense_ones(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("+1 1:0.5 3:-2e1 # a remark\n-1 2:7\n\n# only a remark\n-1\n")
    data = load(file)
    assert data.x.tolist() == [[0.5, 0, -20], [0, 7, 0], [0, 0, 0]]
    assert (data.y.tolist(), data.labels) == ([1, 0, 0], ("-1", "1"))


def test_index_0_means_counting_from_0(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0 0:1 2:3\n1 1:2\n")
    assert load(tmp_path / "a").x.tolist() == [[1, 0, 3], [0, 2, 0]]
    with pytest.raises(DataError, match=r"has the index 0; expected .*zero_based: true"):
        load(tmp_path / "a", zero_based=False)
    (tmp_path / "a").write_text("0 1:1\n1 2:2\n")
    assert load(tmp_path / "a", zero_based=True).x.tolist() == [[0, 1, 0], [0, 0, 2]]


def test_test_rows_have_the_same_features(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n2 2:2\n")
    (tmp_path / "t").write_text("2 4:9\n")
    data = load(tmp_path / "a", test_path=str(tmp_path / "t"))
    assert data.x.tolist() == [[1, 0, 0, 0], [0, 2, 0, 0]]
    assert data.x_test is not None
    assert data.y_test is not None
    assert (data.x_test.tolist(), data.y_test.tolist()) == ([[0, 0, 0, 9]], [1])
    assert load(tmp_path / "a", features=5).x.shape == (2, 5)
    with pytest.raises(DataError, match=r"has 2 features, but problem.dataset.features is 1"):
        load(tmp_path / "a", features=1)


def test_labels_may_be_numbers_to_predict(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n2 1:2\n")
    assert load(tmp_path / "a", task="regression").y.tolist() == [1.0, 2.0]
    (tmp_path / "a").write_text("1.5 1:1\n2 1:2\n")
    assert load(tmp_path / "a").spec.classes is None


@pytest.mark.parametrize(
    "row",
    [
        "x 1:1",
        "1 1",
        "1 1:",
        "1 :1",
        "1 a:1",
        "1 -1:1",
        "1 2:1 1:1",
        "1 1:1 1:2",
        "1 1:nan",
        "1 1:inf",
        "inf 1:1",
        "1 1:1_0",
        "1 99999999:1",
        "1 9999999999999999999999:1",
        "1 qid:3 1:1",
        "1 1:1:1",
        "1 \u0661:1",  # a digit, but none of ours
    ],
)
def test_broken_rows_are_told_by_their_line(tmp_path: Path, row: str) -> None:
    (tmp_path / "a").write_text(f"1 1:1\n{row}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a: line 2: got .*, expected a number, then index:value"):
        load(tmp_path / "a")


def test_rows_too_wide_for_the_memory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 9000000:1\n2 1:1\n")
    with pytest.raises(DataError, match=r"needs 0.0671 GiB.* at most 0.01 .*max_gib"):
        load(tmp_path / "a", max_gib=0.01)  # 2 rows * 9e6 features * 4 bytes = 72e6 bytes


def test_empty_and_missing_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\n# nothing\n")
    with pytest.raises(DataError, match=r"has no rows"):
        load(tmp_path / "a")
    (tmp_path / "a").write_text("1\n2\n")
    with pytest.raises(DataError, match=r"no row has a value"):
        load(tmp_path / "a")
    with pytest.raises(
        MissingDataError, match=r"is not there; expected a text file with lines such"
    ):
        load(tmp_path / "gone")


@given(
    x=st.lists(st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), min_size=2, max_size=6)
)
def test_what_is_written_is_read_back(x: list[list[float]], tmp_path_factory: Any) -> None:
    file = tmp_path_factory.mktemp("libsvm") / "a"
    rows = [" ".join(f"{i}:{v!r}" for i, v in enumerate(row, 1) if v != 0) for row in x]
    file.write_text("".join(f"{n % 2} {row}\n" for n, row in enumerate(rows)) + "0 3:1\n")
    assert np.array_equal(load(file).x.numpy()[:-1], np.array(x, dtype=np.float32))


@pytest.mark.skipif(
    not Path(os.environ.get("GRASP_TUNE_DATA", "-"), "libsvm/a9a").is_file(),
    reason="GRASP_TUNE_DATA names no folder with libsvm/a9a",
)
def test_a9a_as_published() -> None:
    data = load(Path(os.environ["GRASP_TUNE_DATA"], "libsvm/a9a"))
    assert data.spec.classes == 2
    # Every feature of a9a says yes or no, and at most 14 of them say yes.
    assert set(data.x.unique().tolist()) == {0.0, 1.0}
    assert int(data.x.sum(1).max()) == 14
