"""The whole method as a `torch.optim.Optimizer`: the user's own training loop is the worker."""
