"""Minibatches by address."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grasp_tune.core.errors import ProblemError
from grasp_tune.engine.problem import Columns, Rows
from grasp_tune.engine.streams import (
    BLOCK,
    PURPOSES,
    Stream,
    fixed_randomness,
    full_batches,
)
from tests.engine import workbench

CPU = torch.device("cpu")
DATA = Columns((torch.arange(1000), torch.arange(1000) * 10))


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
    data = Columns((torch.arange(10),))
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
    first = Stream(Rows(Noisy()), 4, 0, "train", CPU)
    one = first.batch(3)
    first.batch(9)
    torch.rand(5)
    again = Stream(Rows(Noisy()), 4, 0, "train", CPU).batch(3)
    assert torch.equal(one["row"], again["row"])
    assert all(torch.equal(a, b) for a, b in zip(one["noise"], again["noise"], strict=True))


def test_every_purpose_sees_all_batches_of_an_iterable() -> None:
    batches = [torch.tensor(float(at)) for at in range(22)]
    given = workbench.problem(data=lambda: itertools.cycle(batches)).data
    for purpose in ("train", "probe", "value", "ensemble"):
        stream = Stream(given, 1, 0, purpose, CPU)
        assert {float(stream.batch(call)) for call in range(22)} == set(range(22))


def test_an_iterable_that_ends_begins_again_and_may_shuffle_anew() -> None:
    def shuffled() -> list[Tensor]:
        return list(torch.randperm(5).split(1))

    for seed in (0, 1):
        stream, again = (
            Stream(workbench.problem(data=shuffled).data, 1, seed, "train", CPU) for _ in range(2)
        )
        read = [int(stream.batch(call)) for call in range(15)]
        assert all(sorted(read[at : at + 5]) == list(range(5)) for at in (0, 5, 10))
        assert len({tuple(read[at : at + 5]) for at in (0, 5, 10)}) > 1
        # Any order of asking, and an earlier batch after a later one.
        assert [int(again.batch(call)) for call in (14, 3, 9)] == [read[14], read[3], read[9]]


def test_an_iterable_without_a_batch_is_one_sentence() -> None:
    stream = Stream(workbench.problem(data=list).data, 1, 0, "train", CPU)
    with pytest.raises(ProblemError, match="the iterable gave no batch"):
        stream.batch(0)


def test_all_data_come_once_and_in_order() -> None:
    chunks = list(full_batches(DATA, CPU, size=300))
    assert [count for _, count in chunks] == [300, 300, 300, 100]
    assert torch.equal(torch.cat([batch[0] for batch, _ in chunks]), DATA[0])
    rows = [(batch["row"], count) for batch, count in full_batches(Rows(Noisy()), CPU, size=30)]
    assert torch.equal(torch.cat([item for item, _ in rows]), torch.arange(50))
    with pytest.raises(ProblemError, match="exact gradients need a finite data set"):
        list(full_batches(lambda: iter(DATA), CPU))


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


def test_every_kind_of_batch_goes_to_the_device() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    tokens = pytest.importorskip("transformers").BatchEncoding(
        {"ids": torch.arange(4)}
    )  # a mapping, but no dict
    given = {"pair": (packed, [tokens, "text"])}
    moved = Stream(lambda: [given], 1, 0, "train", torch.device("meta")).batch(0)["pair"]
    assert moved[0].data.is_meta and moved[1][0]["ids"].is_meta and moved[1][1] == "text"
