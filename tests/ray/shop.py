"""A sweep without Tune around it: the real searcher and the real trainable, in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ray import cloudpickle
from ray.train._internal.storage import StorageContext
from ray.tune.search import Searcher
from ray.tune.utils import flatten_dict
from torch import Tensor, nn

import grasp_tune as gt
from grasp_tune.ray import GraspSearcher, grasp_trainable


def linear_problem(
    on_call: Callable[[], None] = lambda: None, rows: int = 96
) -> Callable[[], gt.TorchProblem]:
    """A small classification problem; a closure, so that workers get it by value."""

    def make_problem() -> gt.TorchProblem:
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(rows, 6, generator=generator)
        labels = (inputs[:, 0] + 0.3 * torch.randn(rows, generator=generator) > 0.1).long()

        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            on_call()
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        return gt.TorchProblem(
            model=lambda: nn.Linear(6, 2),
            loss=loss,
            data=(inputs, labels),
            batch_size=8,
            device="cpu",
        )

    return make_problem


class ShopStorage(StorageContext):
    """Tune's storage, with the working folder where no session of Ray is needed for it."""

    @property
    def trial_working_directory(self) -> str:
        """A folder beside the experiment."""
        return str(Path(self.storage_fs_path) / "working" / str(self.trial_dir_name))

    @property
    def trial_driver_staging_path(self) -> str:
        """The same."""
        return self.trial_working_directory


class Shop:
    """Asks a searcher for work, does it, and reports, the way Tune would."""

    def __init__(
        self,
        searcher: GraspSearcher,
        folder: Path,
        make_problem: Callable[..., gt.TorchProblem] | None = None,
        name: str = "experiment",
    ) -> None:
        self.searcher, self._folder, self._name = searcher, folder, name
        self._class = grasp_trainable(make_problem or linear_problem())
        self._trials = 0
        self.done: list[str] = []  # ids of the tasks that ran, in order

    def ask(self, searcher: Searcher | None = None) -> tuple[str, Any]:
        """A new trial's id, and what the searcher says to it."""
        self._trials += 1
        trial_id = f"trial{self._trials:03d}"
        return trial_id, (searcher or self.searcher).suggest(trial_id)

    def work(self, config: dict[str, Any]) -> dict[str, Any]:
        """The last row of a trial with this config, flat as Tune hands it over."""
        storage = ShopStorage(
            storage_path=str(self._folder),
            experiment_dir_name=self._name,
            trial_dir_name=config["grasp"]["task"],
        )
        trainable = self._class(config, storage=storage)
        try:
            row = trainable.train()
        finally:
            trainable.stop()
        self.done.append(config["grasp"]["task"])
        flat: dict[str, Any] = flatten_dict(row)
        return flat

    def finish(self) -> None:
        """Go on, one trial at a time, until the searcher says that it is done."""
        while True:
            trial_id, config = self.ask()
            if config == Searcher.FINISHED:
                return
            assert isinstance(config, dict), "it waits although nothing runs"
            row = self.work(config)
            self.searcher.on_trial_result(trial_id, row)
            self.searcher.on_trial_complete(trial_id=trial_id, result=row)

    def swap(self, how: str, path: Path) -> None:
        """Replace the searcher by a copy: through `pickle`, or through `save` and `restore`."""
        if how == "pickle":
            self.searcher = cloudpickle.loads(cloudpickle.dumps(self.searcher))
            return
        self.searcher.save(str(path))
        spec = self.searcher.spec
        self.searcher = GraspSearcher(
            spec.method, spec.budget, spec.schedule, spec.seed, fused=False
        )
        self.searcher.restore(str(path))


def same(one: gt.Result, other: gt.Result) -> bool:
    """Whether two results are equal bit for bit, work done twice apart."""
    mine, theirs = one.to_dict(), other.to_dict()
    for data in (mine, theirs):
        data["calls"].pop("repeated")
        data.pop("usage")  # of the clock
    names = one.tensors.keys() | other.tensors.keys()
    return mine == theirs and all(torch.equal(one.tensors[n], other.tensors[n]) for n in names)


def spent(result: gt.Result) -> int:
    """The calls that count against the budget."""
    return sum(count for name, count in result.calls.items() if name != "repeated")
