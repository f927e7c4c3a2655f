"""Damaged files: checkpoints and states that are cut, changed or missing."""

import pickle
import random
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.faulting.patches import quiet, replaced
from benchmarks.faulting.row import Row, expect
from benchmarks.faulting.sweep import Sweep, finish, in_the_books, in_the_middle, row, run, same
from grasp_tune.core.errors import DamagedState, InputError
from grasp_tune.engine.checkpoints import Checkpoint
from grasp_tune.runtime import sweep_folder as runner
from grasp_tune.runtime.files import previous, read_sealed
from grasp_tune.runtime.store import CheckpointStore
from grasp_tune.runtime.sweep_folder import load_search


def cut(path: Path) -> None:
    """Cut the file to half its size."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Flip one bit of the last number; the file still looks whole."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def remove(path: Path) -> None:
    """Remove the file."""
    path.unlink()


def pickled(path: Path) -> None:
    """Replace the file with a pickled object."""
    path.write_bytes(pickle.dumps({"param.weight": [1.0]}))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": cut,
    "with one bit flipped": flip,
    "missing": remove,
    "replaced by a pickle": pickled,
}


def _stop(sweep: Sweep, count: Path | None = None) -> None:
    """Stop the sweep half-way through its training, with its state saved."""
    code, _ = finish(sweep, in_the_middle(sweep, "training", signal.SIGINT), count=count)
    expect(code == 130, f"it was to stop, and ended with code {code}")


@cache
def _repeated_without_damage() -> int:
    """Return the calls repeated after the stop alone: those of the unfinished task."""
    with TemporaryDirectory() as folder:
        sweep = Sweep(f"{folder}/run")
        _stop(sweep)
        code, found = finish(sweep)
        expect(code == 0, f"going on ended with code {code}: {found}")
        return int(found["calls"]["repeated"])


def checkpoints_damaged_before_resume(folder: Path, damage: str) -> Row:
    """A run is stopped, all its checkpoints are damaged, and it is resumed."""
    sweep, count = Sweep(str(folder / "run")), folder / "count"
    _stop(sweep, count)
    paths = sorted((folder / "run" / "checkpoints").glob("*.safetensors"))
    expect(paths, "there is no checkpoint to damage")
    for path in paths:
        DAMAGES[damage](path)
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    in_the_books(found, count)
    anyway = _repeated_without_damage()
    expect(found["calls"]["repeated"] > anyway, "nothing was made again: was damage used?")
    return row(f"all {len(paths)} checkpoints {damage}, then resumed", sweep, found)


def checkpoints_damaged_while_running(folder: Path, workers: int = 1, seed: int = 0) -> Row:
    """Some checkpoints are damaged just before they are read."""
    chance, done = random.Random(seed), set[str]()

    class Decaying(CheckpointStore):
        def read(self, key: str) -> Checkpoint:
            if key not in done and chance.random() < 0.5 and self.exists(key):
                done.add(key)
                DAMAGES[chance.choice(sorted(DAMAGES))](self.path(key))
            return super().read(key)

    sweep = Sweep(str(folder / "run"), workers=workers)
    with replaced(runner, "CheckpointStore", Decaying):
        result = run(sweep)
    found = {"print": sweep.print_of(result), "calls": result.calls}
    same(sweep, found)
    expect(result.calls["repeated"] > 0, "nothing was made again: was anything damaged?")
    return row("one checkpoint in two damaged between rounds", sweep, found)


def chosen_checkpoint_damaged(folder: Path) -> Row:
    """The sweep has ended, its result is lost and the chosen checkpoint is damaged."""
    sweep = Sweep(str(folder / "run"))
    code, found = finish(sweep)
    expect(code == 0, f"it ended with code {code}")
    chosen = folder / "run" / "checkpoints" / f"{found['print']['key']}.safetensors"
    flip(chosen)
    (folder / "run" / "result.json").unlink()
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    expect(found["calls"]["repeated"] > 0, "nothing was made again: was damage used?")
    return row("chosen checkpoint damaged after the end", sweep, found)


def state_truncated_everywhere(folder: Path, every: int = 1) -> Row:
    """The state file is cut at every byte: it is refused, or the spare is used."""
    sweep = Sweep(str(folder / "run"))
    _stop(sweep)
    path = folder / "run" / "state.json"
    whole, spare = path.read_bytes(), previous(path).read_bytes()
    before = read_sealed(previous(path), 10**8)
    places = range(0, len(whole), every)
    with quiet():  # each use of the spare is logged
        for place in places:
            path.write_bytes(whole[:place])
            expect(read_sealed(path, 10**8) == before, f"cut at {place}: the spare was not used")
    previous(path).unlink()
    for place in places:
        path.write_bytes(whole[:place])
        try:
            load_search(path)
        except DamagedState as error:
            expect("\n" not in str(error), f"more than one line: {error}")
        else:
            expect(False, f"cut at {place}: a damaged state was used")
    previous(path).write_bytes(spare)
    code, found = finish(sweep)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    fault = f"state file cut at {len(places)} of {len(whole)} offsets"
    return row(fault, sweep, found, "detected each time, spare used, same choice")


def state_damaged_beyond_use(folder: Path) -> Row:
    """The state file and its spare are both damaged: the run starts over with a message."""
    sweep, count = Sweep(str(folder / "run")), folder / "count"
    _stop(sweep, count)
    path = folder / "run" / "state.json"
    flip(previous(path))
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"calls":', b'"calls": ', 1))
    code, found = finish(sweep, count=count)
    expect(code == 0, f"going on ended with code {code}: {found}")
    same(sweep, found)
    expect((folder / "run" / "state.damaged.json").exists(), "the damaged state was not kept")
    in_the_books(found, count)
    return row("state file and its spare both damaged", sweep, found, "starts over, same choice")


def foreign_state(folder: Path) -> Row:
    """A state file of another program is refused in one line and left unchanged."""
    (folder / "run").mkdir(parents=True)
    path = folder / "run" / "state.json"
    path.write_text('{"version": 3}')
    try:
        run(Sweep(str(folder / "run")))
    except InputError as error:
        expect("holds state.json" in str(error), str(error))
    else:
        expect(False, "a foreign state file was taken for ours")
    expect(path.read_text() == '{"version": 3}', "the foreign file was changed")
    return Row("state file of another program in the folder", "local", "refused in one line")
