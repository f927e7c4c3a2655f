"""Frozen dataclasses to JSON and back, strictly.

What crosses a process or a disk is one of our frozen dataclasses. This module writes any of them
as plain JSON values and reads them back with every type checked, so that a foreign or damaged
file is refused here and nowhere else. Non-finite floats are written as the strings `nan`, `inf`,
`-inf`: they are legitimate outcomes and JSON has no word for them.
"""

import math
import types
import typing
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from grasp_tune.core.checkpoint_keys import Key
from grasp_tune.core.errors import InputError

Json = Any  # what json.loads gives
Record = TypeVar("Record")

_LARGEST = 2**1023  # of the whole numbers that are read as floats; far larger ones overflow
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: object) -> Json:
    """Return `value` as JSON values: dataclasses as dicts, tuples as lists, keys as text."""
    if isinstance(value, Key):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"cannot write a {type(value).__name__} as JSON")


def decode(kind: type[Record], value: Json) -> Record:
    """Return the record of class `kind` that `encode` wrote as `value`, every type checked."""
    return typing.cast(Record, _decode(kind, value, kind.__name__))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, value: Json, where: str) -> object:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(kind), value, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), value, where)
    if origin is typing.Literal:
        if value in typing.get_args(kind):
            return value
    elif kind is Key:
        if isinstance(value, str):
            return Key.parse(value)
    elif is_dataclass(kind):
        return _decode_record(typing.cast(type, kind), value, where)
    elif kind is float:
        if isinstance(value, str) and value in _WORDS:
            return _WORDS[value]
        if isinstance(value, float) or (type(value) is int and abs(value) <= _LARGEST):
            return float(value)
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif kind in (str, bool) and isinstance(value, kind):
        return value
    elif kind is type(None) and value is None:
        return None
    shown = repr(value)
    raise InputError(f"{where}: got {shown[:80]}, expected {getattr(kind, '__name__', kind)}")


def _decode_union(choices: tuple[Any, ...], value: Json, where: str) -> object:
    if value is None and type(None) in choices:
        return None
    rest = [choice for choice in choices if choice is not type(None)]
    if len(rest) != 1:
        raise InputError(f"{where}: a record may only be one type or None, not {rest}")
    return _decode(rest[0], value, where)


def _decode_tuple(items: tuple[Any, ...], value: Json, where: str) -> object:
    if not isinstance(value, list):
        raise InputError(f"{where}: got {type(value).__name__}, expected a list")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_decode(items[0], entry, f"{where}[{at}]") for at, entry in enumerate(value))
    if len(items) != len(value):
        raise InputError(f"{where}: got {len(value)} entries, expected {len(items)}")
    pairs = zip(items, value, strict=True)
    return tuple(_decode(item, entry, f"{where}[{at}]") for at, (item, entry) in enumerate(pairs))


def _decode_record(kind: type, value: Json, where: str) -> object:
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {type(value).__name__}, expected an object")
    hints = _hints(kind)
    names = [item.name for item in fields(kind)]
    unknown, missing = sorted(set(value) - set(names)), [n for n in names if n not in value]
    if unknown or missing:
        raise InputError(f"{where}: unknown keys {unknown}, missing keys {missing}")
    return kind(**{name: _decode(hints[name], value[name], f"{where}.{name}") for name in names})
