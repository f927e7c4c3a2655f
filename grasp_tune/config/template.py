"""The commented config that `grasp-tune init` writes."""

from __future__ import annotations

_STARTER = """\
# An experiment for grasp-tune.
#
#   grasp-tune plan {file}             what a run would do and cost; trains nothing
#   grasp-tune run {file} --out DIR    train, choose, and write DIR/report.html
#
# There is no learning rate here, and no range of learning rates: the method finds them.
# A line that begins with # is a comment; the values in comments are the defaults.

problem:
  # The data. Ready to use: digits, breast_cancer (nothing to download), mnist, cifar10.
  dataset: digits
  # Your own data, one of:
  # dataset: {{name: npz, path: data.npz}}              # arrays x_train, y_train, x_test, y_test
  # dataset: {{name: csv, path: table.csv, target: price}}
  # dataset: {{name: libsvm, path: a9a, scale: 1.0}}
  # dataset: {{name: image_folder, path: pictures, size: 32}}  # pictures/train/<class>/<picture>
  # dataset: {{name: "my_module:my_data"}}              # a function that returns (x, y)

  # The model: softmax, logistic, linear, mlp, cnn, resnet18, backbone, or "my_module:my_model".
  model: {{name: mlp, hidden: [64]}}
  # loss: cross_entropy      # or logistic, mse, hinge; when left out: what fits
  # batch_size: 64
  # validation: 0.0          # share of the rows on which the final choice is made
  # device: cpu              # or cuda, mps, auto

# The method: nonconvex for neural networks; convex for linear models (softmax, logistic, linear).
method: nonconvex

# How long: so many minibatch gradients (or values) in all. More is better and slower.
budget: 10000
# Or, in place of it, one of:
# epochs: 20               # as many as 20 passes over the training rows make
# minutes: 10              # of the clock

# schedule: promote          # or paper: the published algorithm to the letter
# challengers: [adamw]       # other optimizers that may join the search
# backend: local             # or ray, optuna; {{kind: local, workers: 4}} for several processes
# seed: 0
# out: runs/digits           # where results go; --out wins over it
"""


def starter(file: str = "experiment.yaml") -> str:
    """The text of a first config, ready to run; `file` is its name in the comments."""
    return _STARTER.format(file=file)
