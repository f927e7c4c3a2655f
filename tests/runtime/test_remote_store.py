"""Checkpoints on a pyarrow file system that is no folder of this machine."""

from pathlib import Path

import pytest
import torch

from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.runtime.remote_store import store_on
from tests.runtime.test_shared_storage import remote


def test_a_remote_store_keeps_what_a_folder_keeps(tmp_path: Path) -> None:
    store = store_on(remote(tmp_path), "deep/checkpoints")
    assert store.keys() == ()
    tensors = {"param.a": torch.arange(6.0).reshape(2, 3), "buffer.n": torch.tensor(4)}
    store.write("x0", tensors, {"count": 3})
    found = store.read("x0")
    assert found.meta == {"count": 3}
    assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)
    assert store.keys() == ("x0",)
    assert store.exists("x0")
    assert (tmp_path / "deep/checkpoints/x0.safetensors").is_file()
    store.delete("x0")
    store.delete("x0")
    assert not store.exists("x0")
    with pytest.raises(CheckpointError, match="checkpoint x0 is missing") as error:
        store.read("x0")
    assert error.value.key == "x0"
    with pytest.raises(InputError, match="checkpoint key"):
        store.read("../x0")


def test_a_damaged_remote_checkpoint_is_named(tmp_path: Path) -> None:
    store = store_on(remote(tmp_path), "checkpoints")
    store.write("x0", {"a": torch.ones(3)}, {})
    path = tmp_path / "checkpoints/x0.safetensors"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="truncated") as error:
        store.read("x0")
    assert error.value.key == "x0"
