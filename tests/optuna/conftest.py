"""What the tests of the Optuna body share: a small plan, a small problem, four kinds of storage.

The PostgreSQL server is a real one, on loopback, in a folder of its own; the gRPC proxy is a
process of its own. Processes are forked: they inherit what is imported, and open storages
themselves.
"""

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import optuna
import pytest
import torch
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from torch import nn

import grasp_tune as gt
from grasp_tune.core.plan import Plan

GRPC_SERVER = """
import sys, warnings, optuna
warnings.simplefilter("ignore")
storage = optuna.storages.get_storage(sys.argv[1])
optuna.storages.run_grpc_proxy_server(storage, host="127.0.0.1", port=int(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def quiet_optuna() -> Iterator[None]:
    """No line per trial on standard error."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    yield
    optuna.logging.set_verbosity(before)


@pytest.fixture(scope="session")
def plan() -> Plan:
    """A plan of 31 cells, from 6e-8 to 67."""
    return gt.NonConvex().plan(budget=6000, grad_norm=1.3)


def squared_error(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return ((model(batch[0]).squeeze(-1) - batch[1]) ** 2).mean()


@pytest.fixture(scope="session")
def problem() -> gt.TorchProblem:
    """Least squares in three unknowns, 60 rows."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(5)
    rows = torch.randn(60, 3, generator=draw)
    targets = rows @ torch.tensor([1.5, -2.0, 0.5]) + 0.3 * torch.randn(60, generator=draw)
    return gt.TorchProblem(
        model=lambda: nn.Linear(3, 1), loss=squared_error, data=(rows, targets), batch_size=4
    )


@dataclass(frozen=True)
class Place:
    """A storage that several processes can open."""

    open: Callable[[], BaseStorage]  # as a worker
    look: Callable[[], BaseStorage]  # as the test, after the workers


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the server does not listen after a minute")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:  # Debian keeps the server's programs out of PATH
        found = next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    assert found is not None, f"{name} is missing; install the package postgresql"
    return found


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of an empty database on a server that lives as long as the tests."""
    folder = Path(tempfile.mkdtemp(prefix="grasp-postgres-"))
    account = None
    if os.geteuid() == 0:  # the server refuses to run as root
        account = "postgres"
        shutil.chown(folder, account)
    data, port = folder / "data", free_port()
    subprocess.run(
        [server_program("initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-N"],
        user=account,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    server = subprocess.Popen(
        [
            *(server_program("postgres"), "-D", str(data), "-p", str(port), "-k", str(folder)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"),
        ],
        user=account,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port, server)
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # ends connections that are still open
        server.wait(timeout=60)
        shutil.rmtree(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, in main memory where the system has one: most of the time goes to fsync."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="grasp-optuna-", dir=place) as path:
        yield Path(path)


@pytest.fixture
def sqlite(folder: Path) -> Place:
    url = f"sqlite:///{folder}/study.db"
    return Place(lambda: get_storage(url), lambda: get_storage(url))


@pytest.fixture
def journal(folder: Path) -> Place:
    def load() -> BaseStorage:
        return JournalStorage(JournalFileBackend(f"{folder}/study.journal"))

    return Place(load, load)


@pytest.fixture
def database(postgres: str) -> Iterator[Place]:
    opened: list[RDBStorage] = []

    def look() -> BaseStorage:
        opened.append(RDBStorage(postgres))
        return opened[-1]

    yield Place(lambda: get_storage(postgres), look)
    for storage in opened:
        storage.scoped_session.remove()
        storage.engine.dispose()


# Optuna's own suite for samplers, which it has from 4.8 on.
collect_ignore = [] if find_spec("optuna.testing.pytest_samplers") else ["test_contract.py"]


@pytest.fixture
def proxy(folder: Path) -> Iterator[Place]:
    """The gRPC proxy over SQLite; the test itself looks past it, so that it can fork."""
    if not hasattr(optuna.storages, "GrpcStorageProxy"):
        pytest.skip("this Optuna has no gRPC proxy; 4.2 has the first")
    url, port = f"sqlite:///{folder}/study.db", free_port()
    server = subprocess.Popen([sys.executable, "-c", GRPC_SERVER, url, str(port)])

    def load() -> BaseStorage:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.storages.GrpcStorageProxy(host="127.0.0.1", port=port)

    try:
        wait_for_port(port, server)
        yield Place(load, lambda: get_storage(url))
    finally:
        server.kill()
        server.wait(timeout=60)


@pytest.fixture(params=["sqlite", "journal", "database", "proxy"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each of the four storages in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found


Spawn = Callable[..., None]


@pytest.fixture
def in_processes() -> Spawn:
    """Runs a function in so many processes that start together; none may fail."""

    def run(count: int, work: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("fork")
        gate = context.Barrier(count)

        def begin(number: int) -> None:
            torch.set_num_threads(1)
            gate.wait(60)
            work(*arguments)

        processes = [context.Process(target=begin, args=(number,)) for number in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
        assert codes == [0] * count

    return run
