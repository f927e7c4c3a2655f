"""Named tensors in one file: the safetensors format, with a checksum and its owner's name.

The file is eight bytes with the header's length, the header (JSON) and the raw numbers. Any
safetensors reader opens it. It is written and read here, and not by the library, for three reasons:

- A state of 10^7 numbers by four costs no second copy of 160 MB on its way to or from the disk. The
  library's bytes cost one each way; its memory maps end the process where a disk fails.
- A full disk is an `OSError` with its number. The library gives a text, and picks temporary names
  of its own, which nobody would clean up after a kill.
- The checksum covers every bit of header and numbers, the checkpoint's key and its sweep included.

Nothing in the format can hold code.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import torch
from torch import Tensor

from grasp_tune.core.errors import InputError

Meta = dict[str, str | int | float]

_DTYPES: dict[str, torch.dtype] = {
    f"{letter}{bits}": getattr(torch, f"{kind}{bits}")
    for letter, kind in (("F", "float"), ("I", "int"), ("U", "uint"))
    for bits in (8, 16, 32, 64)
    if hasattr(torch, f"{kind}{bits}")
}
_DTYPES |= {"BF16": torch.bfloat16, "BOOL": torch.bool, "C64": torch.complex64}
_DTYPES |= {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# The checksum comes first in the header, at a place that is known before anything is parsed; it is
# computed with zeros in that place.
_LEAD = b'{"__metadata__":{"blake2b":"'
_NO_CHECKSUM = b"0" * 64
_PLACE = slice(len(_LEAD), len(_LEAD) + len(_NO_CHECKSUM))  # of the checksum in the header
_FORMAT = "grasp_tune-2"
_HEADER_LIMIT = 2**25  # bytes; some 200,000 tensors, and parsing takes memory many times over
_MOST_SIZES = 64  # dimensions of a tensor; no framework has more


class DamagedFile(ValueError):
    """What is wrong with a file, as the end of a sentence that begins with its name."""


@dataclass(frozen=True, slots=True)
class Content:
    """What will be written: the header, still without checksum, and the tensors in file order."""

    header: bytes
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, tensors: Mapping[str, Tensor], meta: Meta, key: str = "", sweep: str = ""
    ) -> "Content":
        """The content for these tensors; raises `InputError` for what the format cannot hold.

        key, sweep: whose file it is; `read_tensors` refuses it under any other name.
        """
        for name, value in meta.items():
            if not isinstance(value, str | int | float):
                raise InputError(f"meta[{name!r}] is {value!r}, but must be text or a number")
        metadata = {"blake2b": _NO_CHECKSUM.decode(), "format": "pt", "made_by": _FORMAT}
        metadata |= {"key": key, "sweep": sweep, "meta": json.dumps(meta)}
        header: dict[str, Any] = {"__metadata__": metadata}
        # Wide numbers first keeps every tensor aligned; the name makes the order unique.
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        end = 0
        for name in names:
            tensor, start = tensors[name], end
            _check(name, tensor)
            end += tensor.numel() * tensor.element_size()
            header[name] = {
                "dtype": _NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        return cls(text + b" " * (-len(text) % 8), tuple(tensors[name] for name in names))

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return 8 + len(self.header) + sum(t.numel() * t.element_size() for t in self.tensors)

    def write(self, file: BinaryIO) -> None:
        """Write all of it to a file that is empty and can seek."""
        file.write(len(self.header).to_bytes(8, "little"))
        file.write(self.header)
        checksum = hashlib.blake2b(self.header, digest_size=32)
        for tensor in self.tensors:
            whole = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            raw = whole.reshape(-1).view(torch.uint8).numpy().data  # not copied
            file.write(raw)
            checksum.update(raw)
        file.seek(8 + _PLACE.start)
        file.write(checksum.hexdigest().encode())


def read_tensors(
    file: BinaryIO, size: int, key: str = "", sweep: str = ""
) -> tuple[dict[str, Tensor], Meta]:
    """The tensors by name and the meta of a file of `size` bytes, its checksum verified.

    Raises `DamagedFile`, also where the file was written under another key or by another sweep.
    Whatever the file says, no more than `size` bytes are allocated for its numbers.
    """
    length = int.from_bytes(file.read(8), "little")
    if not _PLACE.stop < length <= min(size - 8, _HEADER_LIMIT):
        raise DamagedFile("is truncated, or no checkpoint of grasp_tune")
    header = file.read(length)
    if not header.startswith(_LEAD):
        raise DamagedFile("is no checkpoint of grasp_tune")
    if sum(header.count(mark) for mark in (b"[", b"{", b",")) > length // 4 + 100:
        raise DamagedFile("is damaged: its header cannot be read")  # all brackets: fills the memory
    checksum = hashlib.blake2b(
        header[: _PLACE.start] + _NO_CHECKSUM + header[_PLACE.stop :], digest_size=32
    )
    try:
        fields = json.loads(header)
        metadata = fields.pop("__metadata__")
        if metadata["made_by"] != _FORMAT:
            raise DamagedFile(f"has format {metadata['made_by']!r}, expected {_FORMAT!r}")
        entries = _checked_entries(fields, size - 8 - length)
        tensors: dict[str, Tensor] = {}
        for name, (dtype, shape) in entries.items():  # in the order of the file
            # Memory of its own for each: what the reader copies elsewhere can go at once.
            tensors[name] = torch.empty(shape, dtype=dtype)
            if tensors[name].numel():
                raw = tensors[name].reshape(-1).view(torch.uint8).numpy()
                if file.readinto(raw) != raw.nbytes:  # type: ignore[attr-defined]
                    raise DamagedFile("is truncated")
                checksum.update(raw.data)
        if checksum.hexdigest().encode() != header[_PLACE]:
            raise DamagedFile("is damaged: its checksum does not match its content")
        for what, expected in (("key", key), ("sweep", sweep)):
            if (found := str(metadata[what])) != expected:
                raise DamagedFile(
                    f"is not this one: its {what} is {found[:120]!r}, expected {expected!r}"
                )
        return dict(sorted(tensors.items())), dict(json.loads(metadata["meta"]))
    except DamagedFile:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError):
        raise DamagedFile("is damaged: its header cannot be read") from None


def _checked_entries(
    fields: dict[str, Any], size: int
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """The type and shape of each tensor; all of them fill `size` bytes without a gap."""
    entries, end = {}, 0
    for name, entry in fields.items():
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        plain = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
        # Many sizes: their product would be a number without end.
        if not plain or len(shape) > _MOST_SIZES:
            raise DamagedFile(f"is damaged: tensor {name!r} has no proper shape")
        if start != end or stop - start != prod(shape) * dtype.itemsize:
            raise DamagedFile(f"is damaged: tensor {name!r} does not fit its place")
        entries[name], end = (dtype, shape), stop
    if end != size:
        raise DamagedFile(f"is truncated, or too long: {end} bytes of numbers expected, got {size}")
    return entries


def _check(name: str, tensor: Tensor) -> None:
    """Refuse what the format has no room for."""
    if name.encode(errors="ignore").decode() != name:
        raise InputError(f"tensor name {name!r} is no proper text")
    if name == "__metadata__":
        raise InputError("a tensor is called '__metadata__', a name that the format keeps")
    if tensor.dtype not in _NAMES:
        raise InputError(f"tensor {name!r} has dtype {tensor.dtype}, which the format lacks")
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise InputError(f"tensor {name!r} is sparse or has no data; make it dense first")
