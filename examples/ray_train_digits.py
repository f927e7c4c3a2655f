"""Ray Train: a `TorchTrainer` with several workers. Only the three lines marked `grasp` change.

pip install 'grasp_tune[datasets,ray]'; python examples/ray_train_digits.py
"""

import tempfile
from pathlib import Path

import ray.train
import torch
import torch.nn.functional as F
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import grasp_tune as gt


def train(config: dict[str, int]) -> None:
    """Train on handwritten digits, in each worker."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x).float() / 16, torch.tensor(y))
    loader = prepare_data_loader(DataLoader(data, batch_size=16, shuffle=True))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = prepare_model(model)
    epochs = max(1, config["budget"] // len(loader))
    opt = gt.Grasp(model, epochs=epochs, loader=loader)  # grasp: same choice in all workers
    for _ in range(epochs):
        for inputs, labels in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            opt.step(loss)  # grasp: pass the loss
    opt.finish()  # grasp: the model holds the chosen weights
    with torch.no_grad():
        right = (model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        saved = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"accuracy": float(right), "calls": opt.calls}, checkpoint=saved)


def main(budget: int = 800, workers: int = 2) -> float:
    """Return the accuracy after training on several workers."""
    scaling = ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1})
    trainer = TorchTrainer(train, train_loop_config={"budget": budget}, scaling_config=scaling)
    metrics = trainer.fit().metrics or {}
    print(metrics)
    return float(metrics["accuracy"])


if __name__ == "__main__":
    main()
