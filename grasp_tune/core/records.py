"""Frozen dataclasses to JSON and back, with every type checked: foreign files are refused here.

Non-finite floats, for which JSON has no word, are written as the strings `nan`, `inf`, `-inf`.
"""

import hashlib
import json
import math
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

from grasp_tune.core.errors import InputError

Json = Any  # what json.loads gives
Record = TypeVar("Record")

_LARGEST = 2**1023  # of the whole numbers that are read as floats; far larger ones overflow
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: object) -> Json:
    """Return `value` as JSON values: dataclasses as dicts, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"cannot write a {type(value).__name__} as JSON")


def fingerprint(*values: Json) -> str:
    """Return a short digest of JSON values, the same in every process."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


@dataclass_transform(frozen_default=True)
def record(kind: type[Record]) -> type[Record]:
    """Make a frozen dataclass of which two are equal where their values are; NaN equals NaN."""

    def same(one: object, other: object) -> bool:
        return type(one) is type(other) and bool(encode(one) == encode(other))

    made = dataclass(frozen=True, slots=True)(kind)
    made.__eq__ = same  # type: ignore[method-assign]
    return made


@cache
def _types(kind: Any) -> dict[str, Any]:
    """Return the type of each field of a dataclass, nothing of anything else."""
    hints = typing.get_type_hints(kind) if is_dataclass(kind) else {}
    return {item.name: hints[item.name] for item in fields(kind)} if hints else {}


@typing.overload
def decode(kind: type[Record], value: Json, where: str = "") -> Record: ...
@typing.overload
def decode(kind: Any, value: Json, where: str = "") -> Any: ...
def decode(kind: Any, value: Json, where: str = "") -> Any:
    """Return the record of class `kind` that `encode` wrote as `value`, every type checked.

    kind: a class, or several, of which it is the one with these very fields.
    where: the place of the value, for messages.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    wanted = getattr(kind, "__name__", str(kind))
    where = where or ("record" if isinstance(kind, types.UnionType) else wanted)
    if origin in (typing.Union, types.UnionType):  # one type or None, or several records
        if value is None and types.NoneType in inner:
            return None
        rest = [choice for choice in inner if choice is not types.NoneType]
        alike = [x for x in rest if isinstance(value, dict) and value.keys() == _types(x).keys()]
        return decode((alike or rest)[0], value, where)
    if kind is Any:
        return value
    if origin is list and isinstance(value, list):
        return [decode(inner[0], item, f"{where}[{at}]") for at, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: decode(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is tuple and isinstance(value, list):
        items = inner[:1] * len(value) if inner[1:] == (Ellipsis,) else inner
        if len(items) == len(value):
            pairs = enumerate(zip(items, value, strict=True))
            return tuple(decode(item, entry, f"{where}[{at}]") for at, (item, entry) in pairs)
        wanted = f"{len(items)} entries"
    elif is_dataclass(kind) and isinstance(value, dict):
        known = _types(typing.cast(type, kind))
        if value.keys() != known.keys():
            unknown, missing = sorted(value.keys() - known), sorted(known.keys() - value)
            raise InputError(f"{where}: unknown keys {unknown}, missing keys {missing}")
        found = {name: decode(known[name], value[name], f"{where}.{name}") for name in known}
        return typing.cast(type, kind)(**found)
    elif kind is float:
        if isinstance(value, str) and value in _WORDS:
            return _WORDS[value]
        if isinstance(value, float) or (type(value) is int and abs(value) <= _LARGEST):
            return float(value)
    elif value in inner if origin is typing.Literal else type(value) is (origin or kind):
        return value
    raise InputError(f"{where}: got {repr(value)[:80]}, expected {wanted}")
