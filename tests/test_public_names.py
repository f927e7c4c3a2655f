"""The package's front door: every public name arrives, from where the table says, when used."""

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import grasp_tune

LAZY = sorted(grasp_tune.__all__)


@pytest.mark.parametrize("name", LAZY)
def test_public_name_arrives_from_its_home(name: str) -> None:
    line = next(
        x for x in Path(grasp_tune.__file__).read_text().split("\n") if x.endswith(f" as {name}")
    )
    home = import_module(line.split()[1])
    assert getattr(grasp_tune, name) is getattr(home, name)


def test_no_public_name_is_also_a_submodule() -> None:
    submodules = {info.name for info in pkgutil.iter_modules(grasp_tune.__path__)}
    assert not submodules & set(LAZY)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'minimise'"):
        grasp_tune.minimise  # noqa: B018


def test_dir_lists_names_that_are_not_loaded_yet() -> None:
    assert set(grasp_tune.__all__) <= set(dir(grasp_tune))
