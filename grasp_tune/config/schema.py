"""The whole of an experiment, checked once; what needs the data is checked when it is built."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grasp_tune.config import options
from grasp_tune.config import section as s
from grasp_tune.config.entry_point import is_entry_point, load_entry_point
from grasp_tune.core.errors import InputError
from grasp_tune.core.methods import Method, method_from_dict
from grasp_tune.data.options import DATASETS, Dataset
from grasp_tune.schedules import find_schedule

LOSSES = ("cross_entropy", "logistic", "mse", "hinge")
UNLIMITED = 10**15  # the largest budget; with another limit: as that one says
_DEVICE = s.checked(
    lambda name: re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", str(name)),
    "auto, cpu, cuda, cuda:N or mps",
)

# Where a name decides which keys are allowed: path of the section -> its kinds.
KINDS: dict[tuple[str, ...], s.OneOf] = {
    ("problem", "dataset"): s.OneOf(DATASETS),
    ("problem", "model"): s.OneOf(options.MODELS),
    ("method",): s.OneOf(options.METHODS, default="nonconvex"),
    ("backend",): s.OneOf(options.BACKENDS, key="kind", default="local"),
}


class Problem(s.Section):
    """What is minimized: a model's loss over data."""

    dataset: Annotated[Dataset, KINDS["problem", "dataset"]]
    """The data: a name, a name with options, or `module:function`."""
    model: Annotated[options.Model, KINDS["problem", "model"]] | None = None
    """A name, one with options, or `module:function`; empty: linear if convex, else mlp."""
    loss: Annotated[s.Text, s.known_or_own(lambda: LOSSES)] | None = None
    """cross_entropy, logistic, mse, hinge, or `module:function` that takes (model, batch) and
    returns a scalar; empty: what fits the model and the data."""
    augment: tuple[Annotated[s.Text, s.known_or_own(lambda: ("flip", "crop", "noise"))], ...] = ()
    """Random changes of training minibatches: flip (pictures left to right), crop (moved by up to
    an eighth of their side), noise (a tenth of the deviation), or `module:function` of inputs."""
    batch_size: s.Batch | None = None
    """Rows in one minibatch; empty: 64, or `full` for the method deterministic, which needs it."""
    validation: s.Share = 0.0
    """Share of the training rows kept aside, on which the final choice is then made."""
    metric: Annotated[s.Text, s.known_or_own(lambda: ("accuracy", "f1", "auc", "r2"))] | None = None
    """Told beside the loss, larger is better: accuracy, f1 (of the second of two classes), auc,
    r2, or `module:function` of (outputs, targets); empty: accuracy for classes."""
    choose_by: Literal["loss", "metric"] = "loss"
    """What the final choice goes by: the loss, or `metric` on the validation rows."""
    weight_decay: Annotated[s.Real, Field(ge=0)] = 0.0
    """Decoupled, as in AdamW: a step multiplies the weights by 1 - step size times this number."""
    clip: s.Positive | None = None
    """The largest norm of a step's gradient; a larger one is scaled down to it; empty: none."""
    device: Annotated[s.Text, _DEVICE] = "cpu"
    """cpu, cuda, cuda:1, mps; auto: a GPU if there is one."""


class Experiment(s.Section):
    """One experiment: everything that a run depends on."""

    title: Annotated[s.Text, Field(max_length=200)] | None = None
    """A heading for the report."""
    problem: Problem
    """What is minimized."""
    method: Annotated[options.MethodSection, KINDS["method",]] = Field(
        default_factory=lambda: options.METHODS["nonconvex"].model_validate({})
    )
    """The variant of the method and its inputs."""
    budget: Annotated[s.Count, Field(le=UNLIMITED)] = 10_000
    """Oracle calls (gradients or values of one minibatch) in all; the smallest limit counts."""
    steps: s.Count | None = None
    """As many oracle calls as one plain training of so many steps makes."""
    epochs: s.Positive | None = None
    """As many oracle calls as one plain training makes in so many passes over the training rows."""
    minutes: s.Positive | None = None
    """Minutes of the clock: alone, turned into calls by timing a few gradients. The backend local
    stops when they are over, with the best so far."""
    schedule: Literal["promote", "paper"] = "promote"
    """`promote` gives most to the best of a short list; `paper` is the paper's to the letter,
    but for the choice where there are validation rows: their loss decides."""
    patience: Annotated[s.Whole, Field(ge=0)] | None = None
    """End the final run when so many of its eight parts in a row got no better on validation rows
    (or fresh minibatches); 0: never; empty: 3 with validation data and 2,000 calls or more."""
    schedule_options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the schedule that differ from their defaults, as `gt.Promote(...)` takes them."""
    ensemble: Literal["resample", "window"] = "resample"
    """How the choice is made: on fresh minibatches, or, as in the paper, by a run's last 100."""
    challengers: Annotated[tuple[options.Optimizer, ...], Field(max_length=32)] = Field(
        (), description=f"Other optimizers that join the search: {options.OPTIMIZERS}."
    )
    backend: Annotated[options.BackendSection, KINDS["backend",]] = options.Local()
    """Where the work runs."""
    seed: s.Seed = 0
    """Fixes everything that is random; the same seed gives the same result."""
    out: s.Place = None
    """Folder for checkpoints, results and the report; `--out` wins over it."""

    @model_validator(mode="before")
    @classmethod
    def _other_limits(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "budget" in given:
            return given
        others = [given.get(key) for key in ("steps", "epochs", "minutes")]
        return given if others == [None] * 3 else {**given, "budget": UNLIMITED}

    @model_validator(mode="after")
    def _fits_together(self) -> "Experiment":
        for key, got, wanted in self._conflicts():
            raise s.wrong(wanted, key=key, got=got)
        return self

    def _conflicts(self) -> Iterator[tuple[str, str, str]]:
        """Pairs of values that exclude each other: the key, what is there, what would be right."""
        problem, backend, method = self.problem, self.backend, self.method.name
        size, share = problem.batch_size, problem.validation
        if method != "deterministic" and size == "full":
            right = "a whole number; only method: deterministic takes the whole data"
            yield "problem.batch_size", f"full with method: {method}", right
        if method == "deterministic" and isinstance(size, int):
            right = "full, for that method needs exact gradients"
            yield "problem.batch_size", f"{size} with method: {method}", right
        file = getattr(problem.dataset, "validation_path", None)
        key, none = ("dataset.validation_path", "none") if file else ("validation", "0")
        if self.ensemble == "window" and (file or share):
            right = f"{none}, for a window looks only at training minibatches"
            yield f"problem.{key}", f"{file or share} with ensemble: window", right
        if problem.choose_by == "metric" and not (problem.metric and (file or share)):
            right = "loss, or a problem.metric and problem.validation"
            yield "problem.choose_by", "metric without a metric or validation rows", right
        beside = "with problem.dataset.validation_path"
        if file and share:
            yield "problem.validation", f"{share:g} {beside}", "0, or no validation_path"
        if file and (test := getattr(problem.dataset, "test_share", 0.0)):
            right = "0, and test rows by problem.dataset.test_path"
            yield "problem.dataset.test_share", f"{test:g} {beside}", right
        if self.schedule == "paper" and self.challengers:
            got = f"{len(self.challengers)} with schedule: paper"
            yield "challengers", got, "none, or schedule: promote"
        if self.schedule == "paper" and self.patience is not None:
            got = f"{self.patience} with schedule: paper, which has no final run to end"
            yield "patience", got, "empty, or schedule: promote"
        if len(set(self.challengers)) < len(self.challengers):
            yield "challengers", "one of them twice", "each at most once"
        floor = getattr(self.method, "value_floor", 0.0)
        if floor and getattr(self.method, "option", "") == "smooth":
            right = "no value_floor, or option: universal"
            yield "method.value_floor", f"{floor:g} with option: smooth", right
        try:
            find_schedule(self.given_schedule)
        except InputError as error:
            yield "schedule_options", str(error), f"fields of the schedule {self.schedule}"
        gpus = getattr(backend, "gpus_per_task", 0)
        if gpus and problem.device == "cpu":
            got = f"{gpus:g} with problem.device: cpu"
            yield "backend.gpus_per_task", got, "0, or problem.device: cuda"
        if isinstance(backend, options.Optuna) and backend.workers > 1 and not backend.storage:
            got = f"{backend.workers} without backend.storage"
            yield "backend.workers", got, "1, or a storage that several processes can open"

    @property
    def batch_size(self) -> int | Literal["full"]:
        return self.problem.batch_size or ("full" if self.method.name == "deterministic" else 64)

    @property
    def given_schedule(self) -> Any:
        """The schedule as `minimize` takes it: its name, or a mapping with its options."""
        more = {} if self.patience is None else {"patience": self.patience}
        more |= self.schedule_options
        return {"name": self.schedule, **more} if more else self.schedule

    @property
    def convex(self) -> bool:
        """Whether the method's guarantee asks for a convex loss."""
        return self.method.name != "nonconvex"

    def notes(self) -> Iterator[str]:
        """Sentences on what a person should know of a config before it runs."""
        problem, model = self.problem, self.problem.model
        if self.convex and model is not None and model.name not in options.CONVEX_MODELS:
            yield (
                f"The method {self.method.name} promises its rate for convex losses; the loss of "
                f"{model.name} is not convex in general. The method nonconvex covers it."
            )
        named = [problem.dataset.name, model and model.name, problem.loss, problem.metric]
        named += [*problem.augment, self.method.base, *self.challengers]
        named.append(getattr(problem.dataset, "collate_fn", None))
        if own := sorted({str(name) for name in named if is_entry_point(name)}):
            yield f"The config runs code of its own: {', '.join(own)}."

    def build_method(self) -> Method:
        """The variant with the experiment's inputs; a base of one's own is imported here."""
        base = load_entry_point(self.method.base, "method.base")
        return method_from_dict(self.method.model_dump(), base if callable(base) else None)

    def sweep_arguments(self) -> dict[str, Any]:
        """The arguments of `minimize` that decide the result; needs no torch and no data."""
        functions = {name: load_entry_point(name, "challengers") for name in self.challengers}
        return {
            "budget": self.budget,
            "method": self.build_method(),
            "schedule": self.given_schedule,
            "seed": self.seed,
            "ensemble": self.ensemble,
            "challengers": {k: v if callable(v) else None for k, v in functions.items()},
            "fused": getattr(self.backend, "fused", "auto"),  # only `local` has a say
        }

    def to_dict(self) -> dict[str, Any]:
        """Every key with its value, JSON-safe; the loader reads it back to an equal experiment."""
        return self.model_dump(mode="json")


SECTIONS: dict[tuple[str, ...], type[s.Section]] = {(): Experiment, ("problem",): Problem}
