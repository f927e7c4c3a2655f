"""Hostile files: refused in one line, without running code, with bounded memory."""

import copy
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import resource
import time
import zlib
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
from optuna.artifacts import FileSystemArtifactStore

import grasp_tune as gt
from benchmarks.faulting.row import Broken, Row, expect
from benchmarks.faulting.sweep import Sweep, run
from grasp_tune.config.loader import load_experiment
from grasp_tune.config.yaml_text import parse_yaml
from grasp_tune.core.errors import GraspError
from grasp_tune.core.search import Search
from grasp_tune.executors.optuna import ArtifactCheckpoints
from grasp_tune.report.page import report_text
from grasp_tune.runtime.files import STATE_LIMIT, read_json, read_sealed, write_json_atomic
from grasp_tune.runtime.store import CheckpointStore
from grasp_tune.runtime.sweep_folder import load_search

ROOM = 2**30  # additional bytes that reading a hostile file may take


def refusal(action: Callable[[], object]) -> str:
    """Return the one-line error of the action; raise `Broken` if it is not refused like that."""
    try:
        action()
    except GraspError as error:
        expect("\n" not in str(error), f"more than one line: {error}")
        expect(len(str(error)) < 2000, f"a very long line: {str(error)[:200]}")
        return str(error)
    raise Broken("a hostile file was accepted")


# -- configs -------------------------------------------------------------------------------------

_LEVELS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
)
YAML = {
    "a tag that calls a function": "!!python/object/apply:os.mkdir ['{mark}']",
    "a tag on a key": "budget: !!python/name:os.system",
    "anchors that multiply": _LEVELS,
    "an anchor in itself": "a: &a [*a]",
    "deep nesting": "[" * 200_000,
    "deep mappings": "{a: " * 200_000,
    "a huge number": "budget: " + "9" * 100_000,
    "a huge float": "budget: 1e999999999999",
    "a huge file": "#" * (2**21),
    "many values": "a: [" + "1," * 500_000 + "]",
    "an include of a system file": "include: /etc/passwd",
    "an include above its folder": "include: ../../../../etc/hostname.yaml",
    "an include of itself": "include: config.yaml",
    "control characters": "budget: \x00\x1b[31m",
    "two documents": "budget: 1\n---\nbudget: 2",
    "a budget beyond reason": "budget: 999999999999999999\nmethod: {name: convex-free}",
}


def hostile_configs(folder: Path) -> Row:
    """Hostile YAML: tags, bombs, depth, size, includes."""
    mark = folder / "ran"
    for number, text in enumerate(YAML.values()):
        (folder / f"{number:02d}").mkdir()
        path = folder / f"{number:02d}" / "config.yaml"
        path.write_text(text.replace("{mark}", str(mark)))
    found = _bounded(_load_configs, folder)
    expect(found == f"refused: {len(YAML)}", found)
    expect(not mark.exists(), "code in a config was run")
    return Row(
        f"{len(YAML)} hostile configs",
        "all",
        "each refused in one line, in less than 1 GB of memory",
    )


def _load_configs(folder: Path) -> str:
    for number, name in enumerate(YAML):
        path = folder / f"{number:02d}" / "config.yaml"
        try:
            refusal(lambda path=path: load_experiment(path, environment={}))  # type: ignore[misc]
        except Exception as error:
            raise Broken(f"{name}: {error!r}") from None
    return str(len(YAML))


def random_configs(folder: Path, seconds: float, seed: int = 0) -> Row:
    """Random YAML gives a config or a one-line error, whatever the text."""
    chance, count, end = random.Random(seed), 0, time.monotonic() + seconds
    words = ["&a ", "*a", "!x ", "- ", "? ", "  ", "budget", "1e5", "---", "<<", ", "]
    pieces = [*"[]{}|>'\"#:\na1~\t\x85é", *words]
    while time.monotonic() < end or count < 100:
        text = "".join(chance.choices(pieces, k=chance.randrange(60)))
        try:
            parse_yaml(text, "config.yaml")
        except GraspError as error:
            expect("\n" not in str(error), f"more than one line for {text!r}")
        count += 1
    return Row(f"{count} random configs", "all", "a value or one line each time")


# -- results and states --------------------------------------------------------------------------


def hostile_results(folder: Path, seconds: float, seed: int = 0) -> Row:
    """Results and states with manipulated JSON are refused, or harmless."""
    result = run(Sweep(str(folder / "run")))
    good = read_json(folder / "run" / "result.json", STATE_LIMIT, seal=True)
    state = read_sealed(folder / "run" / "state.json", STATE_LIMIT)
    del state["sweep"]  # of the folder, not of the search
    chance, count, refused = random.Random(seed), 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or count < 50:
        changed = _tampered(good, chance)
        write_json_atomic(folder / "run" / "result.json", changed, seal=isinstance(changed, dict))
        refused += _survives(lambda: repr(gt.Result.load(folder / "run")))
        other = _tampered(state, chance)
        refused += _survives(lambda other=other: Search.from_state(other))  # type: ignore[misc]
        count += 2
    expect(refused > count // 4, f"only {refused} of {count} were refused")
    expect(result.score == result.score, "the result itself has no score")
    return Row(f"{count} tampered results and states", "all", f"{refused} refused, none crashed")


def _survives(action: Callable[[], object]) -> bool:
    """Return whether the action was refused; any other error is raised."""
    try:
        action()
    except GraspError as error:
        expect("\n" not in str(error), f"more than one line: {error}")
        return True
    return False


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 10**400, 1.5, "nan", "-inf", "", "../../x", "<script>", "x" * 5000,
    [], {}, [[]], {"a": 1}, [1, 2, 3],
)  # fmt: skip


def _tampered(value: Any, chance: random.Random) -> Any:
    """Return a copy with one to three places changed."""
    found = copy.deepcopy(value)
    for _ in range(chance.randrange(1, 4)):
        at = found
        while isinstance(at, dict | list) and at:
            key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
            if chance.random() < 0.3 or not isinstance(at[key], dict | list):
                break
            at = at[key]
        if not isinstance(at, dict | list) or not at:
            continue
        action = chance.random()
        if action < 0.6:
            at[key] = copy.deepcopy(chance.choice(ODD))
        elif action < 0.8:
            del at[key]
        elif isinstance(at, dict):
            at["unknown"] = copy.deepcopy(chance.choice(ODD))
    return found


def oversized_files(folder: Path) -> Row:
    """Nested brackets and endless files are refused before they fill the memory."""
    run_folder = folder / "run"
    run_folder.mkdir(parents=True)
    bombs = {
        "brackets": b'{"format":1,"runs":[' + b"[]," * 20_000_000,
        "depth": b"[" * 60_000_000,
        "length": b'"' + b"x" * 200_000_000,
        "sealed": b'{"blake2b":"' + b"0" * 200_000_000,
    }
    for name, content in bombs.items():
        for path in (run_folder / "result.json", run_folder / "state.json"):
            path.write_bytes(content)
        found = _bounded(_load_both, run_folder)
        expect(found.startswith("refused: "), f"{name}: {found}")
    return Row(
        "oversized and bracket-filled states and results",
        "all",
        "refused, in less than 1 GB of memory",
    )


def _load_both(folder: Path) -> str:
    refusal(lambda: gt.Result.load(folder))
    return refusal(lambda: load_search(folder / "state.json"))


# -- checkpoints ---------------------------------------------------------------------------------


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.mkdir, (str(self.mark), 0o755)


def hostile_checkpoints(folder: Path, seconds: float, seed: int = 0) -> Row:
    """Pickles, and false headers with a correct checksum, are refused."""
    store, mark = CheckpointStore(folder / "points"), folder / "ran"
    store.write("point", {"x": torch.arange(6.0), "n": torch.tensor(3)}, {"step": 1})
    good = store.path("point").read_bytes()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        store.path("point").write_bytes(pickle.dumps(Trap(mark), protocol))
        refusal(lambda: store.read("point"))
    torch.save(Trap(mark), store.path("point"))
    refusal(lambda: store.read("point"))
    expect(not mark.exists(), "a pickle was run")
    chance, count, end = random.Random(seed), 0, time.monotonic() + seconds
    while time.monotonic() < end or count < 50:
        store.path("point").write_bytes(_lying(good, chance))
        _survives(lambda: store.read("point"))
        count += 1
    for key in ("../x", "a/b", "/etc/passwd", "..", ".hidden", "a\0b", "A", "x" * 200, ""):
        refusal(lambda key=key: store.path(key))  # type: ignore[misc]
    return Row(
        f"checkpoints that are pickles, {count} lying headers, keys that leave the folder",
        "all",
        "refused in one line, no code run",
    )


def hostile_artifact_ids(folder: Path) -> Row:
    """Keys with artifact ids outside the store: nothing there is read or removed."""
    inside, outside = folder / "store", folder / "secret.safetensors"
    inside.mkdir(parents=True)
    CheckpointStore(folder).write("secret", {"x": torch.ones(2)}, {})
    before = outside.read_bytes()
    ids = ("../secret.safetensors", str(outside), "a/../../secret.safetensors", "..", "", "a\0b")
    for name in ids:
        store = ArtifactCheckpoints(FileSystemArtifactStore(inside), "")
        actions: tuple[Callable[[], object], ...] = (
            partial(store.read, name),
            partial(store.write, name, {"x": torch.zeros(2)}, {}),
            partial(store.delete, name),
            partial(store.exists, name),
        )
        for action in actions:
            expect("checkpoint key" in refusal(action), f"{name!r} was not refused by name")
    expect(outside.read_bytes() == before, "a file outside of the store was changed")
    expect(not list(inside.iterdir()), "something was written")
    return Row(f"{len(ids)} artifact ids that leave the store", "optuna", "refused in one line")


def _lying(content: bytes, chance: random.Random) -> bytes:
    """Return the file with a false header and a checksum that fits it."""
    length = int.from_bytes(content[:8], "little")
    fields, numbers = json.loads(content[8 : 8 + length]), content[8 + length :]
    fields = _tampered(fields, chance)
    if isinstance(fields, dict) and isinstance(fields.get("__metadata__"), dict):
        fields["__metadata__"]["blake2b"] = "0" * 64
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    behind = text.find(b"0" * 64) + 64
    digest = hashlib.blake2b(
        text[behind:] + zlib.crc32(numbers).to_bytes(4, "little"), digest_size=32
    )
    text = text.replace(b"0" * 64, digest.hexdigest().encode(), 1)
    return len(text).to_bytes(8, "little") + text + numbers


# -- reports -------------------------------------------------------------------------------------

PAYLOADS = (
    "<script>window.hit=1</script>",
    '"><img src=x onerror="window.hit=1">',
    "</title></style></script><svg onload=window.hit=1>",
    "javascript:window.hit=1",
    "&lt;b&gt; {{7*7}} ${7*7}",
)


def hostile_report(folder: Path) -> Row:
    """Markup in any string of a report is shown as text, never used as markup."""
    result = run(Sweep(str(folder / "run")))
    plain = _Elements(report_text(folder / "run", result, None, {"title": "plain", "a": "b"}))
    data = read_json(folder / "run" / "result.json", STATE_LIMIT, seal=True)
    for payload in PAYLOADS:
        write_json_atomic(folder / "run" / "result.json", _infected(data, payload), seal=True)
        infected = gt.Result.load(folder / "run")
        config = {"title": payload, payload: payload, "list": [payload], "deep": {"x": payload}}
        found = _Elements(report_text(folder / "run", infected, None, config))
        expect(found.handlers == plain.handlers, f"{payload!r} became an event handler")
        expect(found.scripts == plain.scripts, f"{payload!r} became a script")
        strange = found.tags - plain.tags - {"p", "aside", "ul", "li", "div"}
        expect(not strange, f"{payload!r} became the elements {strange}")
        expect("<img src=x" not in infected._repr_html_(), f"{payload!r} in the notebook's table")
    return Row(
        f"{len(PAYLOADS)} kinds of markup in every string of a report", "all", "shown as text"
    )


def _infected(data: dict[str, Any], payload: str) -> dict[str, Any]:
    """Return a result with the payload in every string."""
    found = copy.deepcopy(data)
    found["choice"]["notes"] = [payload]
    for row in found["choice"]["candidates"][1:]:
        row["base"] = payload
    for item in found["runs"]:
        item["base"] = payload
    return found


class _Elements(HTMLParser):
    """The elements, event handlers and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers = self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            address = name in ("href", "src") and str(value).lstrip().lower()
            self.handlers += name.startswith("on") or str(address).startswith("javascript:")


# -- memory --------------------------------------------------------------------------------------


def _bounded(action: Callable[[Path], str], path: Path) -> str:
    """Return the action's result in a process that may use `ROOM` more bytes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.faulting.sweep", "benchmarks.faulting.hostile"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_act, args=(action, path, theirs))
    process.start()
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(120) else "no answer within two minutes"
    except EOFError:
        return "the process died"
    finally:
        process.kill()
        process.join()
        ours.close()


def _act(action: Callable[[Path], str], path: Path, pipe: Any) -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, now + ROOM))
    try:
        pipe.send(f"refused: {action(path)}")
    except MemoryError:
        pipe.send("it ran out of memory")
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}")
