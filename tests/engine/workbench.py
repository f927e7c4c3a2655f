"""Small problems, and workers to run tasks on them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from grasp_tune.core.checkpoint_keys import START
from grasp_tune.core.tasks import Arm, Outcome, ProbeTask, Segment, Task, TrainTask
from grasp_tune.engine.checkpoints import Store, model_tensors
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.store import TemporaryStore

FEATURES, CLASSES, ROWS = 12, 4, 200


def rows(seed: int = 3) -> tuple[Tensor, Tensor]:
    """Features of different size, and classes that depend on them."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, FEATURES, generator=draw)
    y = (x @ torch.randn(FEATURES, CLASSES, generator=draw)).argmax(1)
    return x * torch.logspace(-0.5, 0.5, FEATURES), y


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def layer_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 40), nn.LayerNorm(40), nn.Tanh(), nn.Linear(40, CLASSES)
    )


def dropout() -> nn.Module:
    return nn.Sequential(
        nn.Dropout(0.2), nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, CLASSES)
    )


def batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def frozen() -> nn.Module:
    model = mlp()
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)
    return model


def problem(
    model: Callable[[], nn.Module] = linear,
    loss: Callable[..., Tensor] = cross_entropy,
    **changes: object,
) -> TorchProblem:
    settings: dict[str, object] = {"data": rows(), "batch_size": 8, "device": "cpu", **changes}
    return TorchProblem(model=model, loss=loss, **settings)  # type: ignore[arg-type]


class Bench:
    """A worker with a store of its own, and the count of its oracle calls."""

    def __init__(self, given: TorchProblem, seed: int = 0, store: Store | None = None) -> None:
        self.store: Store = TemporaryStore() if store is None else store
        self.calls = 0
        self.worker = Worker(given, seed, self.store, count=self._count)

    def _count(self, calls: int) -> None:
        self.calls += calls

    def run(self, task: Task) -> Outcome:
        return self.worker.run(task)

    def probe(self, calls: int = 6) -> None:
        self.run(ProbeTask("probe", (0, calls), moments=True))

    def train(self, *segments: Segment, norms: bool = False) -> list[object]:
        """The outcomes of the segments, as one task."""
        outcome = self.run(TrainTask("train", segments, norms=norms))
        return list(outcome.segments)  # type: ignore[union-attr]

    def one_by_one(self, *segments: Segment, norms: bool = False) -> list[object]:
        """The outcomes of the segments, as a task each."""
        return [self.train(segment, norms=norms)[0] for segment in segments]

    def point(self, key: str) -> dict[str, Tensor]:
        """The model's tensors at a checkpoint, copied."""
        self.worker.place(key)
        return {name: item.clone() for name, item in model_tensors(self.worker.model).items()}

    def start(self) -> dict[str, Tensor]:
        return self.point(START)


def arms(base: str, values: Sequence[float], powers: Sequence[float] = ()) -> list[Arm]:
    """Runs of one base with these values, and powers in turn."""
    turns = powers or (0.0,)
    return [Arm.of(at + 1, base, v, power=turns[at % len(turns)]) for at, v in enumerate(values)]


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
