"""Data from functions of the user's own, .npz files, and what comes with scikit-learn."""

import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grasp_tune.config.errors import DataError, EntryPointError, MissingDataError
from grasp_tune.config.loader import experiment_from
from grasp_tune.config.section import Section
from grasp_tune.core.errors import MissingExtra
from grasp_tune.data import Data, load_data

SOURCE = """
import numpy as np, torch
from grasp_tune.config import Data

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

def doubled(rows):
    x, y = torch.utils.data.default_collate(rows)
    return 2 * x, y

def ragged(rows):
    return torch.zeros(len(rows), int(rows[0][0][0]) + 1), torch.zeros(len(rows)), 3

def wrong():
    return 1, 2, 3

number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory."""
    name = f"own_data_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
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
    assert load(f"{own}:whole").spec.classes is None


def test_functions_may_give_datasets_and_loaders_of_torch(own: str) -> None:
    data = load(f"{own}:rows")
    assert data.x[:, 0].tolist() == [0, 1, 2, 3, 4] and data.y.tolist() == [0, 1, 0, 1, 0]
    both = load(f"{own}:two_loaders")
    assert both.x_test is not None
    assert (len(both.x), both.x_test.tolist()) == (4, [[0, 0], [1, 1]])
    dataset = {"name": f"{own}:rows", "num_workers": 1, "collate_fn": f"{own}:doubled"}
    read = load_options(**dataset)
    assert read.x[:, 0].tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(EntryPointError, match=r"batches that are no pairs .* expected \(x, y\)"):
        load_options(name=f"{own}:rows", collate_fn=f"{own}:ragged")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":wrong", r"returned 3 values, expected \(x, y\)"),
        (":gone", "has no 'gone'"),
        (":number", "a int, expected a function"),
        ("x:pair", "whose module cannot be imported"),
    ],
)
def test_functions_that_do_not_fit_are_told(own: str, name: str, message: str) -> None:
    with pytest.raises(EntryPointError, match=f"problem.dataset.name: .*{message}"):
        load(f"{own}{name}")


def test_a_section_of_another_kind_is_our_own_mistake() -> None:
    with pytest.raises(TypeError, match=r"expected a problem.dataset section"):
        load_data(Section())


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
    with pytest.raises(DataError, match=r"more than memory holds|cannot be read as .npz"):
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
