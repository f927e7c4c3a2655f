"""The whole of an experiment, checked once at birth: what, how, how long, where.

Only `problem.dataset` has no default. Rules that involve two keys live here, in
`Experiment._fits_together`; what needs the data (a model for two classes given ten) is checked
when the problem is built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grasp_tune.config.options import (
    BACKENDS,
    CONVEX_MODELS,
    METHODS,
    MODELS,
    BackendSection,
    Local,
    MethodSection,
    Model,
    Optuna,
)
from grasp_tune.config.section import (
    WRITES,
    Batch,
    Count,
    OneOf,
    Positive,
    Real,
    Section,
    Seed,
    Share,
    Text,
    conflict,
    known_or_own,
)
from grasp_tune.core.errors import InputError
from grasp_tune.data.options import DATASETS, Dataset
from grasp_tune.optimizers.registry import optimizer_names
from grasp_tune.schedules import find_schedule

METRICS = ("accuracy", "f1", "auc", "r2")
AUGMENTATIONS = ("flip", "crop", "noise")
LOSSES = ("cross_entropy", "logistic", "mse", "hinge")
DEFAULT_BATCH = 64
UNLIMITED = 10**15  # the largest budget; with another limit: as that one says

# Where a name decides which keys are allowed: path of the section -> its kinds.
KINDS: dict[tuple[str, ...], OneOf] = {
    ("problem", "dataset"): OneOf(DATASETS),
    ("problem", "model"): OneOf(MODELS),
    ("method",): OneOf(METHODS, default="nonconvex"),
    ("backend",): OneOf(BACKENDS, key="kind", default="local"),
}


class Problem(Section):
    """What is minimized: a model's loss over data."""

    dataset: Annotated[Dataset, KINDS["problem", "dataset"]]
    """The data: a name, a name with options, or `module:function`."""
    model: Annotated[Model, KINDS["problem", "model"]] | None = None
    """The model: a name, a name with options, or `module:function`; empty: one linear layer for the
    convex methods, mlp for nonconvex."""
    loss: Annotated[Text, known_or_own(lambda: LOSSES)] | None = None
    """cross_entropy, logistic, mse, hinge, or `module:function` that takes (model, batch) and
    returns a scalar; empty: what fits the model and the data."""
    augment: tuple[Annotated[Text, known_or_own(lambda: AUGMENTATIONS)], ...] = ()
    """Random changes of the training rows, anew in every minibatch: flip (pictures left to right),
    crop (pictures moved by up to an eighth of their side), noise (numbers, by a tenth of their
    deviation), or `module:function` that takes and returns the inputs of a minibatch."""
    batch_size: Batch | None = None
    """Rows in one minibatch; empty: 64, and `full` (all rows) for the method deterministic, which
    allows nothing else."""
    validation: Share = 0.0
    """Share of the training rows kept aside; when above 0, the final choice between candidates is
    made on them."""
    metric: Annotated[Text, known_or_own(lambda: METRICS)] | None = None
    """What reports and comparisons tell beside the loss, larger is better: accuracy, f1, auc, r2,
    or `module:function` that takes (outputs, targets); empty: accuracy for classes."""
    choose_by: Literal["loss", "metric"] = "loss"
    """What the final choice goes by: the loss, or `metric` on the validation rows."""
    weight_decay: Annotated[Real, Field(ge=0)] = 0.0
    """Decoupled weight decay, as in AdamW: every step multiplies the weights by 1 - step size times
    this number."""
    clip: Positive | None = None
    """The largest norm of a step's gradient; a larger one is scaled down to it; empty: none."""
    device: Annotated[Text, Field(pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$")] = "cpu"
    """cpu, cuda, cuda:1, mps; auto: a GPU if there is one."""


class Experiment(Section):
    """One experiment: everything that a run depends on."""

    title: Annotated[Text, Field(max_length=200)] | None = None
    """A heading for the report."""
    problem: Problem
    """What is minimized."""
    method: Annotated[MethodSection, KINDS["method",]] = Field(
        default_factory=lambda: METHODS["nonconvex"].model_validate({})
    )
    """The variant of the method and its inputs."""
    budget: Annotated[Count, Field(le=UNLIMITED)] = 10_000
    """Oracle calls allowed in all: gradients or values of one minibatch (the paper's T). The
    smallest of `budget`, `steps`, `epochs` and `minutes` counts."""
    steps: Count | None = None
    """As many oracle calls as one plain training of so many steps makes."""
    epochs: Positive | None = None
    """As many oracle calls as one plain training makes in so many passes over the training rows."""
    minutes: Positive | None = None
    """Minutes of the clock. Without `budget`, `steps` and `epochs` they are turned into calls by
    timing a few gradients. The backend local stops when they are over, with the best so far."""
    schedule: Literal["promote", "paper"] = "promote"
    """`promote` searches briefly and gives the rest to the winner; `paper` is the paper's algorithm
    to the letter."""
    schedule_options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the schedule that differ from their defaults, as `gt.Promote(...)` takes them."""
    ensemble: Literal["resample", "window"] = "resample"
    """How the final choice is made: on fresh minibatches, or by the mean over a run's last 100
    minibatches, as in the paper's experiments."""
    challengers: Annotated[
        tuple[Annotated[Text, known_or_own(optimizer_names)], ...], Field(max_length=32)
    ] = Field(
        (),
        description=f"Other optimizers that join the search: {', '.join(optimizer_names())}, or "
        "`module:function` that takes (parameters, value) and returns an Optimizer.",
    )
    backend: Annotated[BackendSection, KINDS["backend",]] = Local()
    """Where the work runs."""
    seed: Seed = 0
    """Fixes everything that is random; the same seed gives the same result."""
    out: Annotated[Text | None, WRITES] = None
    """Folder for checkpoints, results and the report; `--out` wins over it."""

    @model_validator(mode="before")
    @classmethod
    def _other_limits(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "budget" in given:
            return given
        others = [given.get(key) for key in ("steps", "epochs", "minutes")]
        return given if others == [None] * 3 else {**given, "budget": UNLIMITED}

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        for key, got, wanted in self._conflicts():
            raise conflict(key, got, wanted)
        return self

    def _conflicts(self) -> Iterator[tuple[str, str, str]]:
        """Pairs of values that exclude each other: the key, what is there, what would be right."""
        problem, backend, method = self.problem, self.backend, self.method.name
        size = problem.batch_size
        if method != "deterministic" and size == "full":
            right = "a whole number; only method: deterministic takes the whole data"
            yield "problem.batch_size", f"full with method: {method}", right
        if method == "deterministic" and isinstance(size, int):
            right = "full, for that method needs exact gradients"
            yield "problem.batch_size", f"{size} with method: {method}", right
        if self.ensemble == "window" and problem.validation > 0:
            got = f"{problem.validation:g} with ensemble: window"
            right = "0, for a window looks only at training minibatches"
            yield "problem.validation", got, right
        if getattr(backend, "fused", None) is True and (problem.weight_decay or problem.clip):
            got = "true with problem.weight_decay or problem.clip"
            yield "backend.fused", got, "auto or false"
        file = getattr(problem.dataset, "validation_path", None)
        if file and problem.validation:
            got = f"{problem.validation:g} with problem.dataset.validation_path"
            yield "problem.validation", got, "0, or no validation_path"
        if file and (share := getattr(problem.dataset, "test_share", 0.0)):
            got = f"{share:g} with problem.dataset.validation_path"
            yield "problem.dataset.test_share", got, "0, and test rows by problem.dataset.test_path"
        held_out = problem.validation or file
        if problem.choose_by == "metric" and (problem.metric is None or not held_out):
            right = "loss, or problem.metric and problem.validation with it"
            yield "problem.choose_by", "metric without a metric or validation rows", right
        if self.schedule == "paper" and self.challengers:
            got = f"{len(self.challengers)} with schedule: paper"
            yield "challengers", got, "none, or schedule: promote"
        if self.schedule_options:
            try:
                find_schedule(self.given_schedule)
            except InputError as error:
                yield "schedule_options", str(error), f"fields of the schedule {self.schedule}"
        if len(set(self.challengers)) < len(self.challengers):
            yield "challengers", "one of them twice", "each at most once"
        gpus = getattr(backend, "gpus_per_task", 0)
        if gpus and problem.device == "cpu":
            got = f"{gpus:g} with problem.device: cpu"
            yield "backend.gpus_per_task", got, "0, or problem.device: cuda"
        if isinstance(backend, Optuna) and backend.workers > 1 and backend.storage is None:
            got = f"{backend.workers} without backend.storage"
            yield "backend.workers", got, "1, or a storage that several processes can open"

    @property
    def batch_size(self) -> int | Literal["full"]:
        """The batch size with its default filled in."""
        if self.problem.batch_size is not None:
            return self.problem.batch_size
        return "full" if self.method.name == "deterministic" else DEFAULT_BATCH

    @property
    def given_schedule(self) -> Any:
        """The schedule as `minimize` takes it: its name, or a mapping with its options."""
        options = self.schedule_options
        return {"name": self.schedule, **options} if options else self.schedule

    @property
    def convex(self) -> bool:
        """Whether the method's guarantee asks for a convex loss."""
        return self.method.name != "nonconvex"

    def notes(self) -> tuple[str, ...]:
        """Remarks on choices that are allowed but weaken what is promised, as sentences."""
        model = self.problem.model
        if self.convex and model is not None and model.name not in CONVEX_MODELS:
            return (
                f"The method {self.method.name} promises its rate for convex losses; the loss of "
                f"{model.name} is not convex in general. The method nonconvex covers it.",
            )
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, JSON-safe; the loader reads it back to an equal experiment."""
        return self.model_dump(mode="json")


SECTIONS: dict[tuple[str, ...], type[Section]] = {(): Experiment, ("problem",): Problem}


def json_schema() -> dict[str, Any]:
    """The JSON schema of a config file, for editors that complete and check YAML."""
    schema = Experiment.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    # The loader's own key, which is gone before the schema is asked.
    schema["properties"]["include"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Files, relative to this one, that this one is laid over.",
    }
    return schema
