"""The page of every key of a config: `python scripts/config_reference.py > docs/configs.md`."""

from __future__ import annotations

import json
import sys
import types
import typing
from typing import Any

from pydantic_core import PydanticUndefined

from grasp_tune.config.schema import KINDS, SECTIONS
from grasp_tune.config.section import OneOf, Section

_HEAD = """\
# Every key of a config

Written by `python scripts/config_reference.py > docs/configs.md`; do not edit by hand.

A config is a YAML file. Only `problem.dataset` has no default, so this is a whole config:

```yaml
problem:
  dataset: digits
```

- Where a section has a `name` (or `kind`), a bare word stands for it: `dataset: digits` is
  `dataset: {name: digits}`.
- `include: shared.yaml` (or a list) lays this file over another one, which must be in the same
  folder or below it. Mappings are merged; a section whose `name` changes is replaced.
- `--set problem.batch_size=32` and the environment variable `GRASP_TUNE__PROBLEM__BATCH_SIZE=32`
  override a key; `--set` wins.
- Relative paths start from the working directory, `~` is your home.
- Numbers may be written `1e-3`; keys may not be repeated; YAML tags are refused.
"""


def markdown() -> str:
    """A page that lists every key with its meaning, its type and its default."""
    parts = [_HEAD]
    for path, section in SECTIONS.items():
        title = f"`{'.'.join(path)}`" if path else "The top level"
        parts.append(f"## {title}\n\n{_table(section)}")
    for path, kinds in KINDS.items():
        parts.append(f"## `{'.'.join(path)}`\n")
        for name, kind in kinds.kinds.items():
            parts.append(f"### {name}\n\n{_summary(kind)}\n\n{_table(kind)}")
    return "\n".join(parts)


def _summary(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split())


def _table(section: type[Section]) -> str:
    rows = ["| key | meaning | values | default |", "|---|---|---|---|"]
    # The word that chooses the kind first, whatever the order in the class.
    fields = sorted(section.model_fields.items(), key=lambda item: item[0] not in ("name", "kind"))
    for key, field in fields:
        meaning = _cell(field.description or "")
        values = _cell(_values(field.annotation, field.metadata))
        rows.append(f"| `{key}` | {meaning} | {values} | {_cell(_default(field))} |")
    return "\n".join(rows) + "\n"


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Section):
        return f"`{getattr(value, 'name', getattr(value, 'kind', ''))}`"
    if value is None or value is PydanticUndefined:
        return "empty"
    return f"`{json.dumps(value)}`"


def _values(annotation: Any, metadata: list[Any]) -> str:
    """Words for a type: number, text, list, or the choices."""
    if any(isinstance(item, OneOf) for item in metadata):
        return "a name, or a mapping"
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return _values(inner, [*metadata, *more])
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        members = [part for part in typing.get_args(annotation) if part is not type(None)]
        return " or ".join(_values(part, metadata) for part in members)
    if origin is tuple:
        return "a list"
    if _is_section(annotation) or origin is dict:
        return "a mapping"
    words = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return words.get(annotation, "text") + _bounds(metadata)


def _is_section(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Annotated:
        return _is_section(typing.get_args(annotation)[0])
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _bounds(metadata: list[Any]) -> str:
    found = []
    for item in metadata:
        for constraint in getattr(item, "metadata", None) or [item]:
            for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
                bound = getattr(constraint, name, None)
                if bound is not None:
                    whole = bound == round(bound) and bound < 1e7
                    found.append(f"{sign} {bound:,.0f}" if whole else f"{sign} {bound:.3g}")
    return f" {', '.join(found)}" if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(markdown())
