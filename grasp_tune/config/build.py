"""From an experiment to its problem: the data are read, the model and the loss are found."""

from dataclasses import dataclass
from typing import Any

import torch

from grasp_tune.config.entry_point import load_entry_point
from grasp_tune.config.models import ModelFactory, default_model, settle_loss
from grasp_tune.config.options import Backbone, Model
from grasp_tune.config.schema import UNLIMITED, Experiment
from grasp_tune.core.errors import ProblemError
from grasp_tune.data import Data, load_data
from grasp_tune.data.backbone_features import with_features
from grasp_tune.engine.problem import TorchProblem
from grasp_tune.limits import Limits

_EXACT_CHUNK = 1024  # rows at a time where the whole data is one batch


@dataclass(frozen=True, eq=False)
class Built:
    """The problem, and what it was made of."""

    problem: TorchProblem
    data: Data  # as the model sees it; its test rows take no part in training
    model: Model  # options, the default filled in
    loss: str
    outputs: int
    notes: tuple[str, ...] = ()  # what a person should know of data and weights


def build_parts(experiment: Experiment) -> Built:
    """The problem with its parts. Raises the errors of data, models and entry points."""
    options = experiment.problem
    device = chosen_device(options.device)
    data = load_data(options.dataset)
    model = options.model or default_model(experiment.convex, data.spec)
    if isinstance(model, Backbone):
        data = with_features(data, model, device)
    name, loss, outputs = settle_loss(options.loss, model.name, data.spec, options.metric)
    validation: Any = options.validation or None
    if path := getattr(options.dataset, "validation_path", None):
        more = load_data(options.dataset.model_copy(update={"test_path": path}))
        assert more.x_test is not None and more.y_test is not None
        validation = more.x_test.to(device), more.y_test.to(device)
    size, count = experiment.batch_size, len(data.x)
    whole = min(count - round(options.validation * count), _EXACT_CHUNK)
    factory = ModelFactory(model, data.spec, outputs, options.augment)
    problem = TorchProblem(
        model=factory,
        loss=loss,
        # A GPU would wait for every minibatch if the rows were not there already.
        data=(data.x.to(device), data.y.to(device)),
        batch_size=whole if size == "full" else size,
        validation=validation,
        metric=load_entry_point(options.metric, "problem.metric"),
        choose_by=options.choose_by,
        weight_decay=options.weight_decay,
        clip=options.clip,
        device=device,
    )
    return Built(problem, data, model, name, outputs, (*data.notes, *factory.notes()))


def settled(given: Experiment, problem: TorchProblem, gone: float = 0.0) -> Experiment:
    """The experiment with its limits turned into oracle calls.

    gone: minutes that have passed already; a tenth is left for training in any case.
    """
    minutes = given.minutes and max(given.minutes - gone, given.minutes / 10)
    budget = None if given.budget == UNLIMITED else given.budget
    limits = Limits(budget, given.steps, given.epochs, minutes)
    calls = limits.calls(problem, given.seed, exact=given.batch_size == "full")
    return given.model_copy(update={"budget": calls})


def chosen_device(name: str) -> torch.device:
    """The device that a config names; ProblemError where this machine does not have it."""
    cuda, mps = torch.cuda.device_count(), torch.backends.mps.is_available()
    auto = "cuda" if cuda else "mps" if mps else "cpu"
    device = torch.device(auto if name == "auto" else name)
    if not {"cuda": (device.index or 0) < cuda, "mps": mps}.get(device.type, True):
        got = f"got {name}, which this machine does not have"
        raise ProblemError(f"problem.device: {got}; expected cpu or auto")
    return device
