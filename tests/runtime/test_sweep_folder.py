"""The folder of a sweep: nothing of others is touched, and every file of ours knows who it is."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import grasp_tune as gt
from grasp_tune.core.errors import CheckpointError, InputError
from grasp_tune.runtime.files import previous
from grasp_tune.runtime.lock import NAME, OURS, folder_lock
from grasp_tune.runtime.store import CheckpointStore
from grasp_tune.runtime.sweep_folder import CallCounter, SweepFolder, open_folder
from tests.executors.sweeps import fingerprint, forked, problem, sweep


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "out"
    sweep(folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def broken() -> None:
    raise ValueError("a mistake in the loss")


@pytest.mark.parametrize("name", OURS)
def test_files_of_others_are_neither_deleted_nor_overwritten(name: str, tmp_path: Path) -> None:
    file = tmp_path / name if "." in name else tmp_path / name / "mine.safetensors"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"the user's own")
    for given in (problem(), problem(broken)):
        with pytest.raises(InputError, match=rf"holds {name}, but no {NAME}.*use an empty or new"):
            sweep(tmp_path, given)
    if name in ("result.json", "model.safetensors"):
        with pytest.raises(InputError, match=f"holds {name}, which may be somebody else's"):
            sweep(None).save(tmp_path)
    assert file.read_bytes() == b"the user's own"
    assert os.listdir(tmp_path) == [name]


def test_a_mistake_in_the_loss_removes_only_what_the_run_wrote(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    def before() -> None:
        if (tmp_path / "calls").exists():
            (tmp_path / "calls/notes").mkdir(exist_ok=True)
        broken()

    with pytest.raises(ValueError, match="a mistake in the loss"):
        sweep(tmp_path, problem(before))
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["calls", "calls/notes", "notes.txt"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"the user's own")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / NAME).symlink_to(target)
    with pytest.raises(CheckpointError, match="it is a link"):
        sweep(folder)
    assert target.read_bytes() == b"the user's own"


FILES = ["result.json", "model.safetensors", "state.json", NAME, "checkpoints"]
SPARE = "state.previous.json"


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_place_of_a_file_is_an_error_and_not_a_wait(name: str, copied: Path) -> None:
    path = copied / name
    if name == "checkpoints":  # the chosen one
        path = copied / name / f"{gt.Result.load(copied).choice.key}.safetensors"
    path.unlink()
    os.mkfifo(path)
    use = gt.Result.load if name in FILES[:2] else sweep

    def waited(*_: object) -> None:
        raise TimeoutError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    try:
        with pytest.raises(gt.GraspError, match="no regular file"):
            use(copied)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("begun", [True, False])
def test_a_link_in_place_of_the_spare_state_stays(begun: bool, copied: Path) -> None:
    target = copied / "precious"
    target.write_bytes(b"the user's own")
    (copied / SPARE).unlink()
    (copied / SPARE).symlink_to(target)
    if not begun:
        (copied / "state.json").unlink()
    with pytest.raises(CheckpointError, match=f"{SPARE} is no regular file"):
        sweep(copied)
    assert (copied / SPARE).is_symlink() and target.read_bytes() == b"the user's own"


def test_a_link_in_place_of_a_checkpoint_is_not_removed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"the user's own")
    store = CheckpointStore(tmp_path / "checkpoints")
    store.folder.mkdir()
    store.path("x0").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"cannot be removed: .* is no regular"):
        store.delete("x0")
    assert store.path("x0").is_symlink()


def test_a_name_that_no_folder_can_have_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written: File name too long"):
        sweep(tmp_path / ("n" * 300))


def test_a_folder_that_is_gone_when_a_round_begins_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = SweepFolder.check_room

    def check_room(self: SweepFolder, search: gt.Search) -> None:
        if search.outcomes:
            shutil.rmtree(self.path)
        looked(self, search)

    monkeypatch.setattr(SweepFolder, "check_room", check_room)
    with pytest.raises(CheckpointError, match="removed or taken over by another run"):
        sweep(tmp_path / "out")


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "x0.safetensors").write_bytes(b"the user's own")
    for name in ("checkpoints", "calls"):
        folder = tmp_path / f"out-{name}"
        folder.mkdir()
        with folder_lock(folder):
            pass  # now it is marked as ours
        (folder / name).symlink_to(mine)
        for given in (problem(), problem(broken)):
            with pytest.raises(CheckpointError, match=f"{name} is a link"):
                sweep(folder, given)
    assert os.listdir(mine) == ["x0.safetensors"]


def test_checkpoints_that_another_put_there_outlive_a_mistake_in_the_loss(tmp_path: Path) -> None:
    with folder_lock(tmp_path):
        pass
    own = tmp_path / "checkpoints/mine.safetensors"
    own.parent.mkdir()
    own.write_bytes(b"the user's own")
    with pytest.raises(ValueError, match="a mistake in the loss"):
        sweep(tmp_path, problem(broken))
    assert own.read_bytes() == b"the user's own"


def test_a_loss_may_change_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    sweep(Path("out"), problem(lambda: os.chdir(tmp_path / "elsewhere")), budget=60)
    assert gt.Result.load(tmp_path / "out").calls["repeated"] == 0
    assert not os.listdir(tmp_path / "elsewhere")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def test_the_time_spent_outlives_damage_and_is_else_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, now = tmp_path / "clock.json", 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with open_folder(tmp_path) as folder:
        with folder.deadline(60.0) as deadline:
            assert deadline == 1000.0 + 3600.0
            now = 1180.0
        with folder.deadline(60.0) as deadline:
            assert deadline == 1180.0 + 3600.0 - 180.0
        zeroed(clock)  # a power cut; what was written before is there
        with folder.deadline(60.0) as deadline:
            assert deadline == 1180.0 + 3600.0 - 180.0
        assert not caplog.messages[1:]
        zeroed(clock)
        zeroed(previous(clock))
        with folder.deadline(60.0) as deadline:
            assert deadline == 1180.0 + 3600.0
    assert "the time that was spent before is not known" in caplog.text


def moved(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(other, folder)


@pytest.mark.parametrize("call", [1, 200])  # in the probe, and later
@pytest.mark.parametrize("removal", [lambda folder, other: shutil.rmtree(folder), moved])
def test_a_folder_taken_by_another_run_stops_the_first(
    removal: Callable[[Path, Path], None], call: int, finished: Path, tmp_path: Path
) -> None:
    out, seen = tmp_path / "out", 0

    def before() -> None:
        nonlocal seen
        seen += 1
        if seen == call:
            removal(out, finished)

    with pytest.raises(CheckpointError, match="removed or taken over by another run"):
        sweep(out, problem(before))
    if removal is moved:
        files = sorted(path.relative_to(out) for path in out.rglob("*"))
        assert files == sorted(path.relative_to(finished) for path in finished.rglob("*"))
        assert fingerprint(gt.Result.load(out)) == fingerprint(gt.Result.load(finished))


def test_a_state_of_another_sweep_is_not_gone_on_from(tmp_path: Path) -> None:
    given, own, other = problem(), tmp_path / "own", tmp_path / "other"
    same_spec = replace(given, data=(-given.data[0], given.data[1]))  # type: ignore[index]
    expected = fingerprint(sweep(own, given, budget=60))
    assert fingerprint(sweep(other, same_spec, budget=60)) != expected
    shutil.copy(other / "state.json", own)
    again = sweep(own, given, budget=60)
    assert fingerprint(again) == expected
    assert again.calls["repeated"] == sum(again.calls.values()) - again.calls["repeated"]
    assert (own / "state.damaged.json").read_bytes() == (other / "state.json").read_bytes()


def test_a_checkpoint_of_another_key_or_another_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with folder_lock(tmp_path / "one") as one, folder_lock(tmp_path / "two") as two:
        ours = CheckpointStore(tmp_path / "one/points", one)
        other = CheckpointStore(tmp_path / "two/points", two)
        for store in (ours, other):
            store.write("a", {"x": torch.zeros(2)}, {})
            store.write("b", {"x": torch.ones(2)}, {})
        shutil.copy(ours.path("a"), ours.path("b"))
        with pytest.raises(CheckpointError, match=r"its key is 'a', expected 'b'") as caught:
            ours.read("b")
        assert caught.value.key == "b"
        shutil.copy(other.path("a"), ours.path("a"))
        with pytest.raises(CheckpointError, match=r"its sweep is '.*', expected") as caught:
            ours.read("a")
        assert caught.value.key == "a"


def test_every_flipped_bit_of_a_result_is_noticed(copied: Path) -> None:
    path = copied / "result.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 23):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"result\.json is damaged"):
            gt.Result.load(copied)


def test_the_model_of_another_result_is_refused_and_loading_deletes_nothing(
    copied: Path, tmp_path: Path
) -> None:
    sweep(tmp_path / "other", budget=400)
    shutil.copy(tmp_path / "other/model.safetensors", copied)
    stale = copied / ".state.json.somewhere.1.0123456789abcdef.tmp"
    stale.touch()
    os.utime(stale, (0, 0))
    with pytest.raises(CheckpointError, match=r"is not the model of result\.json"):
        gt.Result.load(copied)
    assert stale.exists()


def test_the_calls_of_dead_processes_are_remembered(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def count() -> None:
        add = CallCounter(path).counter()
        for _ in range(7):
            add(3)
        os.kill(os.getpid(), 9)

    os.waitpid(forked(count), 0)
    calls = CallCounter(path)
    assert calls.total == 21
    calls.counter()(4)
    calls.counter()(5)
    assert calls.total == CallCounter(path).total == 30


def test_a_damaged_file_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    path.mkdir()
    (path / "damaged").write_bytes(b"short")
    calls = CallCounter(path)
    calls.counter()(2)
    assert calls.total == 2


def test_a_file_that_is_cut_while_it_is_used_counts_on(tmp_path: Path) -> None:
    calls = CallCounter(tmp_path / "calls")
    add = calls.counter()
    add(2)
    (file,) = (tmp_path / "calls").iterdir()
    os.truncate(file, 0)
    add(3)
    assert calls.total == 5


def test_without_a_folder_this_process_is_counted() -> None:
    calls = CallCounter(None)
    calls.counter()(2)
    calls.counter()(3)
    assert calls.total == 5
