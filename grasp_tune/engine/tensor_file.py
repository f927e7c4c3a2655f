"""Named tensors in one file: the safetensors format, with a checksum and its owner's name.

Nothing in it can hold code, and any safetensors reader opens it. It is not written and read by the
library, whose bytes cost a second copy of a state each way, whose memory maps end the process where
a disk fails, and whose text for a full disk has no error number. The checksum covers every bit of
header and numbers, the checkpoint's key and its sweep included.
"""

import hashlib
import json
import zlib
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
NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# The checksum comes first in the header, at a place that is known before anything is parsed.
_LEAD, _NO_CHECKSUM = b'{"__metadata__":{"blake2b":"', b"0" * 64
_BODY = len(_LEAD) + len(_NO_CHECKSUM)  # where the header goes on behind the checksum
_FORMAT = "grasp_tune-3"
_PIECE = 2**20  # bytes read at once while the checksum is verified


class DamagedFile(Exception):
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
        """The content; `key` and `sweep` say whose it is: it is refused under any other name."""
        metadata = {"blake2b": _NO_CHECKSUM.decode(), "format": "pt", "made_by": _FORMAT}
        metadata |= {"key": key, "sweep": sweep, "meta": json.dumps(meta)}
        header: dict[str, Any] = {"__metadata__": metadata}
        # Wide numbers first keeps every tensor aligned; the name makes the order unique.
        names, end = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)), 0
        for name in names:
            item, start = tensors[name], end
            if item.dtype not in NAMES:
                raise InputError(f"tensor {name!r} has dtype {item.dtype}, which the format lacks")
            if item.layout is not torch.strided or item.device.type == "meta":
                raise InputError(f"tensor {name!r} is sparse or has no data; make it dense first")
            end += item.numel() * item.element_size()
            entry = {"dtype": NAMES[item.dtype], "shape": list(item.shape)}
            header[name] = {**entry, "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        return cls(text + b" " * (-len(text) % 8), tuple(tensors[name] for name in names))

    @property
    def size(self) -> int:
        return 8 + len(self.header) + sum(t.numel() * t.element_size() for t in self.tensors)

    def write(self, file: BinaryIO) -> None:
        """Write to a file that is empty and can seek."""
        file.write(len(self.header).to_bytes(8, "little"))
        file.write(self.header)
        crc = 0
        for tensor in self.tensors:
            whole = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            raw = whole.reshape(-1).view(torch.uint8).numpy().data  # not copied
            file.write(raw)
            crc = zlib.crc32(raw, crc)
        file.seek(8 + len(_LEAD))
        file.write(_checksum(self.header[_BODY:], crc))


def _checksum(header: bytes, crc: int) -> bytes:
    """Return the checksum of the header behind it and of the numbers' CRC-32.

    That is five times as fast as a hash: all of a state is read and written in each part of a run.
    """
    return hashlib.blake2b(header + crc.to_bytes(4, "little"), digest_size=32).hexdigest().encode()


def read_tensors(
    file: BinaryIO, size: int, key: str = "", sweep: str = ""
) -> tuple[dict[str, Tensor], Meta]:
    """The tensors by name and the meta of a file of `size` bytes; `DamagedFile` where it is not.

    Whatever the file says, no more than `size` bytes are allocated for its numbers.
    """
    length = int.from_bytes(file.read(8), "little")
    if not _BODY < length <= size - 8:
        raise DamagedFile("is truncated, or no checkpoint of grasp_tune")
    header = file.read(length)
    if not header.startswith(_LEAD):
        raise DamagedFile("is no checkpoint of grasp_tune")
    crc = 0
    while piece := file.read(_PIECE):
        crc = zlib.crc32(piece, crc)
    if _checksum(header[_BODY:], crc) != header[len(_LEAD) : _BODY]:
        raise DamagedFile("is damaged: its checksum does not match its content")
    file.seek(8 + length)
    try:
        fields = json.loads(header)
        metadata = fields.pop("__metadata__")
        for what, expected in (("made_by", _FORMAT), ("key", key), ("sweep", sweep)):
            if (given := str(metadata[what])) != expected:
                text = f"its {what} is {given[:120]!r}, expected {expected!r}"
                raise DamagedFile(f"is not this one: {text}")
        found, room = dict[str, Tensor](), size - 8 - length
        for name, entry in fields.items():
            dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
            room -= prod(shape[:64]) * dtype.itemsize
            if room < 0:
                raise DamagedFile(f"is damaged: tensor {name!r} does not fit its place")
            # Memory of its own for each: what the reader copies elsewhere can go at once.
            found[name] = tensor = torch.empty(shape, dtype=dtype)
            if tensor.numel():
                file.readinto(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[attr-defined]
        if room:
            raise DamagedFile("is damaged: its numbers are more than its header says")
        return dict(sorted(found.items())), dict(json.loads(metadata["meta"]))
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError):
        raise DamagedFile("is damaged: its header cannot be read") from None
