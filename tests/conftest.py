"""How the suite runs: in two processes, with everything that needs Ray in one of them.

`scripts/test` gives pytest `-n 2`, and setup.cfg sets `--dist=loadgroup`: tests without a group go
to whichever process is free, tests of one group all go to the same. Starting Ray takes seconds and
most of a gigabyte, so there is one session, `ray_session`, and the tests that use it, as well as
all of tests/ray, are put in the group "ray" here; a test file needs no mark of its own. Another
shared and costly thing gets its own group: `pytestmark = pytest.mark.xdist_group("postgres")`.

Properties are checked on the same examples every time. To look for new counterexamples:
`scripts/test --hypothesis-profile=explore`.
"""

import gc
import os
import signal
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from grasp_tune.core.errors import MissingExtra

RAY_TESTS = Path(__file__).parent / "ray"
EXTRAS = (
    "accelerate",
    "lightning",
    "optuna",
    "plotly",
    "pyarrow",
    "ray",
    "sklearn",
    "torchvision",
    "transformers",
)  # a test of one that is missing is skipped
WHOLE = {  # files that need a package from their first lines on
    "ray": [
        "ray",
        "loop/test_examples.py",
        "loop/test_trainers.py",
        "runtime/test_shared_s*.py",
        "executors/test_*.py",
    ],
    "optuna": [
        "optuna",
        "benchmarks/test_bench_mixed.py",
        "executors/test_*.py",
        "faults/test_every_point.py",
    ],
}
collect_ignore_glob = [
    file for name, files in WHOLE.items() if find_spec(name) is None for file in files
]

# No deadline: on a busy machine it would make a timing out of a property.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("suite")

# No test cuts the power: waiting for the disk, which took most of the time of sweeps into folders,
# would prove nothing. Tests of what is flushed, and when, put their own function here.
os.fsync = lambda fd: None

# Started in the background by a script, this process ignores SIGINT, and so would all that it
# starts: tests that press Ctrl-C in a child would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Puts back what SIGINT does: Tune leaves a handler behind that swallows the next one."""
    before = signal.getsignal(signal.SIGINT)
    yield
    if signal.getsignal(signal.SIGINT) is not before:
        signal.signal(signal.SIGINT, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    with _skipped_without_extra():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with _skipped_without_extra():
        yield


@contextmanager
def _skipped_without_extra() -> Iterator[None]:
    """Skips a test that needs an extra which is not installed: the package works without."""
    try:
        yield
    except (MissingExtra, ModuleNotFoundError) as error:
        cause = error.__cause__ if isinstance(error, MissingExtra) else error
        name = str(getattr(cause, "name", "")).partition(".")[0]
        if name not in EXTRAS or find_spec(name) is not None:
            raise
        pytest.skip(f"{name} is not installed")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts every test that needs Ray in the group "ray", where it names no other."""
    for item in items:
        asks = "ray_session" in getattr(item, "fixturenames", ())
        grouped = item.get_closest_marker("xdist_group") is not None
        if asks or (item.path.is_relative_to(RAY_TESTS) and not grouped):
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray session of two logical CPUs on this machine, shared by all tests that ask for it."""
    # Read when Ray starts: tests report nothing to anyone.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own is 15: beside other busy processes, starting a worker would take minutes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    with _open_files_of_ray():
        ray.init(
            address="local",  # whatever other Ray may run on this machine
            num_cpus=2,  # a task may ask for less than one
            object_store_memory=80 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    yield
    with _open_files_of_ray():
        ray.shutdown()


@contextmanager
def _open_files_of_ray() -> Iterator[None]:
    """Hears no warnings of files and processes that Ray 2.44 itself leaves open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
