"""Optuna's PyTorch example: layers, units and dropout are searched, with pruning, on digits.

Only the lines marked `grasp` change: each trial trains without a learning rate, so Optuna searches
neither the learning rate nor the optimizer.

pip install 'grasp_tune[datasets,optuna]'; python examples/optuna_layers.py
"""

from typing import Any

import optuna
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import grasp_tune as gt

EPOCHS = 5


def define_model(trial: optuna.Trial) -> nn.Module:
    """Return a network of one to three hidden layers."""
    layers: list[nn.Module] = []
    width = 64
    for at in range(trial.suggest_int("n_layers", 1, 3)):
        units = trial.suggest_int(f"n_units_l{at}", 4, 128)
        dropout = trial.suggest_float(f"dropout_l{at}", 0.0, 0.5)
        layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(dropout)]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, 10))


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return minibatches for training, and others for validation."""
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x).float() / 16, torch.tensor(y))
    train, valid = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(valid, batch_size=256)


def accuracy(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the accuracy."""
    model.eval()
    with torch.no_grad():
        return float(torch.cat([(model(x).argmax(1) == y).float() for x, y in loader]).mean())


def objective(trial: optuna.Trial) -> float:
    """Train one network, and return its accuracy."""
    torch.manual_seed(trial.number)
    model = define_model(trial)
    train_loader, valid_loader = loaders()
    opt = gt.Grasp(model, epochs=EPOCHS, loader=train_loader)  # grasp: suggest an optimizer, an lr
    for epoch in range(EPOCHS):
        model.train()
        for x, y in train_loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(loss)  # grasp: opt.step()
            if opt.done:  # grasp: the search may end a few steps early
                break
        with opt.best():  # grasp: the best weights so far
            right = accuracy(model, valid_loader)
        trial.report(right, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return right


def main(trials: int = 10) -> float:
    """Return the accuracy of the best trial."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    print(study.best_trial.params)
    return study.best_value


if __name__ == "__main__":
    main()
