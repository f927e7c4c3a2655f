"""What may be said about the method: the four variants and their inputs, told apart by `name`.

None of the inputs has to be known or tuned: any positive number is right, and costs at most a
logarithm. There is no learning rate, smoothness or distance to give.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from grasp_tune.config.section import (
    Positive,
    Real,
    Section,
    Text,
    conflict,
    expected,
    is_entry_point,
    name_tag,
    named,
)
from grasp_tune.optimizers.registry import optimizer_names


def _base(value: str) -> str:
    if value not in optimizer_names() and not is_entry_point(value):
        raise expected(
            f"one of {', '.join(optimizer_names())}, or module:function", choices=optimizer_names()
        )
    return value


Base = Annotated[Text, AfterValidator(_base)]
Share = Annotated[Real, Field(gt=0, lt=1)]

_BASE = (
    f"Optimizer that the search runs: {', '.join(optimizer_names())}, or `module:function` that "
    "takes (parameters, value) and returns an Optimizer; empty: the paper's for the schedule "
    "`paper`, the one that measured best for `promote`."
)
_PROBE = (
    "Share of the budget spent at the start point to find the range of the search; empty: the "
    "schedule's own (a quarter for `paper`)."
)
_D_EPS = (
    "Where the searched distances begin; any positive number is right, a smaller "
    "one costs a logarithm."
)
_L_EPS = (
    "Floor for the unknown smoothness; any positive number is right, a smaller "
    "one costs a logarithm."
)
_DELTA = "Probability with which the guarantee may fail."


class NonConvex(Section):
    """GRASP-NC: for neural networks and every other smooth loss; chooses by the gradient norm."""

    name: Annotated[Literal["nonconvex"], Field(description="This method.")] = "nonconvex"
    L_eps: Annotated[Positive, Field(description=_L_EPS)] = 1e-2
    F_eps: Annotated[
        Positive,
        Field(description="Floor for the unknown gain in loss; any positive number is right."),
    ] = 1e-2
    delta: Annotated[Real, Field(gt=0, lt=1 / 3, description=_DELTA)] = 0.05
    probe: Annotated[Share | None, Field(description=_PROBE)] = None
    base: Annotated[Base | None, Field(description=_BASE)] = None


class Convex(Section):
    """GRASP-C: for convex losses, such as softmax regression; chooses by the loss."""

    name: Annotated[Literal["convex"], Field(description="This method.")] = "convex"
    d_eps: Annotated[Positive, Field(description=_D_EPS)] = 1e-2
    L_eps: Annotated[Positive, Field(description=_L_EPS)] = 1e-2
    option: Annotated[
        Literal["smooth", "universal"],
        Field(description="The paper's Option I (smooth losses) or II (smooth or not)."),
    ] = "smooth"
    value_floor: Annotated[
        Real,
        Field(
            description="For `universal`: a number that the loss never goes below; 0 for the usual "
            "losses."
        ),
    ] = 0.0
    delta: Annotated[Real, Field(gt=0, lt=1 / 2, description=_DELTA)] = 0.05
    probe: Annotated[Share | None, Field(description=_PROBE)] = None
    base: Annotated[Base | None, Field(description=_BASE)] = None

    @model_validator(mode="after")
    def _floor_has_a_use(self) -> Convex:
        if self.option == "smooth" and self.value_floor != 0.0:
            raise conflict(
                "method.value_floor",
                f"{self.value_floor:g} with option: smooth",
                "no value_floor, or option: universal",
            )
        return self


class ConvexFree(Section):
    """GRASP-C for convex losses without any known lower bound."""

    name: Annotated[Literal["convex-free"], Field(description="This method.")] = "convex-free"
    d_eps: Annotated[Positive, Field(description=_D_EPS)] = 1e-2
    delta: Annotated[Real, Field(gt=0, lt=1 / 2, description=_DELTA)] = 0.05
    base: Annotated[Base | None, Field(description=_BASE)] = None


class Deterministic(Section):
    """For smooth convex losses with exact gradients: every batch is the whole data set."""

    name: Annotated[Literal["deterministic"], Field(description="This method.")] = "deterministic"
    d_eps: Annotated[Positive, Field(description=_D_EPS)] = 1e-2
    L_eps: Annotated[Positive, Field(description=_L_EPS)] = 1e-2
    base: Annotated[Base | None, Field(description=_BASE)] = None


METHODS: dict[str, type[Section]] = {
    "nonconvex": NonConvex,
    "convex": Convex,
    "convex-free": ConvexFree,
    "deterministic": Deterministic,
}


def _tag(value: object) -> str | None:
    return name_tag(value, default="nonconvex")


_AnyMethod = Annotated[
    Annotated[NonConvex, Tag("nonconvex")]
    | Annotated[Convex, Tag("convex")]
    | Annotated[ConvexFree, Tag("convex-free")]
    | Annotated[Deterministic, Tag("deterministic")],
    Discriminator(_tag),
]
MethodOptions = Annotated[
    _AnyMethod, BeforeValidator(named, json_schema_input_type=str | _AnyMethod)
]
