"""A training loop in plain PyTorch. Only the three lines marked `grasp` change.

pip install 'grasp_tune[datasets]'; python examples/plain_loop.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import grasp_tune as gt


def main(budget: int = 1_500) -> float:
    """Train on handwritten digits; return the accuracy."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x).float() / 16, torch.tensor(y))
    train, test = torch.utils.data.random_split(data, [0.8, 0.2])
    loader = DataLoader(train, batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    epochs = max(1, budget // len(loader))
    opt = gt.Grasp(model, epochs=epochs, loader=loader)  # grasp: torch.optim.Adam(..., lr=?)
    for _ in range(epochs):
        for inputs, labels in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            opt.step(loss)  # grasp: pass the loss
    print(opt.finish())  # grasp: the model holds the chosen weights

    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float() for x, y in DataLoader(test, batch_size=99)]
    accuracy = float(torch.cat(right).mean())
    print(f"{accuracy:.1%} of {len(test)} test rows")
    return accuracy


if __name__ == "__main__":
    main()
