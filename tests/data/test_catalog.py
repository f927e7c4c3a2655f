"""Data from functions of the user's own, .npz files, and what comes with scikit-learn."""

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.config.errors import DataError, EntryPointError, MissingDataError
from grasp_tune.config.loader import experiment_from
from grasp_tune.core.errors import MissingExtra
from grasp_tune.data import Data, load_data

SOURCE = """
import numpy as np, torch
from grasp_tune.data import Data

def pair(rows=4):
    return torch.arange(2.0 * rows).reshape(rows, 2), np.arange(rows) % 2

def four():
    x, y = pair()
    return x, y, x[:1], y[:1]

def whole():
    return Data("mine", torch.ones(3, 2), torch.tensor([0.5, 1.5, 2.5]))

class Rows(torch.utils.data.Dataset):
    def __init__(self, count=5):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return torch.full((2,), float(row)), row % 2

def rows():
    return Rows()

def two_loaders():
    return torch.utils.data.DataLoader(Rows(4), batch_size=3), Rows(2)

def shuffled():
    return torch.utils.data.DataLoader(Rows(), batch_size=2, shuffle=True, drop_last=True)

def noisy():
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 40, 40)
    return torch.utils.data.DataLoader(Rows(40), batch_size=2, sampler=sampler)

class Unequal(Rows):
    def __getitem__(self, row):
        return torch.zeros(row + 1), 0

def doubled(rows):
    x, y = torch.utils.data.default_collate(rows)
    return 2 * x, y

def ragged(rows):
    return torch.zeros(len(rows), int(rows[0][0][0]) + 1), torch.zeros(len(rows)), 3

def wrong():
    return 1, 2, 3

def two_pairs():
    return ([[1, 2], [3, 4]], [0, 1]), ([[5, 6]], [1])

def words():
    return [["a"], ["b"]], [0, 1]

def uneven():
    return [[1, 2], [3]], [0, 1]

def sets():
    return {1, 2}, [0, 1]

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory."""
    name = f"own_data_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    import grasp_tune.schedules.promote  # noqa: F401, read while it can be found

    monkeypatch.setattr("sys.path", ["/nowhere"])  # as for an installed command
    return name


def load(name: str, **options: Any) -> Data:
    dataset = {"name": name, "options": options} if options else name
    return load_data(experiment_from({"problem": {"dataset": dataset}}).problem.dataset)


def test_functions_may_give_two_or_four_arrays_or_data(own: str) -> None:
    data = load(f"{own}:pair", rows=3)
    assert data.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data.y.tolist() == [0, 1, 0]
    four = load(f"{own}:four")
    assert four.x_test is not None
    assert four.x_test.tolist() == [[0, 1]]
    pairs = load(f"{own}:two_pairs")
    assert pairs.x_test is not None
    assert (pairs.x.tolist(), pairs.x_test.tolist()) == ([[1, 2], [3, 4]], [[5, 6]])
    assert load(f"{own}:whole").spec.classes is None
    for name in ("words", "sets"):
        with pytest.raises(DataError, match=rf"{name}: inputs hold .*, expected an array of num"):
            load(f"{own}:{name}")


def test_functions_may_give_datasets_and_loaders_of_torch(own: str) -> None:
    data = load(f"{own}:rows")
    assert data.x[:, 0].tolist() == [0, 1, 2, 3, 4] and data.y.tolist() == [0, 1, 0, 1, 0]
    both = load(f"{own}:two_loaders")
    assert both.x_test is not None
    assert (len(both.x), both.x_test.tolist()) == (4, [[0, 0], [1, 1]])
    dataset = {"name": f"{own}:rows", "num_workers": 1, "collate_fn": f"{own}:doubled"}
    read = load_options(**dataset)
    assert read.x[:, 0].tolist() == [0, 2, 4, 6, 8]
    for options in (
        {"name": f"{own}:rows", "collate_fn": f"{own}:ragged"},
        {"name": f"{own}:Unequal"},
    ):
        with pytest.raises(
            EntryPointError, match=r"batches that are no pairs .* expected \(x, y\)"
        ):
            load_options(**options)


def test_rows_of_a_loader_are_the_same_each_time(own: str) -> None:
    assert load(f"{own}:shuffled").x[:, 0].tolist() == [0, 1, 2, 3, 4]  # every row once, in order
    one, two = (load(f"{own}:noisy").x[:, 0].tolist() for _ in range(2))
    assert one == two and one != sorted(one)  # drawn by the sampler


def test_options_that_a_function_does_not_take_are_told(own: str) -> None:
    words = (
        r"dataset: got .*:pair\(rows.*\), got an unexpected keyword argument 'row'; expected .*op"
    )
    with pytest.raises(EntryPointError, match=words):
        load(f"{own}:pair", row=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":wrong", r"returned 3 values, expected \(x, y\)"),
        (":uneven", "returned rows of different shapes"),
        (":gone", "has no 'gone'"),
        (":number", "a int, expected a function"),
        ("x:pair", "whose module cannot be imported"),
    ],
)
def test_functions_that_do_not_fit_are_told(own: str, name: str, message: str) -> None:
    with pytest.raises(EntryPointError, match=f"problem.dataset.name: .*{message}"):
        load(f"{own}{name}")


X = np.array([[0.5, 1.0], [2.0, -3.0], [4.0, 0.0]])


def load_options(**options: Any) -> Data:
    return load_data(experiment_from({"problem": {"dataset": options}}).problem.dataset)


def test_digits_are_pictures_from_0_to_1() -> None:
    data = load_options(name="digits")
    assert data.spec.input_shape == (1, 8, 8)
    assert data.spec.classes == 10
    assert data.x_test is not None
    # 1797 rows; round(0.2 * 1797) = 359 of them are kept aside.
    assert (len(data.x), len(data.x_test)) == (1438, 359)
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)


def test_breast_cancer_is_standardized_unless_told_otherwise() -> None:
    data = load_options(name="breast_cancer", test_share=0)
    assert data.labels == ("malignant", "benign")
    assert data.x_test is None
    assert data.x.mean(0).abs().max() < 1e-5
    assert (data.x.std(0, correction=0) - 1).abs().max() < 1e-4
    assert load_options(name="breast_cancer", standardize=False).x.max() > 1000


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"digits needs scikit-learn.*grasp_tune\[datasets\]"):
        load_options(name="digits")


# -- .npz --------------------------------------------------------------------------------------


def test_npz_gives_its_four_arrays(tmp_path: Path) -> None:
    file = tmp_path / "probe.npz"
    np.savez(
        file, x_train=X.astype("f2"), y_train=np.array([3, 1, 3], "u1"), x_test=X, y_test=[1] * 3
    )
    data = load_options(name="npz", path=str(file), scale=2)
    assert data.name == "probe"
    assert data.x.tolist() == (2 * X).tolist()
    assert data.y.tolist() == [1, 0, 1]
    assert data.y_test is not None
    assert data.y_test.tolist() == [0, 0, 0]
    assert data.labels == ("1", "3")


def test_npz_arrays_may_have_other_names(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", data=X, target=[0.5, 1.5, 2.5])
    data = load_options(name="npz", path=str(tmp_path / "a.npz"), x="data", y="target")
    assert data.spec.classes is None
    assert data.y.tolist() == [0.5, 1.5, 2.5]
    with pytest.raises(DataError, match=r"no array 'x_train', only data, target; .*dataset\.x$"):
        load_options(name="npz", path=str(tmp_path / "a.npz"))


def test_npz_with_python_objects_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (tmp_path / "sprung",)  # type: ignore[return-value]

    np.savez(tmp_path / "a.npz", x_train=np.array([Trap()], object), y_train=np.array([0]))
    with pytest.raises(DataError, match=r"cannot be read as .npz"):
        load_options(name="npz", path=str(tmp_path / "a.npz"))
    assert not (tmp_path / "sprung").exists()


def test_npz_that_would_fill_the_memory_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "bomb.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", b"\0" * (4 << 20))
    assert file.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"needs 0.00391 GiB.*at most 0.001 .*max_gib"):
        load_options(name="npz", path=str(file), max_gib=0.001)


@pytest.mark.parametrize("rows", [10**15, 2**62, -5])
def test_npz_whose_header_lies_is_one_line(tmp_path: Path, rows: int) -> None:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, 3)}}".ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + b"\0" * 64
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("x_train", "y_train"):
            archive.writestr(f"{name}.npy", array)
    with pytest.raises(DataError, match=r"cannot be read as .npz"):
        load_options(name="npz", path=str(tmp_path / "a.npz"))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04broken"])
def test_files_that_are_no_npz_are_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot be read as .npz"):
        load_options(name="npz", path=str(tmp_path / "a.npz"))


def test_npz_arrays_that_make_no_sense_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X[0], y_train=[0, 1])
    with pytest.raises(DataError, match=r"shape \(2,\), expected \(rows, features\)"):
        load_options(name="npz", path=str(tmp_path / "a.npz"))
    np.savez(tmp_path / "a.npz", x_train=X * 1j, y_train=[0, 1, 0])
    with pytest.raises(DataError, match=r"holds complex128, expected real numbers"):
        load_options(name="npz", path=str(tmp_path / "a.npz"))


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(
        MissingDataError, match=r"problem.dataset.path: .*gone.npz is not there; .*s"
    ):
        load_options(name="npz", path=str(tmp_path / "gone.npz"))
    with pytest.raises(MissingDataError, match=r"is a folder; expected an .npz file"):
        load_options(name="npz", path=str(tmp_path))


# -- LIBSVM's text format ----------------------------------------------------------------------


def libsvm(path: Path, **options: Any) -> Data:
    return load_options(name="libsvm", path=str(path), **options)


def test_sparse_rows_become_dense_ones(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text("+1 1:0.5 3:-2e1 # a remark\n-1 2:7\n\n# only a remark\n-1\n")
    data = libsvm(file)
    assert data.x.tolist() == [[0.5, 0, -20], [0, 7, 0], [0, 0, 0]]
    assert (data.y.tolist(), data.labels) == ([1, 0, 0], ("-1", "1"))


def test_index_0_means_counting_from_0(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0 0:1 2:3\n1 1:2\n")
    assert libsvm(tmp_path / "a").x.tolist() == [[1, 0, 3], [0, 2, 0]]
    with pytest.raises(DataError, match=r"cannot be read as LIBSVM \(.*index 0.*"):
        libsvm(tmp_path / "a", zero_based=False)
    (tmp_path / "a").write_text("0 1:1\n1 2:2\n")
    assert libsvm(tmp_path / "a", zero_based=True).x.tolist() == [[0, 1, 0], [0, 0, 2]]


def test_test_rows_have_the_same_features(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n2 2:2\n")
    (tmp_path / "t").write_text("2 4:9\n")
    data = libsvm(tmp_path / "a", test_path=str(tmp_path / "t"))
    assert data.x.tolist() == [[1, 0, 0, 0], [0, 2, 0, 0]]
    assert data.x_test is not None
    assert data.y_test is not None
    assert (data.x_test.tolist(), data.y_test.tolist()) == ([[0, 0, 0, 9]], [1])
    assert libsvm(tmp_path / "a", features=5).x.shape == (2, 5)
    with pytest.raises(DataError, match=r"cannot be read as LIBSVM"):
        libsvm(tmp_path / "a", features=1)


def test_labels_may_be_numbers_to_predict(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n2 1:2\n")
    assert libsvm(tmp_path / "a", task="regression").y.tolist() == [1.0, 2.0]
    (tmp_path / "a").write_text("1.5 1:1\n2 1:2\n")
    assert libsvm(tmp_path / "a").spec.classes is None


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
        "1 9999999999999999999999:1",
        "1 1:1:1",
        "1 \u0661:1",  # a digit, but none of ours
    ],
)
def test_broken_rows_are_told(tmp_path: Path, row: str) -> None:
    (tmp_path / "a").write_text(f"1 1:1\n{row}\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"a: cannot be read as LIBSVM .*; expected a text file with lines such as"
    ):
        libsvm(tmp_path / "a")


def test_rows_too_wide_for_the_memory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 9000000:1\n2 1:1\n")
    with pytest.raises(DataError, match=r"needs 0.0671 GiB.* at most 0.01 .*max_gib"):
        libsvm(tmp_path / "a", max_gib=0.01)  # 2 rows * 9e6 features * 4 bytes = 72e6 bytes


def test_empty_and_missing_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\n# nothing\n")
    with pytest.raises(DataError, match=r"there are no rows"):
        libsvm(tmp_path / "a")
    with pytest.raises(
        MissingDataError, match=r"is not there; expected a text file with lines such"
    ):
        libsvm(tmp_path / "gone")


@given(
    x=st.lists(st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), min_size=2, max_size=6)
)
def test_what_is_written_is_read_back(x: list[list[float]], tmp_path_factory: Any) -> None:
    file = tmp_path_factory.mktemp("libsvm") / "a"
    rows = [" ".join(f"{i}:{v!r}" for i, v in enumerate(row, 1) if v != 0) for row in x]
    file.write_text("".join(f"{n % 2} {row}\n" for n, row in enumerate(rows)) + "0 3:1\n")
    assert np.array_equal(libsvm(file).x.numpy()[:-1], np.array(x, dtype=np.float32))


@pytest.mark.skipif(
    not Path(os.environ.get("GRASP_TUNE_DATA", "-"), "libsvm/a9a").is_file(),
    reason="GRASP_TUNE_DATA names no folder with libsvm/a9a",
)
def test_a9a_as_published() -> None:
    data = libsvm(Path(os.environ["GRASP_TUNE_DATA"], "libsvm/a9a"))
    assert data.spec.classes == 2
    # Every feature of a9a says yes or no, and at most 14 of them say yes.
    assert set(data.x.unique().tolist()) == {0.0, 1.0}
    assert int(data.x.sum(1).max()) == 14
