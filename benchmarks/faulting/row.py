"""The result of one case: a line of the table, or a sentence about what broke."""

from dataclasses import dataclass


class Broken(AssertionError):
    """A case that did not end as it must."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of docs/faults.md."""

    fault: str
    body: str
    outcome: str
    calls: str = ""  # oracle calls counted, of the budget
    repeated: str = ""  # repeated oracle calls


def expect(condition: object, sentence: str) -> None:
    """Raise `Broken` with the sentence unless the condition holds."""
    if not condition:
        raise Broken(sentence)
