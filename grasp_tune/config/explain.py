"""One line for what is wrong with a config: `file: key: got X, expected Y`.

Turns the first error that pydantic found into that line, in the words of the file: the key as it
was written there, the source that gave the value, and the nearest valid key or name.
"""

import difflib
import re
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from grasp_tune.config.errors import ConfigError, shown
from grasp_tune.config.schema import KINDS, SECTIONS

Path = tuple[str, ...]
_OURS = {  # pydantic's words, and ours
    r"(Input|\w+) should (be|have|match pattern) |, got a .*| after validation.*": "",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid tuple": "a list",
    "a valid dictionary.*": "a mapping",
    "a valid number": "a number",
    "greater than or equal to": ">=",
    "less than or equal to": "<=",
    "greater than": ">",
    "less than": "<",
}


def explained(error: ValidationError, source_of: Callable[[Path], str]) -> ConfigError:
    """The ConfigError of the first thing to mend; `source_of` names the file that set a key."""
    details = error.errors(include_url=False)
    # A misspelt key first: a value that is missing is often the same slip seen again.
    detail = next((item for item in details if item["type"] == "extra_forbidden"), details[0])
    what, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    path, kind = _as_written(detail["loc"])
    got, wanted, choices = shown(value), detail["msg"], context.get("choices", ())
    for theirs, ours in _OURS.items():
        wanted = re.sub(theirs, ours, wanted)
    if what == "expected":
        path = tuple(context["key"].split(".")) if context["key"] else path
        got = context["got"] or got
    elif what == "extra_forbidden":
        got, wanted = "an unknown key", _right_key(path, kind)
    elif what == "missing":
        got, wanted = "nothing", f"a value, which {kind} needs" if kind else "a value"
    elif what.startswith("union_tag"):
        choices, value = KINDS[path].kinds, context.get("tag", value)
        wanted = f"one of {', '.join(choices)}"
        if isinstance(detail["input"], dict):
            value = detail["input"].get(KINDS[path].key)
            path = (*path, KINDS[path].key)
        got = "nothing" if value is None else shown(value)
    elif what == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
    return ConfigError(source_of(path), ".".join(path), got, wanted + hint(str(value), choices))


def hint(word: str, choices: Iterable[str]) -> str:
    """A question for the choice most like the word; empty where none is."""
    suggestion = _nearest(word, choices)
    return f" (did you mean {suggestion}?)" if suggestion else ""


def _nearest(word: str, choices: Iterable[str]) -> str | None:
    by_lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


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
    found = {place: {"": part} for place, part in SECTIONS.items()}
    found |= {place: dict(one_of.kinds) for place, one_of in KINDS.items()}
    parent = found.pop(tuple(above), {})
    for place, parts in found.items():
        if any(word in part.model_fields for part in parts.values()):
            return f"it as {'.'.join((*place, word))}"
    here = parent[kind or ""].model_fields if (kind or "") in parent else {}
    if (suggestion := _nearest(word, here)) is not None:
        return f"{suggestion}, the nearest key"
    return f"one of {', '.join(sorted(here))}" if here else "no such key"
