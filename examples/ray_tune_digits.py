"""Ray Tune's first example, a small convolutional network in a training function, on digits.

Only the lines marked `grasp` change; each comment shows the line that was replaced.

pip install 'grasp_tune[datasets,ray]'; python examples/ray_tune_digits.py
"""

from typing import Any

import torch
import torch.nn.functional as F
from ray import tune
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from grasp_tune.ray import GraspSearcher, optimizer


class ConvNet(nn.Module):
    """One convolution, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.fc = nn.Conv2d(1, 8, kernel_size=3), nn.Linear(72, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the ten digits."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        return self.fc(x.flatten(1))


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return minibatches for training, and others for testing."""
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x).float().reshape(-1, 1, 8, 8) / 16, torch.tensor(y))
    train, test = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=64, shuffle=True), DataLoader(test, batch_size=256)


def accuracy(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the accuracy."""
    with torch.no_grad():
        return float(torch.cat([(model(x).argmax(1) == y).float() for x, y in loader]).mean())


def train_digits(config: dict[str, Any]) -> None:
    """Train, and report the accuracy."""
    train_loader, test_loader = loaders()
    model = ConvNet()
    opt = optimizer(model)  # grasp: optim.SGD(model.parameters(), lr=config["lr"], momentum=...)
    while not opt.done:  # grasp: for i in range(10):
        for x, y in train_loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(loss)  # grasp: opt.step()
    tune.report({"mean_accuracy": accuracy(model, test_loader)})


def main(budget: int = 2_000) -> float:
    """Return the accuracy of the chosen weights."""
    tuner = tune.Tuner(
        train_digits,
        tune_config=tune.TuneConfig(
            metric="mean_accuracy",
            mode="max",
            search_alg=GraspSearcher(budget=budget),  # grasp: scheduler=ASHA, num_samples=...
        ),
        run_config=tune.RunConfig(verbose=0),
    )
    best = tuner.fit().get_best_result()
    print(best.metrics)
    return float((best.metrics or {})["mean_accuracy"])


if __name__ == "__main__":
    main()
