"""The parts that every section of a config shares: frozen, strict about types and about keys.

Numbers must be numbers: `"10"` and `true` are refused, `1e4` is a fine whole number. The text below
a key is what the reference says of it. Nothing here imports torch.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from grasp_tune.config.entry_point import is_entry_point

_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/)(?!:memory:)(.+)\Z", re.DOTALL)
MASK = "***"
KIND = Field(description="Which kind this is.")
# Marks the keys by which a run writes a file or opens a connection: see `run_folder.check_reach`.
REACHES = "reaches"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Section(BaseModel):
    """A frozen mapping with known keys; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class NamedSection(Section):
    """A section whose `name` decides which keys it has."""

    name: Annotated[str, KIND]


@dataclass(frozen=True, eq=False)
class OneOf:
    """Marks a key whose section is told apart by a word; a bare word stands for its section."""

    kinds: Mapping[str, type[Section]]  # by name; read when the schema is built
    key: str = "name"  # the one that holds the name
    default: str | None = None  # the name where none is given; None: it must be given

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        choices = {name: handler.generate_schema(kind) for name, kind in self.kinds.items()}
        union = core_schema.tagged_union_schema(choices, self.tag)
        either = core_schema.union_schema([core_schema.str_schema(), union])
        return core_schema.no_info_before_validator_function(
            self.opened, union, json_schema_input_schema=either
        )

    def opened(self, value: object) -> object:
        """`{name: value}` for a bare word, else the value."""
        return {self.key: value} if isinstance(value, str) else value

    def tag(self, value: Any) -> str | None:
        """The name in a mapping or section; `module:function` for all of that form."""
        mapping = isinstance(value, Mapping)
        name = value.get(self.key, self.default) if mapping else getattr(value, self.key, None)
        if is_entry_point(name):
            return "module:function"
        return name if isinstance(name, str) else None


def by_name(*kinds: type[Any]) -> dict[str, type[Any]]:
    """The sections by the names that they take; `module:function` for one of the user's own."""
    fields = [kind.model_fields for kind in kinds]
    names = [get_args((keys.get("name") or keys["kind"]).annotation) for keys in fields]
    pairs = zip(names, kinds, strict=True)
    return {word: kind for words, kind in pairs for word in words or ("module:function",)}


def wrong(wanted: str, **more: Any) -> PydanticCustomError:
    """The error that tells what would be right.

    more: `key`, dotted, if not the one checked; `got`; `choices`, of which the nearest is offered.
    """
    return PydanticCustomError("expected", "{expected}", {"expected": wanted, **more})


def absolute(text: str) -> str:
    """The absolute path; a URL stays as it is, but for the file of an SQLite one."""
    if match := _SQLITE.match(text):
        return f"{match[1]}{absolute(match[2])}"
    return text if "://" in text else str(Path(text).expanduser().absolute())


def masked(url: str | None) -> str | None:
    """The URL with three stars for its password, if it has one."""
    return url and re.sub(r"(?<=://)([^/@:\s]*):([^/\s]*)@", rf"\1:{MASK}@", url)


def checked(right: Callable[[Any], object], wanted: str) -> BeforeValidator:
    """A check of a value before its type, told as one error."""

    def check(value: object) -> object:
        if right(value):
            return value
        raise wrong(wanted)

    return BeforeValidator(check)


def known_or_own(names: Callable[[], tuple[str, ...]]) -> BeforeValidator:
    """A check that text is one of the names at that time, or `module:function`."""

    def check(value: object) -> object:
        if value in names() or is_entry_point(value):
            return value
        raise wrong(f"one of {', '.join(names())}, or module:function", choices=names())

    return BeforeValidator(check)


def _whole(value: object) -> object:
    exact = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if exact else value  # type: ignore[call-overload]


Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole)]
Real = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
# Told by one check, for a union of two types would give two errors about one slip.
_FLAG = checked(lambda x: isinstance(x, bool) or x == "auto", "true, false or auto")
FlagOrAuto = Annotated[bool | Literal["auto"], _FLAG]
_ROWS = "a whole number from 1 to 1000000, or full"
_BATCH = checked(lambda x: x == "full" or (type(x) is int and 1 <= x <= 1_000_000), _ROWS)
Batch = Annotated[int | Literal["full"], _BATCH, BeforeValidator(_whole)]
# Control characters reach terminals, and as lines of their own a journal that a shell may read.
_HARMLESS = checked(lambda x: not _CONTROL.search(str(x)), "text without control characters")
_QUOTED = "text, in quotes where it looks like a number"
_TEXT = checked(lambda value: isinstance(value, str) and value.strip() != "", _QUOTED)
Text = Annotated[str, Field(max_length=4096), _HARMLESS, _TEXT]
# Absolute from the start: a run may be resumed from another folder.
PathText = Annotated[Text, AfterValidator(absolute)]
# Where a run writes; what is shown or stored of it holds no password.
Place = Annotated[PathText | None, REACHES, PlainSerializer(masked, str | None)]
EntryPoint = Annotated[Text, checked(is_entry_point, "an entry point, module:function")]
Positive = Annotated[Real, Field(gt=0)]
Share = Annotated[Real, Field(ge=0, lt=1)]
Count = Annotated[Whole, Field(ge=1)]
Seed = Annotated[Whole, Field(ge=0, lt=10**18)]  # 18 digits, as many as a config may have
