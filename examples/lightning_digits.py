"""A Lightning module. Only the lines marked `grasp` change.

pip install 'grasp_tune[datasets,lightning]'; python examples/lightning_digits.py
"""

import lightning as L
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import grasp_tune as gt
from grasp_tune.loop.lightning import GraspCallback


class Digits(L.LightningModule):
    """A small network for handwritten digits."""

    def __init__(self, budget: int) -> None:
        super().__init__()
        self.budget = budget
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of one minibatch."""
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return gt.Grasp(self, budget=self.budget)  # grasp: instead of torch.optim.Adam(...)


def main(budget: int = 1_500) -> float:
    """Train on handwritten digits; return the accuracy."""
    L.seed_everything(0, verbose=False)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x).float() / 16, torch.tensor(y))
    train, test = torch.utils.data.random_split(data, [0.8, 0.2])
    module, grasp = Digits(budget), GraspCallback()
    trainer = L.Trainer(
        max_epochs=-1,  # grasp: the budget ends the training
        callbacks=[grasp],  # grasp
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True))
    print(grasp.result)

    rows, labels = next(iter(DataLoader(test, batch_size=len(test))))
    with torch.no_grad():
        accuracy = float((module.net(rows).argmax(1) == labels).float().mean())
    print(f"{accuracy:.1%} of {len(test)} test rows")
    return accuracy


if __name__ == "__main__":
    main()
