"""Pictures: tiny files in the formats of MNIST and CIFAR-10, and folders of pictures."""

import hashlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grasp_tune.config.errors import DataError, MissingDataError
from grasp_tune.config.loader import experiment_from
from grasp_tune.data import Data, images, load_data

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("torch")


def load(**options: Any) -> Data:
    return load_data(experiment_from({"problem": {"dataset": options}}).problem.dataset)


def write_mnist(root: Path, train: np.ndarray, test: np.ndarray) -> None:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, pictures in (("train", train), ("t10k", test)):
        labels = (np.arange(len(pictures)) % 10).astype(np.uint8)
        head = struct.pack(">iiii", 2051, *pictures.shape)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        head = struct.pack(">ii", 2049, len(labels))
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def pictures(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_mnist_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = pictures(1, 12, 28, 28), pictures(2, 3, 28, 28)
    write_mnist(tmp_path, train, test)
    data = load(name="mnist", path=str(tmp_path))
    assert np.array_equal(data.x.numpy(), train[:, None])
    assert data.x_test is not None
    assert np.array_equal(data.x_test.numpy(), test[:, None])
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.pixels is not None
    assert data.pixels.mean == pytest.approx((float((train / 255).mean()),))
    assert data.pixels.std == pytest.approx((float((train / 255).std()),))
    monkeypatch.setenv("GRASP_TUNE_DATA", str(tmp_path))
    plain = load(name="mnist", normalize=False, scale=0.5, rows=5)
    assert len(plain.x) == 5
    assert plain.pixels is not None
    assert (plain.pixels.mean, plain.pixels.std, plain.pixels.scale) == ((0.0,), (1.0,), 0.5)


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_cifar10_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = images.torchvision("the test").datasets.CIFAR10
    folder = tmp_path / kind.base_folder
    folder.mkdir()

    def listed(name: str, content: dict[str, Any]) -> list[str]:
        packed = pickle.dumps(content)
        (folder / name).write_bytes(packed)
        return [name, hashlib.md5(packed).hexdigest()]

    # Rows are red, then green, then blue, as published; only the check sums are ours.
    rows = pictures(3, 4, 3072)
    train = listed("data_batch_1", {"data": rows, "labels": [3, 1, 4, 1]})
    test = listed("test_batch", {"data": rows[:1], "labels": [9]})
    names = [f"class {i}" for i in range(10)]
    meta = listed("batches.meta", {"label_names": names})
    monkeypatch.setattr(kind, "train_list", [train])
    monkeypatch.setattr(kind, "test_list", [test])
    monkeypatch.setattr(kind, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    data = load(name="cifar10", path=str(tmp_path))
    assert np.array_equal(data.x.numpy(), rows.reshape(4, 3, 32, 32))
    assert (data.y.tolist(), data.labels) == ([3, 1, 4, 1], tuple(names))
    (folder / "data_batch_1").write_bytes(b"changed")
    with pytest.raises(MissingDataError, match=r"not complete"):
        load(name="cifar10", path=str(tmp_path))


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
    ],
)
def test_missing_data_says_where_it_belongs_and_how_to_get_it(
    tmp_path: Path, name: str, layout: str
) -> None:
    with pytest.raises(MissingDataError) as caught:
        load(name=name, path=str(tmp_path))
    told = str(caught.value)
    assert f"{name} is not complete in {tmp_path}" in told
    assert layout in told
    assert "problem.dataset.path" in told
    assert "problem.dataset.download: true" in told
    assert isinstance(caught.value, FileNotFoundError)
    assert list(tmp_path.iterdir()) == []  # nothing was fetched


# -- folders -----------------------------------------------------------------------------------


def write_folder(root: Path, **parts: dict[str, list[int]]) -> None:
    """Grey pictures of the given brightness: parts -> classes -> brightness."""
    for part, classes in parts.items():
        for label, values in classes.items():
            folder = root / part / label
            folder.mkdir(parents=True)
            for number, value in enumerate(values):
                Image.new("RGB", (6, 4), (value, value, value)).save(folder / f"{number}.png")


def test_a_folder_per_class_in_the_order_of_names(tmp_path: Path) -> None:
    write_folder(tmp_path, train={"dog": [10, 20], "cat": [30]}, test={"dog": [40]})
    (tmp_path / "train" / "dog" / "notes.txt").write_text("no picture")
    data = load(name="image_folder", path=str(tmp_path), size=5)
    assert data.labels == ("cat", "dog")
    assert data.x.shape == (3, 3, 5, 5)
    assert data.x.dtype == torch.uint8
    assert data.x[:, 0, 0, 0].tolist() == [30, 10, 20]
    assert data.y.tolist() == [0, 1, 1]
    assert data.y_test is not None
    assert data.y_test.tolist() == [1]
    # Brightness 30, 10, 20: mean 20 / 255, variance 200 / 3 / 255^2.
    assert data.pixels is not None
    assert data.pixels.mean == pytest.approx((20 / 255,) * 3)
    assert data.pixels.std == pytest.approx(((200 / 3) ** 0.5 / 255,) * 3)


def test_class_folders_may_stand_at_the_top(tmp_path: Path) -> None:
    write_folder(tmp_path, **{".": {"a": [1], "b": [2, 3]}})
    data = load(name="image_folder", path=str(tmp_path), size=4, channels=1)
    assert data.x.shape == (3, 1, 4, 4)
    assert data.x_test is None
    assert data.labels == ("a", "b")
    few = load(name="image_folder", path=str(tmp_path), size=4, rows=2)
    assert (len(few.x), few.labels) == (2, ("a", "b"))


def test_folders_that_make_no_sense_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("gone", "file"):
        with pytest.raises(MissingDataError, match=r"path: .*; expected .*/train/<class>/<pict"):
            load(name="image_folder", path=str(tmp_path / path))
    (tmp_path / "file").unlink()
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(MissingDataError, match=r"Found no valid file for the classes a"):
        load(name="image_folder", path=str(tmp_path))
    (tmp_path / "train" / "a").rmdir()
    write_folder(tmp_path, train={"b": [1], "c": [2]}, test={"z": [1]})
    with pytest.raises(DataError, match=r"has the class z, which the training"):
        load(name="image_folder", path=str(tmp_path))


def test_pictures_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path, train={"a": [1], "b": [2]})
    (tmp_path / "train" / "a" / "x.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"x\.png: cannot be read as a picture"):
        load(name="image_folder", path=str(tmp_path))


def test_a_pipe_in_place_of_a_picture_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    write_folder(tmp_path, train={"cat": [1], "dog": [2]})
    os.mkfifo(tmp_path / "train/cat/pipe.png")
    with pytest.raises(DataError, match="it is no regular file"):
        load(name="image_folder", path=str(tmp_path), size=4)


def test_large_pictures_and_large_folders_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, train={"a": [1], "b": [2]})
    with pytest.raises(DataError, match=r"needs .* GiB of memory.*max_gib"):
        load(name="image_folder", path=str(tmp_path), size=1024, max_gib=0.001)
    # A few kilobytes on disk, 64 million pixels when opened.
    Image.new("1", (8000, 8000)).save(tmp_path / "train" / "b" / "bomb.png")
    with pytest.raises(DataError, match=r"8000 x 8000 pixels, expected at most 50000000"):
        load(name="image_folder", path=str(tmp_path))


def test_pictures_of_sixteen_bits_keep_their_highest(tmp_path: Path) -> None:
    write_folder(tmp_path, train={"a": [1], "b": [2]})
    deep = (np.arange(16).reshape(4, 4) * 4096).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "train" / "b" / "deep.png")
    data = load(name="image_folder", path=str(tmp_path), size=4, channels=1)
    assert data.x[-1, 0].flatten().tolist() == [16 * k for k in range(16)]


def test_pictures_for_tests_may_be_called_val(tmp_path: Path) -> None:
    write_folder(tmp_path, train={"a": [1], "b": [2]}, val={"a": [3]})
    data = load(name="image_folder", path=str(tmp_path), size=4)
    assert data.x_test is not None and len(data.x_test) == 1
    write_folder(tmp_path, test={"a": [4, 5]})
    data = load(name="image_folder", path=str(tmp_path), size=4)
    assert data.x_test is not None and len(data.x_test) == 2
