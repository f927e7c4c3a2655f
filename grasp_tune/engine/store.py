"""What a worker asks of whoever keeps its checkpoints: named tensors by key.

A checkpoint is named tensors and a few numbers or words, never an object: reading one cannot run
code. Where the bytes are is decided elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from grasp_tune.engine.tensor_file import Meta


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was written under a key; the tensors are the reader's own, in main memory, by name."""

    tensors: dict[str, Tensor]
    meta: Meta


class Store(Protocol):
    """Checkpoints by key. A key is 1 to 120 of a-z, 0-9, dot, dash, underscore; no dot first."""

    def write(self, key: str, tensors: Mapping[str, Tensor], meta: Meta) -> None:
        """Keep a copy under the key, in the place of what was there."""

    def read(self, key: str) -> Checkpoint:
        """What was written, bit for bit; `CheckpointError` where it is missing or damaged."""

    def exists(self, key: str) -> bool:
        """Whether something is kept under the key; only `read` says whether it is whole."""

    def delete(self, key: str) -> None:
        """Forget the key; nothing happens where it is unknown."""

    def keys(self) -> tuple[str, ...]:
        """All keys, sorted."""
