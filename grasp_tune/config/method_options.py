"""What may be said about the method: the inputs of the four variants, told apart by `name`.

Names and defaults are those of the classes in `core.methods`; only what a config says about them
stands here. None of the inputs has to be known or tuned: any positive number is right, and costs
at most a logarithm. There is no learning rate, smoothness or distance to give.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model, model_validator

from grasp_tune.config.section import (
    NamedSection,
    Positive,
    Real,
    Text,
    conflict,
    known_or_own,
)
from grasp_tune.core.methods import Convex, ConvexFree, Deterministic, NonConvex
from grasp_tune.optimizers.registry import optimizer_names


class MethodSection(NamedSection):
    """A variant of the method."""

    # Its subclasses are made below and have no source text in which to look for docstrings.
    model_config = ConfigDict(use_attribute_docstrings=False)

    base: Annotated[Text, known_or_own(optimizer_names)] | None = Field(
        None,
        description=f"Optimizer that the search runs: {', '.join(optimizer_names())}, or "
        "`module:function` that takes (parameters, value) and returns an Optimizer; empty: the "
        "paper's for the schedule `paper`, the one that measured best for `promote`.",
    )

    @model_validator(mode="after")
    def _floor_has_a_use(self) -> MethodSection:
        floor = getattr(self, "value_floor", 0.0)
        if floor != 0.0 and getattr(self, "option", "") == "smooth":
            raise conflict(
                "method.value_floor",
                f"{floor:g} with option: smooth",
                "no value_floor, or option: universal",
            )
        return self


_ANY = "any positive number is right, a smaller one costs a logarithm."
_FAIL = "Probability with which the guarantee may fail."
_INPUTS: dict[str, Any] = {
    "d_eps": (Positive, f"Where the searched distances begin; {_ANY}"),
    "L_eps": (Positive, f"Floor for the unknown smoothness; {_ANY}"),
    "F_eps": (Positive, "Floor for the unknown gain in loss; any positive number is right."),
    "delta": (Annotated[Real, Field(gt=0, lt=1 / 2)], _FAIL),
    "option": (
        Literal["smooth", "universal"],
        "The paper's Option I (smooth losses) or II (smooth or not).",
    ),
    "value_floor": (
        Real,
        "For `universal`: a number that the loss never goes below; 0 for the usual losses.",
    ),
    "probe": (
        Annotated[Real, Field(gt=0, lt=1)] | None,
        "Share of the budget spent at the start point to find the range of the search; empty: the "
        "schedule's own (a quarter for `paper`).",
    ),
}


def _section(method: type, doc: str, **other: Any) -> type[MethodSection]:
    """The section of a variant: a key for every input of its class, with the class's default."""
    name: str = method.name  # type: ignore[attr-defined]
    keys: dict[str, Any] = {"name": (Literal[name], Field(name, description="This method."))}
    for item in fields(method):
        if item.name in _INPUTS:
            kind, meaning = {**_INPUTS, **other}[item.name]
            keys[item.name] = (kind, Field(item.default, description=meaning))
    return create_model(method.__name__, __base__=MethodSection, __doc__=doc, **keys)


METHODS: dict[str, type[MethodSection]] = {
    "nonconvex": _section(
        NonConvex,
        "GRASP-NC: for neural networks and every other smooth loss; chooses by the gradient norm.",
        delta=(Annotated[Real, Field(gt=0, lt=1 / 3)], _FAIL),
    ),
    "convex": _section(
        Convex, "GRASP-C: for convex losses, such as softmax regression; chooses by the loss."
    ),
    "convex-free": _section(ConvexFree, "GRASP-C for convex losses without any known lower bound."),
    "deterministic": _section(
        Deterministic,
        "For smooth convex losses with exact gradients: every batch is the whole data set.",
    ),
}
