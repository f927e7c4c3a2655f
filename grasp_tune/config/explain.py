"""One line for what is wrong with a config: `file: key: got X, expected Y`.

Turns the first error that pydantic found into that line, in the words of the file: the key as it
was written there, the source that gave the value, and the nearest valid key or name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.schema import KINDS, SECTIONS
from grasp_tune.config.yaml_text import shown_key

Path = tuple[str, ...]

_BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}
_TYPES = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
    "string_pattern_mismatch": "auto, cpu, cuda, cuda:N or mps",  # of the one key with a pattern
}


def explained(error: ValidationError, source_of: Callable[[Path], str]) -> ConfigError:
    """The ConfigError of the first thing to mend; `source_of` names the file that set a key."""
    details = error.errors(include_url=False)
    # A misspelt key first: a value that is missing is often the same slip seen again.
    detail = next((item for item in details if item["type"] == "extra_forbidden"), details[0])
    context: dict[str, Any] = detail.get("ctx", {})
    if detail["type"] == "conflict":
        path = tuple(context["key"].split("."))
        got, wanted = context["got"], context["expected"]
    else:
        path, kind = _as_written(detail["loc"])
        got, wanted = _got_and_expected(detail["type"], detail["input"], context, path, kind)
        if detail["type"].startswith("union_tag") and isinstance(detail["input"], dict):
            path = (*path, KINDS[path].key)
    return ConfigError(source_of(path), shown_key(".".join(path)), got, wanted or detail["msg"])


def hint(word: str, choices: Iterable[str]) -> str:
    """A question for the choice most like the word; empty where none is."""
    suggestion = _nearest(word, choices)
    return f" (did you mean {suggestion}?)" if suggestion else ""


def _nearest(word: str, choices: Iterable[str]) -> str | None:
    by_lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def _one_of(word: str, choices: Iterable[str]) -> str:
    return f"one of {', '.join(choices)}{hint(word, choices)}"


def _got_and_expected(
    error: str, value: Any, context: dict[str, Any], path: Path, kind: str | None
) -> tuple[str, str]:
    """The two halves of the line; an empty second half where pydantic's own words must do."""
    match error:
        case "extra_forbidden":
            return "an unknown key", _right_key(path, kind)
        case "missing":
            return "nothing", f"a value, which {kind} needs" if kind else "a value"
        case "union_tag_invalid":
            return shown(context["tag"]), _one_of(context["tag"], KINDS[path].kinds)
        case "union_tag_not_found":
            mapping = isinstance(value, dict)
            named = value.get(KINDS[path].key) if mapping else value
            absent = mapping and named is None
            return "nothing" if absent else shown(named), _one_of("", KINDS[path].kinds)
        case "literal_error":
            allowed = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            return shown(value), _one_of(str(value), allowed)
        case "expected":
            right = context["expected"] + hint(str(value), context.get("choices", ()))
            return shown(value), right
    if error in _BOUNDS:
        sign, name = _BOUNDS[error]
        bound = context[name]
        return shown(value), f"{sign} {'1/3' if bound == 1 / 3 else format(bound, '.15g')}"
    if error.endswith(("too_short", "too_long")):
        bound = "at least {min_length}" if error.endswith("short") else "at most {max_length}"
        if error.startswith("string"):
            return shown(value), f"{bound.format(**context)} characters"
        return f"{context['actual_length']} entries", bound.format(**context)
    return shown(value), _TYPES.get(error, "")


def _as_written(loc: tuple[int | str, ...]) -> tuple[Path, str | None]:
    """The key as the file has it, and the kind of the section it is in.

    pydantic puts the tag of a union into the location: `problem.dataset.npz.path`.
    """
    path: Path = ()
    kind: str | None = None
    for part in map(str, loc):
        if path in KINDS and kind is None:
            kind = part
        else:
            path = (*path, part)
    return path, kind


def _right_key(path: Path, kind: str | None) -> str:
    """Words for the key that was probably meant: here, elsewhere, or all that are allowed."""
    *above, word = path
    parent = tuple(above)
    found = {place: {"": part} for place, part in SECTIONS.items()}
    found |= {place: dict(one_of.kinds) for place, one_of in KINDS.items()}
    for place, parts in found.items():
        if place != parent and any(word in part.model_fields for part in parts.values()):
            return f"it as {'.'.join((*place, word))}"
    section = found.get(parent, {}).get(kind or "")
    here = () if section is None else tuple(section.model_fields)
    if (suggestion := _nearest(word, here)) is not None:
        return f"{suggestion}, the nearest key"
    return f"one of {', '.join(sorted(here))}" if here else "no such key"
