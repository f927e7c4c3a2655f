"""Metrics, by hand and against scikit-learn."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grasp_tune.core.errors import ProblemError
from grasp_tune.engine.metrics import (
    Validated,
    accuracy,
    auc,
    compared,
    f1,
    find_metric,
    measured,
    r2,
    tokens,
    wants_batch,
)
from grasp_tune.engine.oracle import Oracle
from grasp_tune.engine.problem import TorchProblem
from tests.engine import workbench


def test_metrics_by_hand() -> None:
    scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 4.0], [5.0, 0.0]])
    right = torch.tensor([0, 1, 0, 1])  # named are 0, 1, 1, 0
    assert accuracy(scores, right) == 0.5
    assert f1(scores, right) == 0.5  # precision and recall of class 1 are both 1/2
    # Scores of class 1 over class 0: -1, 3, 3, -5. Pairs (1 against 0): 3 over -1, a tie, two lost.
    assert auc(scores, right) == (1 + 0.5) / 4
    # Around the mean 2 the targets have 1 + 0 + 1, the residuals 0.25 + 0 + 0.25.
    assert r2(torch.tensor([[1.5], [2.0], [2.5]]), torch.tensor([1.0, 2.0, 3.0])) == 0.75
    assert math.isnan(r2(torch.ones(2), torch.ones(2)))
    with pytest.raises(ProblemError, match=r"outputs of shape \(4, 2\) for targets \(4,\), expect"):
        r2(scores, right)


def test_a_column_of_targets_is_a_class_for_each_row() -> None:
    scores, right = torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1.0, 1.0, 0.0])
    for metric in (accuracy, f1, auc):
        assert metric(scores, right.unsqueeze(1)) == metric(scores, right)
        with pytest.raises(ProblemError, match=r"targets of shape \(3, 2\) are not one class"):
            metric(scores, torch.zeros(3, 2))


@pytest.mark.parametrize("found", [None, "much", torch.ones(2), 1j, 10**400])
def test_a_metric_that_is_no_number_is_one_line(found: object) -> None:
    with pytest.raises(ProblemError, match=r"metric: <lambda> returned .*, expected a number"):
        measured(lambda outputs, targets: found, torch.ones(2), torch.ones(2))  # type: ignore[arg-type, return-value]


def test_metrics_are_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(60, 4, generator=generator).round(decimals=1)
    right = torch.randint(0, 4, (60,), generator=generator)
    shares = torch.softmax(scores.double(), dim=-1)
    named = scores.argmax(dim=-1)
    assert f1(scores, right) == pytest.approx(metrics.f1_score(right, named, average="macro"))
    expected = metrics.roc_auc_score(right, shares, multi_class="ovr")
    assert auc(scores, right) == pytest.approx(expected)
    one, two = scores[:, 0], (right > 1).long()
    assert auc(one, two) == pytest.approx(metrics.roc_auc_score(two, one))


def test_classes_that_do_not_occur_change_no_definition() -> None:
    scores, right = torch.eye(3)[[0, 0, 1]], torch.zeros(3, dtype=torch.long)
    # Class 0: precision 1, recall 2/3, so 0.8; class 1: nothing right; class 2 occurs nowhere.
    assert f1(scores, right) == pytest.approx(0.4)
    assert f1(torch.eye(3)[[0, 0]], torch.zeros(2)) == 1.0
    assert f1(torch.eye(2)[[0, 0]], torch.zeros(2)) == 0.0  # of two classes the second one counts
    assert auc(scores, right) == 0.5


@pytest.mark.parametrize("name", ["accuracy", "f1", "auc", "r2"])
def test_outputs_that_are_no_numbers_name_no_class(name: str) -> None:
    outputs = torch.tensor([[1.0, 0.0], [math.nan, 0.0]])
    assert math.isnan(measured(name, outputs, torch.tensor([0, 0])))


def test_a_metric_is_a_name_or_a_function() -> None:
    def within(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs - targets).abs().max() < 1)

    assert find_metric(within) == ("within", within)
    with pytest.raises(ProblemError, match=r"metric: got 'acc', expected accuracy, f1, auc, r2"):
        TorchProblem(
            model=lambda: nn.Linear(1, 1),
            loss=lambda model, batch: model(batch[0]).mean(),
            data=(torch.zeros(4, 1),),
            batch_size=2,
            metric="acc",
        )
    with pytest.raises(ProblemError, match=r"outputs of shape \(2, 3, 4\) name no class"):
        accuracy(torch.zeros(2, 3, 4), torch.zeros(2))


class Worded(nn.Linear):
    """Answers as a model of Hugging Face: by the names of its inputs, with scores as `logits`."""

    def forward(self, features: Tensor, labels: Tensor, mask: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        scores = super().forward(features)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def model() -> nn.Module:
    return Worded(workbench.FEATURES, workbench.CLASSES)


class Graph(SimpleNamespace):
    """A batch that is an object, with the targets as `y`."""

    def to(self, device: object) -> "Graph":
        return self


def masked_share(outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
    right = outputs["logits"].argmax(1) == batch["labels"]
    return right[batch["mask"]].double().mean()


def with_mask(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"features": features, "labels": labels, "mask": features[:, 0] > 0}


X, Y = workbench.rows()
MAPPINGS = [
    {k: v[0] for k, v in with_mask(x[None], y[None]).items()} for x, y in zip(X, Y, strict=True)
]
KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], Tensor], Any]] = {
    "mapping": (model, lambda model, batch: model(**batch)["loss"], MAPPINGS),
    "three parts": (
        workbench.linear,
        lambda model, batch: (
            batch[1] * nn.functional.cross_entropy(model(batch[0]), batch[2], reduction="none")
        ).mean(),
        (X, torch.ones(len(X)), Y),
    ),
    "inputs by name, and targets": (
        model,
        lambda model, batch: model(**batch[0], labels=batch[1])["loss"],
        [
            ({"features": item["features"], "mask": item["mask"]}, item["labels"])
            for item in MAPPINGS
        ],
    ),
    "object": (
        workbench.linear,
        lambda model, batch: nn.functional.cross_entropy(model(batch.x), batch.y),
        lambda: [Graph(x=X[at : at + 8], y=Y[at : at + 8]) for at in range(0, len(X), 8)],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["accuracy", "f1", "auc"])
def test_a_named_metric_finds_outputs_and_targets_of_any_batch(kind: str, name: str) -> None:
    build, loss, data = KINDS[kind]
    given = workbench.problem(build, loss, data=data, validation=data, metric=name)
    by_metric = workbench.problem(
        build, loss, data=data, validation=data, metric=name, choose_by="metric"
    )
    oracle = Oracle(given, 0)
    values = [oracle.value("validation", call) for call in range(3)]
    x, y = zip(*(pair(oracle.stream("validation").batch(call)) for call in range(3)), strict=True)
    with torch.no_grad():
        scores = nn.functional.linear(torch.cat(x), *oracle.model.parameters())
    expected = find_metric(name)[1](scores, torch.cat(y))
    assert oracle.validated.metric == pytest.approx(expected)
    assert values[0] == pytest.approx(float(nn.functional.cross_entropy(scores[:8], y[0])))
    first = find_metric(name)[1](scores[:8], y[0])
    assert Oracle(by_metric, 0).value("validation", 0) == pytest.approx(1.0 - first)


def pair(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, dict):
        return batch["features"], batch["labels"]
    if isinstance(batch, list):
        return batch[0]["features"], batch[1]
    return (batch[0], batch[2]) if isinstance(batch, tuple) else (batch.x, batch.y)


def test_a_function_of_the_batch_is_given_all_of_it() -> None:
    build, loss, data = KINDS["mapping"]
    given = workbench.problem(build, loss, data=data, validation=data, metric=masked_share)
    oracle = Oracle(given, 0)
    shares = []
    for call in range(3):
        oracle.value("validation", call)
        batch = oracle.stream("validation").batch(call)
        with torch.no_grad():
            shares.append(float(masked_share(oracle.model(**batch), batch)))
    assert oracle.validated.metric == pytest.approx(sum(shares) / 3)  # minibatches' mean


@pytest.mark.parametrize(
    ("batch", "place"),
    [
        ((1, 2, 3), 3),
        ([1, 2], 2),
        ({"input_ids": 1, "labels": 2, "y": 3}, 2),
        ({"image": 1, "label": 2}, 2),
        ({"x": 1, "target": 2, "y": None}, 2),
        (SimpleNamespace(x=1, y=2, batch=3), 2),
    ],
)
def test_targets_are_found_in_the_usual_places(batch: Any, place: int) -> None:
    assert compared("accuracy", batch) == place
    assert compared(lambda outputs, targets: 0.0, batch) == place
    assert compared(lambda outputs, batch: 0.0, batch) is batch


@pytest.mark.parametrize("metric", ["accuracy", max])
def test_a_batch_without_targets_is_one_sentence_before_the_training(metric: Any) -> None:
    rows = [{"image": x, "wanted": y} for x, y in zip(X, Y, strict=True)]
    given = workbench.problem(
        loss=lambda model, batch: nn.functional.cross_entropy(
            model(batch["image"]), batch["wanted"]
        ),
        data=rows,
        validation=0.2,
        metric=metric,
    )
    words = r"a dict of 'image', 'wanted', has no targets where they are looked for \(the last part"
    with pytest.raises(ProblemError, match=words + r".*; give a function of \(outputs, batch\)"):
        workbench.Bench(given).probe()


@pytest.mark.parametrize(
    "metric", [lambda outputs: 0.0, lambda outputs, targets, mask: 0.0, lambda outputs, *, batch: 0]
)
def test_a_metric_of_other_arguments_is_refused_at_once(metric: Any) -> None:
    with pytest.raises(
        ProblemError, match=r"metric: <lambda> does not fit \(.*a function of \(out"
    ):
        workbench.problem(validation=0.2, metric=metric)


def test_outputs_that_a_named_metric_cannot_read_are_one_sentence() -> None:
    with pytest.raises(ProblemError, match="accuracy takes a tensor of outputs, got tuple; give a"):
        measured("accuracy", (X, None), Y)
    with pytest.raises(ProblemError, match="takes a tensor of targets, got list; give a function"):
        measured("accuracy", X, [1, 2])


def test_named_metrics_are_per_token() -> None:
    scores = torch.zeros(2, 3, 4)
    scores[0, :, 1] = scores[1, :, 2] = 1.0
    right = torch.tensor([[1, 1, -100], [0, 2, 3]])  # classes 1, 1, - and 2, 2, 2 are named
    assert measured("accuracy", scores, right) == 3 / 5
    assert measured("accuracy", scores.movedim(-1, 1), right) == 3 / 5
    # Class 0: 0; 1: 1; 2: precision 1/3, recall 1; 3: 0.
    assert measured("f1", scores, right) == pytest.approx((0 + 1 + 0.5 + 0) / 4)
    assert measured("auc", scores, right) == pytest.approx(measured("auc", *tokens(scores, right)))
    seen = Validated("accuracy")  # batches of other lengths: each token counts the same
    seen.add(1.0, scores, right)
    seen.add(1.0, scores[:1, :1], torch.tensor([[1]]))
    assert seen.metric == 4 / 6
    assert measured("accuracy", torch.eye(3), torch.tensor([0, 2, -100])) == 0.5
    for square in (torch.zeros(2, 4, 4), torch.zeros(2, 4, 4, 4)):
        with pytest.raises(ProblemError, match="do not show where the classes are"):
            measured("accuracy", square, torch.zeros(square.shape[:-1], dtype=torch.long))


def test_minibatches_that_cannot_be_joined_have_a_mean() -> None:
    seen = Validated("accuracy")
    assert math.isnan(seen.metric)
    seen.add(1.0, torch.eye(2), torch.tensor([0, 0]))  # half of them right
    seen.add(1.0, torch.eye(3), torch.tensor([0, 1, 2]))  # all of them, of three classes
    assert seen.metric == 0.75


def test_a_loss_that_asks_parts_of_the_model_gives_no_outputs() -> None:
    given = workbench.problem(
        lambda: nn.Sequential(workbench.linear()),
        loss=lambda model, batch: nn.functional.cross_entropy(model[0](batch["x"]), batch["y"]),
        data=[{"x": x, "y": y} for x, y in zip(X, Y, strict=True)],
        validation=0.2,
        metric="accuracy",
    )
    with pytest.raises(ProblemError, match=r"a way of its own.*; call model\(\.\.\.\) in the loss"):
        Oracle(given, 0).value("validation", 0)


def test_a_metric_that_takes_targets_first_is_told() -> None:
    def balanced(y_true: Tensor, y_pred: Tensor) -> float:
        return 0.5

    with pytest.raises(ProblemError, match=r"balanced takes the targets first; give `lambda outpu"):
        wants_batch(balanced)
