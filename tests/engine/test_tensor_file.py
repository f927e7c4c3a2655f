"""The file format: readable by others, covered by its checksum bit by bit, unable to run code."""

import io
import json
import pickle
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grasp_tune.core.errors import InputError
from grasp_tune.engine.tensor_file import Content, DamagedFile, Meta, read_tensors

SMALL = {"w": torch.tensor([[1.5, -2.0, 0.25]]), "n": torch.tensor(7), "b": torch.tensor([True])}
META: Meta = {"step": 12, "loss": 0.1, "name": "cell é 1"}


def encode(tensors: dict[str, Tensor], meta: Meta, key: str = "", sweep: str = "") -> bytes:
    file = io.BytesIO()
    Content.of(tensors, meta, key, sweep).write(file)
    return file.getvalue()


def decode(data: bytes, key: str = "", sweep: str = "") -> tuple[dict[str, Tensor], Meta]:
    return read_tensors(io.BytesIO(data), len(data), key, sweep)


def test_safetensors_reads_the_file(tmp_path: Path) -> None:
    tensors = {
        "half": torch.arange(5).to(torch.bfloat16),
        "flag": torch.tensor([True, False, True]),
        "wide": torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        "count": torch.tensor(5),
        "empty": torch.zeros(0, 4),
        'odd "name" é\n': torch.ones(2),
    }
    path = tmp_path / "file.safetensors"
    path.write_bytes(encode(tensors, META))
    found = safetensors.torch.load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with safetensors.safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
    assert metadata is not None
    assert metadata["format"] == "pt"
    assert all(isinstance(value, str) for value in metadata.values())


def test_the_same_content_gives_the_same_bytes_in_any_order() -> None:
    assert encode(SMALL, META) == encode(dict(reversed(SMALL.items())), META)
    assert Content.of(SMALL, META).size == len(encode(SMALL, META))


def test_a_file_knows_its_key_and_its_sweep() -> None:
    whole = encode(SMALL, META, "run001-state", "4f3a")
    assert decode(whole, "run001-state", "4f3a")[1] == META
    with pytest.raises(DamagedFile, match="its key is 'run001-state', expected 'run002-state'"):
        decode(whole, "run002-state", "4f3a")
    with pytest.raises(DamagedFile, match="its sweep is '4f3a', expected '77b0'"):
        decode(whole, "run001-state", "77b0")


def test_every_flipped_bit_is_noticed() -> None:
    whole = encode(SMALL, META)
    decode(whole)
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            with pytest.raises(DamagedFile):
                decode(bytes(damaged))


def test_every_truncation_and_any_addition_is_noticed() -> None:
    whole = encode(SMALL, META)
    for length in range(len(whole)):
        with pytest.raises(DamagedFile):
            decode(whole[:length])
    for extra in (b"\0", whole):
        with pytest.raises(DamagedFile, match="checksum does not match"):
            decode(whole + extra)


@given(data=st.binary(max_size=300), cut=st.integers(0, 400))
@settings(max_examples=300)
def test_any_bytes_are_refused(data: bytes, cut: int) -> None:
    whole = encode(SMALL, META)
    for foreign in (data, whole[:cut] + data + whole[cut + len(data) :]):
        if foreign != whole:
            with pytest.raises(DamagedFile):
                decode(foreign)


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ([2**62, 0], [0, 0]),
        ([10**30, 0], [0, 0]),
        ([-1], [0, -4]),
        ([1.0], [0, 4]),
        ([True], [0, 4]),
        ([1], [0, 8]),
        ([1], [4, 8]),
        ([2**40], [0, 2**42]),
        ("ab", [0, 4]),
        ([1], [0]),
        ([1], None),
    ],
)
def test_a_header_that_lies_allocates_nothing(shape: object, offsets: object) -> None:
    fields = {
        "__metadata__": {"blake2b": "0" * 64, "made_by": "grasp_tune-3", "meta": "{}"},
        "x": {"dtype": "F32", "shape": shape, "data_offsets": offsets},
    }
    header = json.dumps(fields, separators=(",", ":")).encode()
    with pytest.raises(DamagedFile):
        decode(len(header).to_bytes(8, "little") + header + b"\0" * 4)


class Bomb:
    """Raises if anyone unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code ran')",)


def test_files_of_others_are_refused_and_run_no_code() -> None:
    archive = io.BytesIO()
    torch.save({"w": torch.ones(300)}, archive)
    plain = safetensors.torch.save({"w": torch.ones(300)}, {"format": "pt"})
    for data in (pickle.dumps(Bomb()), pickle.dumps(Bomb(), 0) * 50, archive.getvalue(), b""):
        with pytest.raises(DamagedFile, match="no checkpoint of grasp_tune"):
            decode(data)
    with pytest.raises(DamagedFile, match="is no checkpoint of grasp_tune"):
        decode(plain)


def test_what_the_format_cannot_hold_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"'x' has dtype torch\.complex128, which the format lacks"
    ):
        Content.of({"x": torch.zeros(1, dtype=torch.complex128)}, {})
    with pytest.raises(InputError, match="is sparse or has no data"):
        Content.of({"x": torch.eye(2).to_sparse()}, {})
    with pytest.raises(InputError, match="is sparse or has no data"):
        Content.of({"x": torch.empty(2, device="meta")}, {})
