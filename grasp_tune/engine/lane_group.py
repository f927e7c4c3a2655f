"""Workers that share the lanes of a step: each computes some, and all make the same step.

Only gradients are exchanged, once a step. Lanes are the leaves of one binary tree. Each worker
sends the largest subtrees that lie within its share, and they are added in the same order
everywhere, so that the bits do not depend on who computed which. Who takes how many follows from
the time that each of them took, which travels with the gradients: a slow worker's share shrinks.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any
from urllib.parse import unquote, urlsplit

import torch
import torch.distributed
from torch import Tensor

from grasp_tune.core.errors import SearchError

Gradients = list[Tensor | None]
PATIENCE = timedelta(minutes=5)  # for a worker that is slower than the others
BEGINNING = timedelta(seconds=60)  # for all workers to meet
MEMORY = 0.8  # weight of the past in a worker's measured time of a lane
WORTH = 0.9  # shares are changed where a step is expected to take at most this part of its time

_DISTRIBUTED: Any = torch.distributed  # stores and groups are not in its typed interface


class GroupLost(SearchError):
    """Another worker of the group is gone; the task can be run again by whoever is left."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place in a group."""

    rank: int  # the first one, 0, writes checkpoints and answers for the group
    size: int
    address: str  # where they meet: file:///path or tcp://host:port/name


class LaneSum:
    """The sum of the lanes' gradients, in pairs, then pairs of pairs, and so on.

    What is left over at the end is added from the last to the first. At most log2(lanes) + 1 sums
    are held at once. `first` is the number of the first lane that is added.
    """

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self.parts: list[tuple[int, int, Gradients]] = []  # (first lane, lanes, their sum)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the next lane; None stands for a parameter that the loss did not use."""
        self.add_subtree(1, [None if item is None else item.clone() for item in gradients])

    def add_subtree(self, lanes: int, total: Gradients) -> None:
        """Add the sum of the next lanes, which is taken over."""
        self.parts.append((self._next, lanes, total))
        self._next += lanes
        while len(self.parts) > 1:
            (first, left, _), (_, right, _) = self.parts[-2:]
            if left != right or first % (2 * left):
                return
            self._merge()

    def total(self) -> Gradients:
        while len(self.parts) > 1:
            self._merge()
        return self.parts[0][2]

    def _merge(self) -> None:
        (_, more, right), (first, count, left) = self.parts.pop(), self.parts.pop()
        pairs = zip(left, right, strict=True)
        added = [a if b is None else b if a is None else a.add_(b) for a, b in pairs]
        self.parts.append((first, count + more, added))


class Shares:
    """How many lanes each worker takes: as many as it does in the time of the others."""

    def __init__(self, workers: int) -> None:
        self._seconds = [0.0] * workers  # of a lane; 0: not measured yet
        self.counts: list[int] = []

    def of(self, lanes: int) -> list[range]:
        """Return the lanes of each worker, in order: at least one of them."""
        if sum(self.counts) != lanes:
            self.counts = self._best(lanes)
        pairs = zip(self.counts, accumulate(self.counts), strict=True)
        return [range(stop - count, stop) for count, stop in pairs]

    def learn(self, seconds: Sequence[float]) -> None:
        """Take in how long each worker was busy with its lanes; the same numbers in all workers."""
        for rank, (spent, count) in enumerate(zip(seconds, self.counts, strict=True)):
            past = self._seconds[rank] or spent / count
            self._seconds[rank] = MEMORY * past + (1.0 - MEMORY) * spent / count
        better = self._best(sum(self.counts))
        if max(self._ends(better)) < WORTH * max(self._ends(self.counts)):
            self.counts = better

    def _best(self, lanes: int) -> list[int]:
        counts = [1] * len(self._seconds)
        while sum(counts) < lanes:
            ends = self._ends([count + 1 for count in counts])
            counts[ends.index(min(ends))] += 1
        return counts

    def _ends(self, counts: Sequence[int]) -> list[float]:
        return [count * (each or 1.0) for count, each in zip(counts, self._seconds, strict=True)]


class LaneGroup:
    """The group as one of its workers sees it; a context, which meets the others and parts."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self._shares, self._begun = Shares(seat.size), 0.0

    def __enter__(self) -> "LaneGroup":
        try:
            self._group = _meet(self.seat)
        except (RuntimeError, OSError) as error:
            raise GroupLost(f"the workers of a step did not meet: {error}") from None
        return self

    def __exit__(self, *error: object) -> None:
        del self._group  # closes the connections, so that the others need not wait for this one

    def own(self, lanes: int) -> range:
        """Return which of the lanes this worker computes now."""
        self._begun = time.perf_counter()
        return self._shares.of(lanes)[self.seat.rank]

    def exchange(
        self, tree: LaneSum, losses: Sequence[Tensor], like: Sequence[Tensor]
    ) -> tuple[Gradients, list[Tensor]]:
        """Return the sum over all lanes and their losses; `like`: tensors as the gradients are."""
        shares = self._shares.of(sum(self._shares.counts))
        numbers = [*map(float, losses), time.perf_counter() - self._begun]
        sums = [_packed(total, like) for _, _, total in tree.parts]
        packed = torch.cat([torch.tensor(numbers, dtype=torch.float64).view(torch.uint8), *sums])
        size = len(sums[0])  # all send as much as the one with the most
        sizes = [8 * (len(share) + 1) + size * len(_subtrees(share)) for share in shares]
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        own[: len(packed)] = packed
        messages = [torch.empty_like(own) for _ in shares]
        try:
            self._group.allgather([messages], [own]).wait()
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason"])[0]
            raise GroupLost(f"another worker of the step is gone: {reason}") from None
        whole, spread, seconds = LaneSum(), list[Tensor](), list[float]()
        for share, message in zip(shares, messages, strict=True):
            end = 8 * (len(share) + 1)
            *values, spent = message[:end].clone().view(torch.float64).unbind()
            spread.extend(value.to(losses[0]) for value in values)
            seconds.append(float(spent))
            for lanes, row in zip(_subtrees(share), message[end:].split(size), strict=False):
                whole.add_subtree(lanes, _unpacked(row, like))
        self._shares.learn(seconds)
        return whole.total(), spread


def _subtrees(share: range) -> list[int]:
    """Return the lanes of each of the largest subtrees within a share, in order."""
    first, found = share.start, list[int]()
    while first < share.stop:
        room = 1 << (share.stop - first).bit_length() - 1  # the largest power of two that fits
        found.append(min(first & -first or room, room))
        first += found[-1]
    return found


def _packed(total: Gradients, like: Sequence[Tensor]) -> Tensor:
    # The bytes of the numbers, and which of the gradients there are.
    if any(item is not None and item.is_sparse for item in total):
        raise SearchError("workers cannot share lanes of sparse gradients; use one worker")
    pairs = zip(total, like, strict=True)
    dense = [torch.zeros_like(x) if item is None else item.detach() for item, x in pairs]
    rows = [item.contiguous().view(-1).view(torch.uint8).cpu() for item in dense]
    there = torch.tensor([item is not None for item in total], dtype=torch.uint8)
    return torch.cat([*rows, there])


def _unpacked(row: Tensor, like: Sequence[Tensor]) -> Gradients:
    *parts, there = row.split([x.numel() * x.element_size() for x in like] + [len(like)])
    return [
        # Copied, so that it lies where numbers of its kind may lie.
        part.clone().view(x.dtype).view(x.shape).to(x.device) if given else None
        for part, x, given in zip(parts, like, there.tolist(), strict=True)
    ]


def meeting_place(host: str) -> tuple[str, object]:
    """Return an address at which groups can meet, and what must be kept as long as it is used."""
    server = _DISTRIBUTED.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return f"tcp://{host}:{server.port}", server


def _meet(seat: Seat) -> Any:
    """Return a process group for a seat; the global one of `torch.distributed` is the user's."""
    place = urlsplit(seat.address)
    if place.scheme == "file":
        store: Any = _DISTRIBUTED.FileStore(unquote(place.path), seat.size)
        own = "127.0.0.1"
    else:
        port = place.port or 0
        server = _DISTRIBUTED.TCPStore(place.hostname or "", port, timeout=BEGINNING)
        store = _DISTRIBUTED.PrefixStore(place.path, server)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((place.hostname, port))  # sends nothing; chooses the interface
            own = probe.getsockname()[0]
    store.set_timeout(BEGINNING)
    options = _DISTRIBUTED.ProcessGroupGloo._Options()
    options._devices = [_DISTRIBUTED.ProcessGroupGloo.create_device(hostname=own)]
    options._timeout = PATIENCE
    return _DISTRIBUTED.ProcessGroupGloo(store, seat.rank, seat.size, options)
