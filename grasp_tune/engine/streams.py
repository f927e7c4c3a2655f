"""Minibatches by address: the batch of call t is a function of (seed, purpose, t).

A task that is repeated, moved or split sees the same batches, and all runs see the same ones, so
they are compared on equal terms. No minibatch serves two purposes by design.
"""

import math
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grasp_tune.core.errors import ProblemError
from grasp_tune.core.random_streams import IndexStream, address
from grasp_tune.engine.problem import Batch, Columns, row_count

_END = object()
BLOCK = 256  # minibatches whose rows are drawn in one go

# Training, gradients and values at x0, the choice on training data and on held-out data; "exact"
# goes through all data, and has an address for the noise of the model alone.
PURPOSES = ("train", "probe", "value", "ensemble", "validation", "exact")


# Of the three generators that user code may draw from; NumPy's is the old one, as in such code.
def _states() -> tuple[Tensor, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def _set_states(states: tuple[Tensor, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


def seed_globally(number: int, *, cpu_only: bool) -> None:
    """Set the generators that user code may draw from: torch's, NumPy's and Python's."""
    # The first takes a tenth of the time of the second.
    (torch.default_generator if cpu_only else torch).manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)


_turn = threading.RLock()  # whose random numbers the generators give: all threads share them


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_new_turn)  # its holder may be a thread that the child lacks


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Give the caller's generators back as they were; threads take turns."""
    with _turn:
        before = _states()
        try:
            yield
        finally:
            _set_states(before)


@contextmanager
def fixed_randomness(seed: int, *path: str | int) -> Iterator[None]:
    """Seed torch, NumPy and `random` by address inside the block, and put them back after it."""
    with untouched_randomness():
        seed_globally(address(seed, *path) % 2**63, cpu_only=False)
        yield


class Stream:
    """The minibatches of one purpose, by number."""

    def __init__(
        self, data: Any, batch_size: int, seed: int, purpose: str, device: torch.device
    ) -> None:
        self._data, self._seed, self._purpose, self._device = data, seed, purpose, device
        self._size, self._count = batch_size, row_count(data)
        self._index = IndexStream(seed, (purpose,), batch_size, self._count or 1)
        self._block, self._rows = -1, torch.empty(0)
        if purpose == "validation":
            draw = torch.Generator().manual_seed(address(seed, purpose) % 2**63)
            self._order = torch.randperm(self._count or 1, generator=draw)
        self._position: float = math.inf  # of the batch of an iterable that comes next

    def batch(self, call: int) -> Batch:
        """Return the minibatch of oracle call `call`, on the device."""
        if self._count is None:
            return _to(self._read(call), self._device)
        if isinstance(self._data, Columns):
            return _to(self._data.take(self.rows(call)), self._device)
        with fixed_randomness(self._seed, "items", self._purpose, call):
            picked = self._data.take(self.rows(call))
        return _to(picked, self._device)

    def rows(self, call: int) -> Tensor:
        """Return the row numbers of a minibatch, drawn with replacement: answers are independent.

        Not so validation rows, often fewer than are drawn: one pass after the other, shuffled.
        """
        if self._purpose == "validation":
            place = torch.arange(call * self._size, (call + 1) * self._size)
            return self._order[place % len(self._order)]
        block, at = divmod(call, BLOCK)
        if block != self._block:
            self._rows = torch.from_numpy(self._index.block(block * BLOCK, BLOCK))
            self._block = block
        return self._rows[at]

    def _begin(self) -> Iterator[Batch]:
        data = self._data() if callable(self._data) else self._data
        if not hasattr(data, "__iter__"):
            got = f"the function gave a {type(data).__name__}"
            raise ProblemError(f"data: {got}, expected an iterable of batches")
        return iter(data)

    def _read(self, call: int) -> Batch:
        """Return a batch of an iterable, which has no addresses, only an order.

        It is read again when it ends; batches before the one that is wanted are dropped.
        """
        if call < self._position:
            with fixed_randomness(self._seed, "iterable", self._purpose):
                self._items, self._position = self._begin(), 0
                self._states = _states()
        with untouched_randomness():
            _set_states(self._states)
            try:
                while self._position <= call:
                    if (item := next(self._items, _END)) is _END:
                        self._items = self._begin()  # its random numbers go on: it may shuffle
                        if (item := next(self._items, _END)) is _END:
                            raise ProblemError("data: the iterable gave no batch")
                    self._position += 1
            finally:
                self._states = _states()
        return item


def _to(item: Any, device: torch.device) -> Any:
    if isinstance(item, Tensor):
        return item if item.device == device else item.to(device, non_blocking=True)
    if isinstance(item, dict):
        return {key: _to(value, device) for key, value in item.items()}
    if isinstance(item, tuple | list) and not hasattr(item, "to"):
        moved = [_to(value, device) for value in item]
        return type(item)(*moved) if hasattr(item, "_fields") else type(item)(moved)
    return item.to(device) if hasattr(item, "to") else item  # packed sequences, tokenizers' batches


def full_batches(data: Any, device: torch.device, size: int = 1024) -> Iterator[tuple[Batch, int]]:
    """Yield the whole data set in order, in chunks with their numbers of rows."""
    if (count := row_count(data)) is None:
        finite = "a finite data set (a tuple of tensors or a Dataset); an endless iterable has none"
        raise ProblemError(f"data: exact gradients need {finite}")
    for rows in torch.arange(count).split(size):
        yield _to(data.take(rows), device), len(rows)
