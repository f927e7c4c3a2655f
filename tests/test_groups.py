"""Tests of one group run in one process: what the shared Ray session rests on."""

import pytest


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.xdist_group("groups")
def test_a_group_is_known_to_the_scheduler(
    turn: int, request: pytest.FixtureRequest, worker_id: str
) -> None:
    # The scheduler sees names only, and the group must be in the name. Some releases of pytest
    # and xdist do not fit, and then say nothing. "master": this run has one process.
    if worker_id != "master":
        assert request.node.nodeid.endswith("@groups")


def test_asking_for_the_ray_session_puts_a_test_in_the_group(
    request: pytest.FixtureRequest,
) -> None:
    item = pytest.Function.from_parent(
        request.node.parent, name="probe", callobj=lambda ray_session: None
    )
    assert "ray_session" in item.fixturenames
    for hook in request.config.pluginmanager.hook.pytest_collection_modifyitems.get_hookimpls():
        if hook.plugin_name.endswith("conftest.py"):
            hook.function(items=[item])
    assert [mark.args for mark in item.iter_markers("xdist_group")] == [("ray",)]
