"""Accelerate, in one process or several. Only the three lines marked `grasp` change.

pip install 'grasp_tune[datasets,transformers]'; accelerate launch examples/accelerate_digits.py
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import grasp_tune as gt


def main(budget: int = 1_500) -> float:
    """Train on handwritten digits; return the accuracy."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x).float() / 16, torch.tensor(y))
    loader = accelerator.prepare(DataLoader(data, batch_size=32, shuffle=True))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    epochs = max(1, budget // len(loader))
    grasp = gt.Grasp(model, epochs=epochs, loader=loader)  # grasp: torch.optim.Adam(..., lr=?)
    model, opt = accelerator.prepare(model, grasp)

    for _ in range(epochs):
        for inputs, labels in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            opt.step(loss)  # grasp: pass the loss
    accelerator.print(grasp.finish())  # grasp: the model holds the chosen weights
    with torch.no_grad():
        return float((model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean())


if __name__ == "__main__":
    main()
