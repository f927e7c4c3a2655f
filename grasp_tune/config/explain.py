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
    path: Path = ()
    kind = ""  # pydantic puts it into the key: `problem.dataset.npz.path`
    for part in map(str, detail["loc"]):
        if path in KINDS and not kind:
            kind = part
        else:
            path = (*path, part)
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


def hint(word: str, choices: Iterable[str], words: str = " (did you mean {}?)") -> str:
    """A question for the choice most like the word; empty where none is."""
    by_lower = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return words.format(by_lower[matches[0]]) if matches else ""


def _right_key(path: Path, kind: str) -> str:
    """Words for the key that was probably meant: elsewhere, here, or all that are allowed."""
    *above, word = path
    places = {place: {"": section} for place, section in SECTIONS.items()}
    places |= {place: dict(one_of.kinds) for place, one_of in KINDS.items()}
    here = places.pop(tuple(above), {}).get(kind)
    for place, sections in places.items():
        if any(word in section.model_fields for section in sections.values()):
            return f"it as {'.'.join((*place, word))}"
    keys = sorted(here.model_fields) if here else []
    nearest = hint(word, keys, "{}, the nearest key")
    return nearest or (f"one of {', '.join(keys)}" if keys else "no such key")
