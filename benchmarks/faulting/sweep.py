"""A small sweep in its own process, which can be killed at a given moment.

The loss counts its calls in a mapped file, independently of the package, so that the calls of a
killed process are known.
"""

import hashlib
import json
import mmap
import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch._dynamo  # imported by the first optimizer; here for forked processes
from torch import Tensor, nn

import grasp_tune as gt
import grasp_tune.executors.local
from benchmarks.faulting.patches import replaced
from benchmarks.faulting.row import Row, expect
from grasp_tune.core.methods import Method
from grasp_tune.core.tasks import Outcome, Task
from grasp_tune.engine.lane_group import Seat
from grasp_tune.engine.worker import Worker
from grasp_tune.runtime.files import read_json, write_json_atomic

BUDGET = 600
METHODS: dict[str, Method] = {"nonconvex": gt.NonConvex(), "convex": gt.Convex()}
_COUNT = struct.Struct("<q")


PHASES = {"probe": "probe", "training": "train", "ensemble": "ensemble"}  # names in the calls
_phase = ""  # of the running task of this process


@dataclass(frozen=True, slots=True)
class Death:
    """A signal that a process sends at the `call`-th computation of its loss."""

    call: int
    phase: str | None = None  # one of PHASES: count only computations in it
    number: int = signal.SIGKILL
    whom: str = "self"  # or "parent": the driver of this worker
    twice: bool = False  # once more while the state is written
    delay: float = 0.0  # seconds later, while the process goes on
    sign: str | None = None  # file that marks that it has happened, so that it happens once


@dataclass(frozen=True, slots=True)
class Sweep:
    """A small sweep: everything that its result depends on, and where it runs."""

    out: str
    schedule: str = "promote"
    method: str = "nonconvex"
    fused: bool = False
    workers: int = 1
    backend: str = "local"
    budget: int = BUDGET
    seed: int = 0
    pause: float = 0.0  # additional seconds per computation of the loss

    @property
    def bare(self) -> "Sweep":
        """Only what the result depends on."""
        return replace(self, out="", workers=1, backend="local", pause=0.0)

    def print_of(self, result: gt.Result) -> dict[str, Any]:
        """Return what must be the same in an undisturbed run and in a disturbed one."""
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(result.tensors.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        rows = hashlib.blake2b(repr(result.candidates).encode(), digest_size=16).hexdigest()
        calls = {name: count for name, count in result.calls.items() if name != "repeated"}
        return {
            "key": result.choice.key,
            "score": repr(result.score),
            "tensors": digest.hexdigest(),
            "candidates": rows,
            "calls": calls,
        }


def searching(method: str, schedule: str) -> Method:
    """Return a method that searches; without a base, `promote` spends so few calls on one run."""
    return replace(METHODS[method], base="adam") if schedule == "promote" else METHODS[method]


def problem(
    death: Death | None = None, count: Path | None = None, pause: float = 0.0
) -> gt.TorchProblem:
    """Return a logistic regression on generated data whose loss counts its calls and may kill."""
    source = torch.Generator().manual_seed(3)
    features = torch.randn(400, 12, generator=source)
    noise = 0.3 * torch.randn(400, generator=source)
    labels = (features @ torch.randn(12, generator=source) + noise > 0).long()
    counter = None if count is None else _shared_counter(count)
    seen = 0

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal seen
        time.sleep(pause)
        if death is None or death.phase in (None, _phase):
            seen += 1
        if counter is not None:
            counter()
        if (
            death is not None
            and death.phase in (None, _phase)
            and seen == death.call
            and not _happened(death)
        ):
            _die(death)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return gt.TorchProblem(
        model=lambda: nn.Linear(12, 2),
        loss=loss,
        data=(features, labels),
        batch_size=16,
        device="cpu",
    )


def _shared_counter(path: Path) -> Callable[[], None]:
    """Return a function that counts in a file; it is exact for one process at a time."""
    with open(path, "a+b") as file:
        if file.tell() != _COUNT.size:
            file.write(_COUNT.pack(0))
            file.flush()
        memory = mmap.mmap(file.fileno(), _COUNT.size)

    def add() -> None:
        _COUNT.pack_into(memory, 0, _COUNT.unpack_from(memory, 0)[0] + 1)

    return add


def counted(path: Path) -> int:
    """Return the count of `_shared_counter`."""
    return int(_COUNT.unpack(path.read_bytes())[0])


def _happened(death: Death) -> bool:
    """Return whether this death has happened in any process, and mark it as happened."""
    if death.sign is None:
        return False
    try:
        os.close(os.open(death.sign, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    return False


def _die(death: Death) -> None:
    if death.twice:
        real = os.fsync

        def again(handle: Any) -> None:
            setattr(os, "fsync", real)  # noqa: B010
            os.kill(os.getpid(), death.number)
            real(handle)

        setattr(os, "fsync", again)  # noqa: B010  (the type checker knows it as a constant)
    whom = os.getpid() if death.whom == "self" else os.getppid()
    if death.delay:
        timer = threading.Timer(death.delay, os.kill, (whom, death.number))
        timer.daemon = True
        timer.start()
    else:
        os.kill(whom, death.number)


@contextmanager
def _phases_followed() -> Iterator[None]:
    """Keep `_phase` at the phase of the running task."""
    words = {"probe": "probe", "train": "training", "score": "ensemble"}
    real = Worker.run

    def followed(worker: Worker, task: Task, seat: Seat | None = None) -> Outcome:
        global _phase
        _phase = words[task.phase]
        return real(worker, task, seat)

    with replaced(Worker, "run", followed):
        yield


def run(sweep: Sweep, death: Death | None = None, count: Path | None = None) -> gt.Result:
    """Run the sweep in this process."""
    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ADDRESS"] = "local"  # its own session, even if others run on this machine
    if sweep.backend == "optuna":
        from grasp_tune.executors import study

        # The default is a minute of silence; no worker is that slow here.
        study.Timing.of = classmethod(lambda cls, given: cls(0.2, 3.0))  # type: ignore[method-assign,assignment]
    return gt.minimize(
        problem(death, count, sweep.pause),
        sweep.budget,
        searching(sweep.method, sweep.schedule),
        schedule=sweep.schedule,
        seed=sweep.seed,
        backend=sweep.backend,
        fused=sweep.fused,
        progress=False,
        out=sweep.out,
        workers=sweep.workers,
    )


def run_and_tell(
    sweep: Sweep, death: Death | None, count: Path | None, answer: Path | None
) -> None:
    """Run the sweep in its own process; write its fingerprint to a file."""
    # Shells ignore SIGINT for background processes, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _phases_followed():
            result = run(sweep, death, count)
    except gt.GraspError as error:
        if answer is not None:
            write_json_atomic(answer, {"error": str(error)})
        os._exit(3)
    except KeyboardInterrupt:
        os._exit(130)
    if answer is not None:
        found = {"print": sweep.print_of(result), "calls": result.calls}
        write_json_atomic(answer, {**found, "notes": list(result.notes)})


def start(
    sweep: Sweep,
    death: Death | None = None,
    *,
    count: Path | None = None,
    answer: Path | None = None,
) -> BaseProcess:
    """Start the sweep in a new process, forked from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.faulting.sweep"])
    process = context.Process(target=run_and_tell, args=(sweep, death, count, answer))
    process.start()
    return process


def finish(
    sweep: Sweep, death: Death | None = None, *, count: Path | None = None
) -> tuple[int, dict[str, Any]]:
    """Run the sweep in a new process; return its exit code and its fingerprint."""
    answer = Path(f"{sweep.out}.answer")
    answer.unlink(missing_ok=True)
    process = start(sweep, death, count=count, answer=answer)
    process.join(600)
    expect(process.exitcode is not None, "the sweep did not end within ten minutes")
    found = read_json(answer, 10**6) if answer.exists() else {}
    return process.exitcode or 0, found


@cache
def undisturbed(sweep: Sweep) -> str:
    """Return the fingerprint of the same sweep without a fault, as JSON."""
    with TemporaryDirectory() as folder:
        code, found = finish(replace(sweep, out=f"{folder}/run"))
        expect(code == 0, f"the undisturbed run ended with code {code}: {found}")
        return json.dumps(found["print"])


def expected(sweep: Sweep) -> dict[str, Any]:
    """Return the fingerprint that every run of this sweep must have, with any fault."""
    found: dict[str, Any] = json.loads(undisturbed(sweep.bare))
    return found


def in_the_middle(sweep: Sweep, phase: str, number: int = signal.SIGKILL, **how: Any) -> Death:
    """Return a death half-way through a phase, by the call counts of the undisturbed run."""
    length = expected(sweep)["calls"][PHASES[phase]]
    expect(length > 1, f"the {phase} of this sweep has {length} calls: there is no middle")
    return Death(1 + length // 2, phase, number, **how)


def same(sweep: Sweep, found: dict[str, Any]) -> None:
    """Raise unless the run ended like the undisturbed one, within its budget."""
    wanted = expected(sweep)
    expect("print" in found, f"no result: {found}")
    expect(found["print"] == wanted, f"another result: {found['print']}, expected {wanted}")
    spent = sum(found["print"]["calls"].values())
    expect(spent <= sweep.budget, f"{spent} calls count, more than {sweep.budget}")


def in_the_books(found: dict[str, Any], count: Path) -> None:
    """Raise unless every computation of the loss is reported, as budget or as repeated."""
    asked, spent = counted(count), sum(found["print"]["calls"].values())
    repeated = found["calls"]["repeated"]
    expect(asked == spent + repeated, f"the oracle saw {asked}, told are {spent} + {repeated}")


def row(fault: str, sweep: Sweep, found: dict[str, Any], outcome: str = "") -> Row:
    """Return the row of a sweep that survived."""
    spent = sum(found["print"]["calls"].values())
    body = sweep.backend if sweep.workers == 1 else f"{sweep.backend}, {sweep.workers} workers"
    return Row(
        fault,
        body,
        outcome or "same choice, bit for bit",
        f"{spent} of {sweep.budget}",
        str(found["calls"]["repeated"]),
    )
