"""The parts that every section of a config shares: frozen, strict about types and about keys.

A section describes and checks; it imports neither torch nor any data. Numbers must be numbers
(`"10"` and `true` are refused, `1e4` is a fine whole number), so that a slip in a file is an error
at its key and not a surprise an hour later.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict
from pydantic_core import PydanticCustomError

_ENTRY_POINT = re.compile(
    r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z", re.ASCII
)


class Section(BaseModel):
    """A frozen mapping with known keys; unknown keys are errors."""

    # protected_namespaces: `model` is our word for the network, not pydantic's.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )


def expected(text: str, **context: Any) -> PydanticCustomError:
    """The error whose text is what would be right; the loader adds the file, key and value."""
    return PydanticCustomError("expected", "{expected}", {"expected": text, **context})


def conflict(key: str, got: str, wanted: str) -> PydanticCustomError:
    """The error of two values that exclude each other, told at `key` (dotted, from the top)."""
    return PydanticCustomError(
        "conflict",
        "{key}: got {got}, expected {expected}",
        {"key": key, "got": got, "expected": wanted},
    )


def is_entry_point(text: object) -> bool:
    """Whether the text has the form `module:function`."""
    return isinstance(text, str) and _ENTRY_POINT.match(text) is not None


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise expected("a whole number")
    return value


def _real(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise expected("a number")
    return value


def _text(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        raise expected("text")
    if "\0" in value or len(value) > 4096:
        raise expected("text of at most 4096 characters without null characters")
    return value


def _entry_point(value: str) -> str:
    if not is_entry_point(value):
        raise expected("an entry point, module:function")
    return value


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]
Real = Annotated[float, BeforeValidator(_real, json_schema_input_type=float)]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str)]
EntryPoint = Annotated[Text, AfterValidator(_entry_point)]
Positive = Annotated[Real, Field(gt=0)]
Count = Annotated[Whole, Field(ge=1)]
Seed = Annotated[Whole, Field(ge=0, lt=10**18)]  # 18 digits, as many as a config may have


def named(value: object) -> object:
    """`{name: value}` for a bare word, so that `dataset: digits` may be written; else the value."""
    return {"name": value} if isinstance(value, str) else value


def name_tag(value: object, key: str = "name", default: str | None = None) -> str | None:
    """The tag by which a union of sections is told apart: the name, or `module:function`."""
    name = value.get(key, default) if isinstance(value, dict) else getattr(value, key, None)
    if not isinstance(name, str):
        return None
    return "module:function" if is_entry_point(name) else name


def _flag_or_auto(value: object) -> object:
    # Told here, for a union of two types would give two errors about one slip.
    if not isinstance(value, bool) and value != "auto":
        raise expected("true, false or auto")
    return value


FlagOrAuto = Annotated[bool | Literal["auto"], BeforeValidator(_flag_or_auto)]
