"""The whole of an experiment, checked once at birth: what, how, how long, where.

Only `problem.dataset` has no default. Rules that involve two keys live here, in
`Experiment._fits_together`; what needs the data (a model for two classes given ten) is checked
when the problem is built.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from grasp_tune.config.backend_options import BACKENDS, BackendOptions, Local, Optuna, Ray
from grasp_tune.config.dataset_options import DATASETS, DatasetOptions
from grasp_tune.config.method_options import METHODS, MethodOptions, NonConvex
from grasp_tune.config.model_options import CONVEX_MODELS, MODELS, ModelOptions
from grasp_tune.config.section import (
    Count,
    Real,
    Section,
    Seed,
    Text,
    conflict,
    expected,
    is_entry_point,
)
from grasp_tune.optimizers.registry import optimizer_names

LOSSES = ("cross_entropy", "logistic", "mse", "hinge")
DEFAULT_BATCH = 64


def _loss(value: str) -> str:
    if value not in LOSSES and not is_entry_point(value):
        raise expected(f"one of {', '.join(LOSSES)}, or module:function", choices=LOSSES)
    return value


def _challenger(value: str) -> str:
    if value not in optimizer_names() and not is_entry_point(value):
        raise expected(
            f"one of {', '.join(optimizer_names())}, or module:function", choices=optimizer_names()
        )
    return value


def _batch(value: object) -> object:
    # Told here, for a union of two types would give two errors about one slip.
    if value == "full":
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise expected("a whole number from 1 to 1000000, or full")
    return value


Batch = Annotated[int | Literal["full"], BeforeValidator(_batch)]


class Problem(Section):
    """What is minimized: a model's loss over data."""

    dataset: Annotated[
        DatasetOptions,
        Field(description="The data: a name, a name with options, or `module:function`."),
    ]
    model: Annotated[
        ModelOptions | None,
        Field(
            description="The model: a name, a name with options, or `module:function`; empty: one "
            "linear layer for the convex methods, mlp for nonconvex."
        ),
    ] = None
    loss: Annotated[
        Annotated[Text, AfterValidator(_loss)] | None,
        Field(
            description="cross_entropy, logistic, mse, hinge, or `module:function` that takes "
            "(model, batch) and returns a scalar; empty: what fits the model and the data."
        ),
    ] = None
    batch_size: Annotated[
        Batch | None,
        Field(
            description="Rows in one minibatch; empty: 64, and `full` (all rows) for the method "
            "deterministic, which allows nothing else."
        ),
    ] = None
    validation: Annotated[
        Real,
        Field(
            ge=0,
            lt=1,
            description="Share of the training rows kept aside; when above 0, the final "
            "choice between candidates is made on them.",
        ),
    ] = 0.0
    device: Annotated[
        Text,
        Field(
            pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$",
            description="cpu, cuda, cuda:1, mps; auto: a GPU if there is one.",
        ),
    ] = "cpu"


class Experiment(Section):
    """One experiment: everything that a run depends on."""

    title: Annotated[
        Text | None, Field(max_length=200, description="A heading for the report.")
    ] = None
    problem: Annotated[Problem, Field(description="What is minimized.")]
    method: Annotated[
        MethodOptions, Field(description="The variant of the method and its inputs.")
    ] = NonConvex()
    budget: Annotated[
        Count,
        Field(
            le=10**15,
            description="Oracle calls allowed in all: gradients or values of one minibatch "
            "(the paper's T).",
        ),
    ] = 10_000
    schedule: Annotated[
        Literal["promote", "paper"],
        Field(
            description="`promote` searches briefly and gives the rest to the winner; `paper` is "
            "the paper's algorithm to the letter."
        ),
    ] = "promote"
    ensemble: Annotated[
        Literal["resample", "window"],
        Field(
            description="How the final choice is made: on fresh minibatches, or by the mean over a "
            "run's last 100 minibatches, as in the paper's experiments."
        ),
    ] = "resample"
    challengers: Annotated[
        tuple[Annotated[Text, AfterValidator(_challenger)], ...],
        Field(
            max_length=32,
            description="Other base optimizers that join the search: "
            f"{', '.join(optimizer_names())}, or "
            "`module:function` that takes (parameters, value) and returns an Optimizer.",
        ),
    ] = ()
    backend: Annotated[BackendOptions, Field(description="Where the work runs.")] = Local()
    seed: Annotated[
        Seed,
        Field(description="Fixes everything that is random; the same seed gives the same result."),
    ] = 0
    out: Annotated[
        Text | None,
        Field(description="Folder for checkpoints, results and the report; `--out` wins over it."),
    ] = None

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        problem, backend = self.problem, self.backend
        exact = self.method.name == "deterministic"
        if not exact and problem.batch_size == "full":
            raise conflict(
                "problem.batch_size",
                f"full with method: {self.method.name}",
                "a whole number; only method: deterministic takes the whole data",
            )
        if exact and isinstance(problem.batch_size, int):
            raise conflict(
                "problem.batch_size",
                f"{problem.batch_size} with method: deterministic",
                "full, for that method needs exact gradients",
            )
        if self.ensemble == "window" and problem.validation > 0:
            raise conflict(
                "problem.validation",
                f"{problem.validation:g} with ensemble: window",
                "0, for a window looks only at training minibatches",
            )
        if self.schedule == "paper" and self.challengers:
            raise conflict(
                "challengers",
                f"{len(self.challengers)} with schedule: paper",
                "none, or schedule: promote",
            )
        if len(set(self.challengers)) < len(self.challengers):
            raise conflict("challengers", "one of them twice", "each at most once")
        if isinstance(backend, (Ray, Optuna)) and backend.gpus_per_task and problem.device == "cpu":
            raise conflict(
                "backend.gpus_per_task",
                f"{backend.gpus_per_task:g} with problem.device: cpu",
                "0, or problem.device: cuda",
            )
        if isinstance(backend, Optuna) and backend.workers > 1 and backend.storage is None:
            raise conflict(
                "backend.workers",
                f"{backend.workers} without backend.storage",
                "1, or a storage that several processes can open",
            )
        return self

    @property
    def batch_size(self) -> int | Literal["full"]:
        """The batch size with its default filled in."""
        if self.problem.batch_size is not None:
            return self.problem.batch_size
        return "full" if self.method.name == "deterministic" else DEFAULT_BATCH

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


# Where a name decides which keys are allowed: dotted path of the section -> its kinds.
KINDS: dict[tuple[str, ...], dict[str, type[Section]]] = {
    ("problem", "dataset"): DATASETS,
    ("problem", "model"): MODELS,
    ("method",): METHODS,
    ("backend",): BACKENDS,
}
SECTIONS: dict[tuple[str, ...], type[Section]] = {(): Experiment, ("problem",): Problem}
