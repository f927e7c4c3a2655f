"""Workers that share the lanes of a step: each computes some, and all make the same step.

The model is replicated, and every worker makes every step; only gradients are exchanged, once a
step. Each worker adds its own lanes as a subtree of the one binary tree over all lanes, and the
subtrees are added in the same order everywhere, so that the bits do not depend on how many workers
there are.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

import torch
import torch.distributed
from torch import Tensor

from grasp_tune.core.errors import SearchError

Gradients = list[Tensor | None]
PATIENCE = timedelta(minutes=5)  # for a worker that is slower than the others
BEGINNING = timedelta(seconds=60)  # for all workers to meet


_DISTRIBUTED: Any = torch.distributed  # stores and groups are not in its typed interface


class GroupLost(SearchError):
    """Another worker of the group is gone; the task can be run again by whoever is left."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place in a group."""

    rank: int  # the first one, 0, writes checkpoints and answers for the group
    size: int  # a power of two
    address: str  # where they meet: file:///path or tcp://host:port/name


class LaneSum:
    """The sum of the lanes' gradients as one binary tree, whatever the number of lanes.

    Lanes are added in pairs, then pairs of pairs, and so on; what is left over at the end is added
    from the last to the first. At most log2(lanes) + 1 sums are held at once.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[int, Gradients]] = []  # (lanes below it, their sum)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the next lane; None stands for a parameter that the loss did not use."""
        self.parts.append((1, [None if item is None else item.clone() for item in gradients]))
        while len(self.parts) > 1 and self.parts[-1][0] == self.parts[-2][0]:
            self._merge()

    def total(self) -> Gradients:
        """Return the sum over all lanes."""
        while len(self.parts) > 1:
            self._merge()
        return self.parts[0][1]

    def _merge(self) -> None:
        (more, right), (count, left) = self.parts.pop(), self.parts.pop()
        pairs = zip(left, right, strict=True)
        added = [b if a is None else a if b is None else a.add_(b) for a, b in pairs]
        self.parts.append((count + more, added))


class LaneGroup:
    """The group as one of its workers sees it; a context, which meets the others and parts."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat

    def __enter__(self) -> "LaneGroup":
        try:
            self._group = _meet(self.seat)
        except (RuntimeError, OSError) as error:
            raise GroupLost(f"the workers of a step did not meet: {error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._group  # closes the connections, so that the others need not wait for this one

    def own(self, lanes: int) -> range:
        """Return which of the lanes this worker computes: a whole subtree."""
        share = lanes // self.seat.size
        return range(self.seat.rank * share, (self.seat.rank + 1) * share)

    def exchange(self, total: Gradients, losses: list[Tensor]) -> tuple[Gradients, list[Tensor]]:
        """Return the sum over all lanes and all their losses, from this worker's share of both."""
        # The shapes of parameters that this worker's lanes did not use come from the others.
        flags = torch.tensor([float(item is not None) for item in total], dtype=torch.float64)
        numbers = self._gathered(torch.cat([flags, torch.stack(losses).double().cpu()]))
        everywhere = [item[: len(total)] > 0 for item in numbers]
        parts = {item.dtype: [] for item in total if item is not None}  # type: ignore[var-annotated]
        for item in total:
            if item is not None:
                parts[item.dtype].append(item.flatten())
        if any(not torch.equal(everywhere[0], other) for other in everywhere):
            raise SearchError(
                "lanes cannot be shared among workers: the loss uses other parameters in one "
                "minibatch than in another; run with one worker"
            )
        gathered = {kind: self._gathered(torch.cat(items)) for kind, items in parts.items()}
        tree = LaneSum()
        for rank in range(self.seat.size):
            places = dict.fromkeys(gathered, 0)
            lane: Gradients = []
            for item in total:
                if item is None:
                    lane.append(None)
                    continue
                at = places[item.dtype]
                places[item.dtype] = at + item.numel()
                whole = gathered[item.dtype][rank]
                lane.append(whole[at : at + item.numel()].view_as(item))
            tree.add(lane)
        spread = [value for item in numbers for value in item[len(total) :].unbind()]
        return tree.total(), [value.to(losses[0].dtype) for value in spread]

    def _gathered(self, own: Tensor) -> list[Tensor]:
        found = [torch.empty_like(own, device="cpu") for _ in range(self.seat.size)]
        try:
            self._group.allgather([found], [own.cpu()]).wait()
        except RuntimeError as error:
            reason = (str(error).splitlines() or ["no reason"])[0]
            raise GroupLost(f"another worker of the step is gone: {reason}") from None
        return [item.to(own.device) for item in found]


def meeting_place(host: str) -> tuple[str, object]:
    """Return an address at which groups can meet, and what must be kept as long as it is used.

    host: the address of this machine, as others know it.
    """
    server = _DISTRIBUTED.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return f"tcp://{host}:{server.port}", server


def _meet(seat: Seat) -> Any:
    """Return the process group of a seat, when all others are there.

    A group of its own, not the global one of `torch.distributed`, which is the user's.
    """
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
