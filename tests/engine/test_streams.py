"""Minibatches by address."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from grasp_tune.core.errors import ProblemError
from grasp_tune.engine.streams import (
    BLOCK,
    PURPOSES,
    Stream,
    fixed_randomness,
    full_batches,
)

CPU = torch.device("cpu")
DATA = (torch.arange(1000), torch.arange(1000) * 10)


def test_a_batch_is_a_function_of_its_number() -> None:
    stream = Stream(DATA, 5, 3, "train", CPU)
    calls = (0, 1, BLOCK - 1, BLOCK, 7 * BLOCK + 3, 2)
    forward = {call: stream.batch(call)[0].tolist() for call in calls}
    fresh = Stream(DATA, 5, 3, "train", CPU)
    assert {call: fresh.batch(call)[0].tolist() for call in reversed(calls)} == dict(
        reversed(forward.items())
    )
    assert len({tuple(rows) for rows in forward.values()}) == len(calls)
    x, y = stream.batch(4)
    assert torch.equal(y, 10 * x)


def test_seeds_and_purposes_have_batches_of_their_own() -> None:
    found = {
        tuple(Stream(DATA, 8, seed, purpose, CPU).batch(0)[0].tolist())
        for seed in (0, 1)
        for purpose in PURPOSES
    }
    assert len(found) == 2 * len(PURPOSES)


def test_rows_are_uniform_draws_with_replacement() -> None:
    data = (torch.arange(10),)
    stream = Stream(data, 10, 0, "train", CPU)
    batches = [stream.batch(call)[0] for call in range(400)]
    counts = torch.bincount(torch.cat(batches), minlength=10)
    # 4000 draws: 400 a row, with a standard deviation of sqrt(4000 * 0.1 * 0.9) = 19.
    assert int((counts - 400).abs().max()) < 5 * 19
    # A batch of 10 out of 10 without a repeated row has probability 10!/10^10 = 0.0004.
    assert sum(len(set(batch.tolist())) == 10 for batch in batches) < 5


class Noisy(torch.utils.data.Dataset[dict[str, object]]):
    """Rows with noise from three generators, as augmentations draw it."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, at: int) -> dict[str, object]:
        noise = (float(torch.rand(1)), float(np.random.rand()), random.random())  # noqa: NPY002
        return {"row": torch.tensor(at), "noise": noise}


def test_a_datasets_noise_is_addressed_like_its_rows() -> None:
    first = Stream(Noisy(), 4, 0, "train", CPU)
    one = first.batch(3)
    first.batch(9)
    torch.rand(5)
    again = Stream(Noisy(), 4, 0, "train", CPU).batch(3)
    assert torch.equal(one["row"], again["row"])
    assert all(torch.equal(a, b) for a, b in zip(one["noise"], again["noise"], strict=True))


def counting() -> Iterator[Tensor]:
    at = 0
    while True:
        yield torch.tensor(at)
        at += 1


def test_an_iterable_is_dealt_out_so_that_no_batch_serves_two_purposes() -> None:
    dealt = [
        int(Stream(counting, 1, 0, purpose, CPU).batch(call))
        for purpose in ("train", "probe", "value", "ensemble")
        for call in range(20)
    ]
    assert len(set(dealt)) == len(dealt)
    # Nothing is left over either: of 16 in a row, 8 train, 4 probe, 2 are values, 2 choose.
    assert set(range(16)) <= {
        int(Stream(counting, 1, 0, purpose, CPU).batch(call))
        for purpose, count in (("train", 8), ("probe", 4), ("value", 2), ("ensemble", 2))
        for call in range(count)
    }


def test_an_iterable_can_be_asked_for_an_earlier_batch() -> None:
    stream = Stream(counting, 1, 0, "train", CPU)
    assert [int(stream.batch(call)) for call in (0, 1, 5, 2, 5)] == [0, 2, 10, 4, 10]


def test_an_iterable_that_ends_says_where() -> None:
    stream = Stream(lambda: iter([torch.tensor(1.0)] * 5), 1, 0, "train", CPU)
    stream.batch(2)
    with pytest.raises(ProblemError, match="the iterable ended after 5 batches, expected an endl"):
        stream.batch(3)


def test_all_data_come_once_and_in_order() -> None:
    chunks = list(full_batches(DATA, CPU, size=300))
    assert [count for _, count in chunks] == [300, 300, 300, 100]
    assert torch.equal(torch.cat([batch[0] for batch, _ in chunks]), DATA[0])
    rows = [(batch["row"], count) for batch, count in full_batches(Noisy(), CPU, size=30)]
    assert torch.equal(torch.cat([item for item, _ in rows]), torch.arange(50))
    with pytest.raises(ProblemError, match="exact gradients need a finite data set"):
        list(full_batches(counting, CPU))


def test_randomness_is_fixed_inside_and_restored_after() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        with fixed_randomness(1, "here"):
            inside = (float(torch.rand(1)), float(np.random.rand()), random.random())  # noqa: NPY002
        draws.append((inside, float(torch.rand(1))))
    assert draws[0] == draws[1]
    torch.manual_seed(5)
    assert float(torch.rand(1)) == draws[0][1]
