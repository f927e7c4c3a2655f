"""The package's front door: every public name arrives, from where the table says, when used."""

import ast
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import grasp_tune

LAZY = sorted(set(grasp_tune.__all__) - {"__version__"})


@pytest.mark.parametrize("name", LAZY)
def test_public_name_arrives_from_its_home(name: str) -> None:
    home = import_module(grasp_tune._HOME[name])
    assert getattr(grasp_tune, name) is getattr(home, name)


def test_type_checkers_are_told_the_same_names() -> None:
    tree = ast.parse(Path(grasp_tune.__file__).read_text(encoding="utf-8"))
    told = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == grasp_tune._HOME
    assert set(LAZY) == set(told)


def test_no_public_name_is_also_a_submodule() -> None:
    submodules = {info.name for info in pkgutil.iter_modules(grasp_tune.__path__)}
    assert not submodules & set(LAZY)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'minimise'"):
        grasp_tune.minimise  # noqa: B018


def test_dir_lists_names_that_are_not_loaded_yet() -> None:
    assert set(grasp_tune.__all__) <= set(dir(grasp_tune))
