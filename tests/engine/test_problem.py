"""What the user gives: checked at birth, one sentence each."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import grasp_tune as gt
from grasp_tune.core.errors import ProblemError
from grasp_tune.engine.oracle import Oracle
from tests.engine import workbench


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    """The rows of the workbench, again and again, without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return itertools.cycle(zip(*workbench.rows(), strict=True))


def collated(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A collate function that is not torch's: features twice as large."""
    x, y = zip(*rows, strict=True)
    return 2.0 * torch.stack(x), torch.stack(y)


def batches() -> list[tuple[Tensor, Tensor]]:
    """A finite list of batches."""
    x, y = workbench.rows()
    return list(zip(x.split(8), y.split(8), strict=True))


X, Y = workbench.rows()
PAIRS = TensorDataset(X, Y)


@pytest.mark.parametrize(
    "data",
    [
        (X.numpy(), Y.numpy()),
        (X.double().numpy(), Y.numpy()),
        PAIRS,
        DataLoader(PAIRS, batch_size=8, shuffle=True),
        DataLoader(PAIRS, batch_sampler=BatchSampler(SequentialSampler(PAIRS), 8, False)),
        DataLoader(PAIRS, batch_size=8, collate_fn=collated, num_workers=1),
        DataLoader(Endless(), batch_size=8),
        Endless(),
        batches,
        lambda: itertools.cycle(batches()),
    ],
)
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy])
def test_data_and_losses_as_people_have_them_train(data: Any, loss: Any) -> None:
    given = workbench.problem(workbench.linear, loss, data=data)
    one, two = (gt.minimize(given, 60, seed=1, progress=False) for _ in range(2))
    assert one.score < one.candidates[0].score
    assert workbench.same_bits(one.tensors, two.tensors)


def test_a_loader_is_the_same_as_its_rows_and_brings_its_batch_size() -> None:
    plain = workbench.problem(data=(X, Y), batch_size=16)
    loader = workbench.problem(data=DataLoader(PAIRS, batch_size=16, shuffle=True), batch_size=99)
    assert (loader.batch_size, loader.rows) == (16, len(X))
    results = [gt.minimize(given, 60, progress=False).tensors for given in (plain, loader)]
    assert workbench.same_bits(*results)


@pytest.mark.parametrize(
    "held_out",
    [
        DataLoader(PAIRS, batch_size=50),
        (X.double().numpy(), Y.numpy()),
        batches,
        DataLoader(Endless(), batch_size=8),
    ],
)
def test_validation_data_come_as_training_data_do(held_out: Any) -> None:
    given = workbench.problem(loss=nn.CrossEntropyLoss(), validation=held_out)
    result = gt.minimize(given, 60, progress=False)
    assert result.score < result.candidates[0].score


def test_a_share_of_the_rows_is_kept_aside() -> None:
    x = torch.arange(40.0).reshape(40, 1)
    given: Any = {"model": workbench.linear, "loss": nn.MSELoss(), "batch_size": 8}
    tensors: Any = gt.TorchProblem(data=(x, x), validation=0.25, **given)
    rows: Any = gt.TorchProblem(data=TensorDataset(x), validation=0.25, **given)
    assert tensors.rows == rows.rows == 30 and tensors.validation_rows == 10
    kept, aside = tensors.data[0], tensors.validation[0]
    assert sorted(torch.cat([kept, aside]).ravel().tolist()) == x.ravel().tolist()
    assert [row[0].item() for row in rows.validation.items] == aside.ravel().tolist()
    assert replace(tensors, batch_size=4).rows == 30  # not parted twice
    cases: list[Any] = [((x,), 1.0), ((x,), 0.001), ((x,), math.nan), (batches, 0.5)]
    for data, share in cases:
        with pytest.raises(ProblemError, match=r"validation: got .* a share of data that come in"):
            gt.TorchProblem(data=data, validation=share, **given)


def test_a_loader_keeps_to_the_rows_that_its_sampler_gives() -> None:
    x: Any = torch.arange(40.0).reshape(40, 1)
    halves = [DataLoader(x, 5, sampler=SubsetRandomSampler(range(at, at + 20))) for at in (0, 20)]
    problem: Any = workbench.problem(data=halves[0], validation=halves[1])
    assert (problem.rows, problem.validation_rows, problem.batch_size) == (20, 20, 5)
    train = Oracle(problem, 0).stream("train")
    assert max(train.batch(call).max() for call in range(40)) == 19.0

    weights = [float(row == 7) for row in range(40)]
    weighted: Any = DataLoader(x, 5, sampler=WeightedRandomSampler(weights, 40))
    train = Oracle(workbench.problem(data=weighted), 0).stream("train")
    assert {number for call in range(9) for number in train.batch(call).flatten().tolist()} == {7.0}


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.BCEWithLogitsLoss(), functional.l1_loss])
def test_a_row_of_targets_is_taken_as_the_column_that_the_model_gives(loss: Any) -> None:
    x, classes = workbench.rows()
    right = (classes > 1).long()
    model = nn.Linear(x.shape[1], 1)
    expected = loss(model(x), right.float().unsqueeze(1))
    for targets in (right, right.float(), right.bool(), right.int(), right.unsqueeze(1)):
        problem = workbench.problem(loss=loss, data=(x, targets))
        assert torch.equal(problem.loss(model, (x, targets)), expected)
        flat = nn.Sequential(model, nn.Flatten(0))
        assert torch.equal(problem.loss(flat, (x, targets)), expected)


def test_classes_may_be_counted_in_small_numbers() -> None:
    x, right = workbench.rows()
    model = workbench.linear()

    def found(loss: Any, targets: Tensor) -> Tensor:
        return workbench.problem(loss=loss, data=(x, targets)).loss(model, (x, targets))

    for kind in (torch.int8, torch.uint8, torch.int32):
        loss = nn.CrossEntropyLoss()
        assert torch.equal(found(loss, right.to(kind)), loss(model(x), right))
    two, pair = right > 1, nn.Sequential(model, nn.Linear(workbench.CLASSES, 2))
    given = workbench.problem(loss=functional.cross_entropy, data=(x, two))
    assert torch.equal(given.loss(pair, (x, two)), functional.cross_entropy(pair(x), two.long()))
    named = torch.tensor([[1, 3, -1, 0]] * len(x))  # numbers of classes, as many as outputs
    many = nn.MultiLabelMarginLoss()
    assert torch.equal(found(many, named), many(model(x), named))


@pytest.mark.parametrize("names", [("image", "label"), ("labels", "x"), ("x", "y")])
def test_a_loss_of_torch_finds_the_targets_of_a_mapping_of_two(names: tuple[str, str]) -> None:
    found = workbench.problem(loss=nn.CrossEntropyLoss()).loss
    x, y = workbench.rows()
    model = workbench.linear()
    given = (y, x) if names[0] == "labels" else (x, y)
    batch = dict(zip(names, given, strict=True))
    assert torch.equal(found(model, batch), nn.CrossEntropyLoss()(model(x), y))
    for other in ({**batch, "mask": y}, {"image": x, "wanted": y}, {"y": x, "label": y}):
        with pytest.raises(ProblemError, match="needs batches of two parts, input and target"):
            found(model, other)


def test_a_module_as_the_loss_needs_pairs() -> None:
    given = workbench.problem(loss=nn.MSELoss(), data=X)
    with pytest.raises(ProblemError, match="needs batches of two parts, input and target"):
        gt.minimize(given, 60, progress=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 0}, "batch_size: got 0, expected a whole number >= 1"),
        ({"batch_size": 2.0}, "batch_size: got 2.0"),
        (
            {"batch_size": 201},
            "data: 200 rows are fewer than one batch of 201; use batch_size <= 200",
        ),
        ({"model": nn.Linear(2, 2)}, "model: got Linear, expected a function without arguments"),
        ({"loss": nn.MSELoss}, r"loss: got <class .*MSELoss'>, .* such as nn.CrossEntropyLoss\(\)"),
        ({"weight_decay": "0.1"}, "weight_decay: got '0.1', expected a number >= 0"),
        ({"clip": "1"}, "clip: got '1', expected a number > 0"),
        ({"validation": 1}, "validation: got 1.0, expected a share of data that come in rows"),
        ({"loss": "mse"}, r"loss: got str, expected a function of \(model, batch\)"),
        ({"data": (torch.zeros(9, 2), torch.zeros(8))}, r"different numbers of rows: \[9, 8\]"),
        ({"data": ()}, "data: a tuple must hold tensors"),
        ({"data": (torch.tensor(1.0),)}, "data: a tuple must hold tensors with at least one dim"),
        ({"data": np.array(["a"] * 9)}, "data: got an array of <U1, expected numbers"),
        ({"data": ([1.0], [2.0])}, r"dimension, or arrays; got \(list, list\)"),
        ({"data": {"x": torch.ones(3)}}, "data: got a dict, expected a tuple of tensors or arrays"),
        ({"validation": "0.1"}, "validation: got a str, expected a tuple of tensors or arrays"),
        ({"data": 5}, "data: got int, expected a tuple of tensors or arrays, a Dataset"),
        ({"data": iter([torch.zeros(8)])}, "can be read only once; give a function that makes one"),
        ({"validation": (torch.zeros(0, 2),)}, "validation: there are no rows"),
        ({"device": "abacus"}, "device: got 'abacus'"),
        ({"device": "cuda:99"}, "device: got 'cuda:99', which is not there"),
    ],
)
def test_what_cannot_be_right_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ProblemError, match=words) as caught:
        workbench.problem(**changes)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["data", "validation"])
def test_a_list_of_batches_is_told_what_to_give(name: str) -> None:
    named = [{"x": x, "y": y} for x, y in batches()]
    lists: list[Any] = [batches(), [(x.numpy(), y.numpy()) for x, y in batches()], named]
    for given in lists:
        words = f"{name}: got a list of .* items, each with 8 rows.* `lambda: batches`"
        with pytest.raises(ProblemError, match=words):
            workbench.problem(**{name: given})
    rows = list(zip(X, Y, strict=True))  # a list of rows is one
    tokens = [{"ids": torch.arange(9), "labels": torch.arange(9)} for _ in range(8)]
    assert workbench.problem(data=rows).rows == len(rows) and workbench.problem(data=tokens).rows


def test_a_single_tensor_or_a_list_stands_for_a_tuple() -> None:
    x, y = workbench.rows()
    assert isinstance(workbench.problem(data=x).data, tuple)
    assert workbench.problem(data=[x, y]).rows == len(x)


def test_every_build_starts_at_the_same_point_and_leaves_the_generators_alone() -> None:
    problem = workbench.problem(workbench.mlp)
    torch.manual_seed(7)
    first = problem.build(seed=1)
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)
    again, other = problem.build(seed=1), problem.build(seed=2)
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))
    assert first.training


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.ParameterList([torch.zeros(0)]), "it has no trainable parameter"),
        (lambda: nn.Linear(3, 1, device="meta"), "weight is on the meta device"),
        (lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), "model: 0 has sparse gradients"),
    ],
)
def test_models_that_cannot_be_trained_here_say_so(
    model: Callable[[], nn.Module], words: str
) -> None:
    with pytest.raises(ProblemError, match=words):
        workbench.problem(model).build(0)


def test_a_lazy_model_says_what_to_do() -> None:
    problem = workbench.problem(lambda: nn.LazyLinear(4))
    with pytest.raises(ProblemError, match=r"weight is not initialised yet \(a lazy module\)"):
        problem.build(0)


def test_the_device_is_the_users_choice() -> None:
    assert workbench.problem(device="cpu").chosen_device == torch.device("cpu")
    chosen = gt.TorchProblem(
        model=workbench.linear, loss=workbench.cross_entropy, data=workbench.rows()
    ).chosen_device
    best = "cuda" if torch.cuda.is_available() else "cpu"
    assert chosen.type in (best, "mps")


def test_tables_of_pandas_are_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    rows, targets = workbench.rows()
    table = pandas.DataFrame(rows.double().numpy())
    found: Any = workbench.problem(data=(table, pandas.Series(targets.numpy()))).data
    assert torch.equal(found[0], rows) and torch.equal(found[1], targets)
    alone: Any = workbench.problem(data=table).data
    assert len(alone) == 1
    flags = pandas.DataFrame({"a": [True, False] * 9, "b": [False] * 18})  # as get_dummies gives
    mixed: Any = workbench.problem(data=flags.assign(c=0.5), batch_size=8).data
    assert mixed[0][1].tolist() == [0.0, 0.0, 0.5]
    bare: Any = workbench.problem(data=flags, batch_size=8).data
    assert torch.equal(bare[0], mixed[0][:, :2])


def test_a_loader_that_does_not_batch_gives_the_batches_of_its_data_set() -> None:
    rows, targets = workbench.rows()
    ready = [(rows[at : at + 8], targets[at : at + 8]) for at in range(0, 64, 8)]

    class Ready(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(ready)

        def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
            return ready[at]

    problem = workbench.problem(data=DataLoader(Ready(), batch_size=None))
    batch = Oracle(problem, 0).stream("train").batch(0)
    assert torch.equal(batch[0], ready[0][0]) and torch.equal(batch[1], ready[0][1])


def test_raw_scales_are_told(caplog: pytest.LogCaptureFixture) -> None:
    for rows in (X, X.long() * 10**6, (X * 100).unsqueeze(-1).expand(-1, -1, 2) * 1000):
        workbench.problem(data=(rows, Y))
    assert not caplog.messages
    workbench.problem(data=(X.numpy() * 1e5, Y))
    assert "networks learn badly from raw scales" in caplog.text
