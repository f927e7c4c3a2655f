"""The user's own training loop as the worker: the whole method behind `torch.optim.Optimizer`."""
