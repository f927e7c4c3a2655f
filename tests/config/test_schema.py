"""The page of keys and the JSON schema say everything that the schema knows."""

import json
from pathlib import Path

import pytest

from grasp_tune.config.schema import KINDS, SECTIONS, Experiment
from grasp_tune.config.section import Section
from scripts.config_reference import markdown

ALL = [*SECTIONS.values(), *(kind for one_of in KINDS.values() for kind in one_of.kinds.values())]


@pytest.mark.parametrize("section", ALL, ids=lambda section: section.__name__)
def test_every_key_is_described(section: type[Section]) -> None:
    assert section.__doc__
    for key, field in section.model_fields.items():
        assert field.description, key
        assert field.description.rstrip().endswith("."), key


def test_the_page_lists_every_key_of_every_kind() -> None:
    page = markdown()
    for one_of in KINDS.values():
        for name, kind in one_of.kinds.items():
            part = page.split(f"### {name}\n")[1:]
            assert any(all(f"| `{key}` |" in text for key in kind.model_fields) for text in part)
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows
    assert all(line.replace("\\|", "").count("|") == 5 for line in rows)
    assert (
        "| `delta` | Probability with which the guarantee may fail. | number > 0, < 0.333 " in page
    )


def test_the_json_schema_knows_the_short_forms() -> None:
    schema = json.loads(json.dumps(Experiment.model_json_schema()))
    assert schema["required"] == ["problem"]
    assert schema["additionalProperties"] is False
    problem = schema["$defs"]["Problem"]["properties"]
    assert {"type": "string"} in problem["dataset"]["anyOf"]
    assert problem["batch_size"]["default"] is None


def test_the_page_in_docs_is_the_schemas() -> None:
    page = Path(__file__).parents[2] / "docs" / "configs.md"
    assert page.read_text(encoding="utf-8") == markdown()
