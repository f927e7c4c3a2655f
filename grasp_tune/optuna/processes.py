"""Several members of one sweep on this machine: forked, watched, replaced when they die."""

import multiprocessing
import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

import torch

from grasp_tune.core.errors import SearchError

if TYPE_CHECKING:
    from grasp_tune.optuna.runner import Member

IDLE_DEATHS = 3  # members that may die without holding a task: then it is not the tasks' fault


@dataclass(eq=False)
class _Child:
    process: BaseProcess
    pipe: Connection
    name: str = ""  # of the member, once it has said it


def run_members(make_member: Callable[[], "Member"], count: int) -> None:
    """Run `count` members to the end of the sweep; raise what one of them raises.

    Forked, because a problem is made of functions that cannot be pickled as a rule.
    """
    try:
        context = multiprocessing.get_context("fork")
    except ValueError:
        raise SearchError(
            "worker processes need fork, which this system lacks; use workers=1 or start each "
            "process with grasp_tune.optuna.run"
        ) from None
    if torch.cuda.is_initialized():
        raise SearchError("CUDA was used in this process before the workers; use workers=1")

    def start() -> _Child:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(theirs, make_member), daemon=True)
        process.start()
        theirs.close()
        return _Child(process, ours)

    make_member()  # the study and its spec exist before anyone races for them
    children = [start() for _ in range(count)]
    idle_deaths = 0
    try:
        while children:
            ready = wait([child.pipe for child in children])
            for child in [item for item in children if item.pipe in ready]:
                try:
                    kind, content = child.pipe.recv()
                except (EOFError, ConnectionResetError):
                    child.process.join()
                    code = child.process.exitcode
                    children.remove(child)
                    child.pipe.close()
                    idle_deaths += not (child.name and make_member().release(child.name))
                    if idle_deaths >= IDLE_DEATHS:
                        raise SearchError(
                            f"{IDLE_DEATHS} worker processes died before they had a task, the "
                            f"last with exit code {code}"
                        ) from None
                    children.append(start())
                    continue
                if kind == "name":
                    child.name = content
                    continue
                child.process.join()
                children.remove(child)
                child.pipe.close()
                if kind == "error":
                    raise content
    finally:
        for child in children:
            child.process.kill()  # nothing to lose: outcomes are on the study
            child.process.join()
            child.pipe.close()


def _serve(pipe: Connection, make_member: Callable[[], "Member"]) -> None:
    """Take part in the sweep; in the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    try:
        member = make_member()
        pipe.send(("name", member.name))
        member.run()
        pipe.send(("done", None))
    except Exception as error:
        pipe.send(("error", _sendable(error)))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return SearchError(f"{type(error).__name__}: {error}")
    return error
