"""Hostile and honest YAML."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grasp_tune.config.errors import ConfigError
from grasp_tune.config.yaml_text import MAX_BYTES, parse_yaml


def refused(content: bytes | str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(content, "a.yaml")
    line = str(caught.value)
    assert line.startswith("a.yaml: ")
    assert "\n" not in line
    assert len(line) < 400
    return line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1e-3", {"a": 0.001}),
        ("a: 1e4", {"a": 10_000.0}),
        ("a: 1.5", {"a": 1.5}),
        ("a: .5", {"a": 0.5}),
        ("a: -7", {"a": -7}),
        ("a: 010", {"a": 10}),  # ten, not eight
        ("a: no", {"a": "no"}),  # a word, not False
        ("a: 1:30", {"a": "1:30"}),  # a word, not ninety
        ("a: 2024-01-02", {"a": "2024-01-02"}),
        ("a: true", {"a": True}),
        ("a: '1'", {"a": "1"}),
        ('a: "true"', {"a": "true"}),
        ("a: ~", {"a": None}),
        ("a:", {"a": None}),
        ("a: [1, x, {b: 2}]", {"a": [1, "x", {"b": 2}]}),
        ("a: module.name:function", {"a": "module.name:function"}),
        ("", None),
        ("# only a remark\n", None),
        ("\ufeffa: 1".encode(), {"a": 1}),  # some editors sign their files
    ],
)
def test_plain_values_are_read_as_yaml_1_2_reads_them(text: str | bytes, value: object) -> None:
    assert parse_yaml(text, "a.yaml") == value


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "a: !!python/name:os.system",
        "a: !!binary aGVsbG8=",
        "a: !!str 3",
        "a: !own 3",
        "!!map {a: 1}",
        "? !!str a\n: 1",
    ],
)
def test_tags_are_refused(text: str) -> None:
    assert "without tags" in refused(text)


def test_aliases_cannot_blow_up() -> None:
    # Nine levels of nine would be 9^9, about 400 million values, from a few hundred bytes.
    for text in ("a: &x [1, 2]", "a: *nowhere", "a: &x {b: *x}"):
        assert refused(text).endswith("got an anchor or alias, expected YAML without them")


@pytest.mark.parametrize("opener", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused_at_once(opener: str) -> None:
    assert "at most 32 levels" in refused(opener * 100_000)


def test_many_values_are_refused() -> None:
    assert "at most 10000" in refused("[" + "1," * 20_000 + "]")


def test_large_files_are_refused() -> None:
    assert "bytes, expected at most 1048576" in refused(b"#" * (MAX_BYTES + 1))


def test_huge_integers_are_refused() -> None:
    assert refused(f"a: {'9' * 19}") == (
        "a.yaml: line 1: got '9999999999999999999', expected at most 18 digits"
    )
    assert "at most 18 digits" in refused(f"a: -{'9' * 5000}")
    assert parse_yaml(f"a: {'0' * 30}7", "a.yaml") == {"a": 7}


def test_a_key_given_twice_is_refused() -> None:
    assert (
        refused("a:\n  b: 1\n  b: 1")
        == "a.yaml: line 3: got the key b twice, expected every key once"
    )


@pytest.mark.parametrize("text", ["1: x", "[1]: x", "null: x", "{a: 1}: x", "true: x"])
def test_keys_are_words(text: str) -> None:
    assert "expected a word as a key" in refused(text)


def test_merge_keys_are_keys_like_others() -> None:
    assert parse_yaml("b: {<<: {x: 1}}", "a.yaml") == {"b": {"<<": {"x": 1}}}


def test_broken_text_names_the_line() -> None:
    assert re.match(r"a\.yaml: line 2: got .*, expected valid YAML$", refused("a: 1\nb: [1, 2"))
    assert "expected valid YAML" in refused("a: 1\n\tb: 2")
    tab = "got a tab, expected valid YAML, which takes spaces only"
    assert refused("a:\n\tb: 2") == f"a.yaml: line 2: {tab}"
    colon = "got a colon too many, expected valid YAML, with quotes around text that has one"
    assert refused("a: b: c") == f"a.yaml: line 1: {colon}"
    assert "got character '@' that cannot start any token, expected" in refused("a: @b")
    semicolon = "got a semicolon, expected valid YAML, which takes a comma or a new line there"
    assert refused("x: 1\na: {b: c; d: e}") == f"a.yaml: line 2: {semicolon}"
    assert refused("a: {b: c}; d: e") == f"a.yaml: line 1: {semicolon}"
    assert refused("a:\n    b: c\n  d: e").endswith("keys of one mapping begin in the same column")
    assert "expected valid YAML" in refused("a: \x07")


def test_two_documents_are_refused() -> None:
    assert "a second document" in refused("a: 1\n---\nb: 2")


@pytest.mark.parametrize("content", [b"\xff\xfea\x00:\x00", b"a: \xe9", b"\x80"])
def test_other_encodings_are_refused(content: bytes) -> None:
    assert refused(content).endswith("expected UTF-8 text")


def outcome(content: bytes | str) -> str:
    """The value's text, or the error's line; anything else raised is a fault."""
    try:
        return repr(parse_yaml(content, "a.yaml"))
    except ConfigError as error:
        return str(error)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_one_line(content: bytes) -> None:
    assert "\n" not in outcome(content)


@given(st.text(alphabet="[]{}&*!|>'\"#%@`:,-? \nabc019~<", max_size=80))
def test_any_punctuation_gives_a_value_or_one_line(text: str) -> None:
    assert "\n" not in outcome(text)
