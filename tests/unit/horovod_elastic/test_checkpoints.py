"""A checkpoint is whole or not there, and reading one runs nobody's code. Needs PyTorch, not Horovod."""

from __future__ import annotations

import collections
import datetime
import errno
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horovod_elastic import checkpoints
from horovod_elastic.checkpoints import CheckpointError, CheckpointInfo, load_checkpoint, write

torch = pytest.importorskip("torch")

ABOUT = CheckpointInfo(
    job_id=7, restart_count=1, generation=3, commits=40, workers=4, node="n1", flexo_version="1"
)


class State:
    """What Horovod's TorchState keeps, without Horovod: handlers, and plain attributes."""

    def __init__(self, **objects: Any) -> None:
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self._handlers = {
            "model": SimpleNamespace(value=self.model),
            "optimizer": SimpleNamespace(value=self.optimizer),
        }
        self._saved_state = dict(objects)
        self.saves = 0
        for name, value in objects.items():
            setattr(self, name, value)

    def train(self) -> State:
        self.model(torch.randn(6, 4)).sum().backward()
        self.optimizer.step()
        return self

    def save(self) -> None:
        self.saves += 1

    def everything(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()["state"]}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def test_what_was_written_comes_back_with_what_it_is_of(path: Path) -> None:
    state = State(epoch=3, ledger={"train": [(0, 64), (128, 32)], "seed": 9}).train()
    written = write(state, path, ABOUT)
    fresh = State(epoch=0, ledger={})
    assert load_checkpoint(path, fresh) == written
    assert (written.job_id, written.commits, written.workers, written.node) == (7, 40, 4, "n1")
    assert written.torch_version == torch.__version__
    assert same(fresh.everything(), state.everything())
    assert (fresh.epoch, fresh.ledger) == (3, {"train": [(0, 64), (128, 32)], "seed": 9})
    assert fresh.saves == 1


def test_the_values_of_the_moment_are_written_not_those_last_saved(path: Path) -> None:
    state = State(epoch=3)
    state.epoch = 4
    write(state, path, ABOUT)
    load_checkpoint(path, fresh := State(epoch=0))
    assert fresh.epoch == 4


def test_a_pipeline_that_only_knows_its_last_save_is_written_as_of_this_moment(path: Path) -> None:
    state = State(epoch=3)
    pipeline = SimpleNamespace(drawn=5, kept=0)
    pipeline.state_dict = lambda: {"consumed": pipeline.kept}
    state._handlers["data"] = SimpleNamespace(value=pipeline)
    state.save = lambda: setattr(pipeline, "kept", pipeline.drawn)  # type: ignore[method-assign]
    write(state, path, ABOUT)
    assert torch.load(path, weights_only=True)["state"]["data"] == {"consumed": 5}


def test_plain_torch_reads_it_without_trusting_it(path: Path) -> None:
    write(State(epoch=3).train(), path, ABOUT)
    content = torch.load(path, weights_only=True)
    assert content["about"]["job_id"] == 7
    assert "0.weight" in content["state"]["model"]


def test_a_second_one_replaces_the_first_and_nothing_else_is_left(path: Path) -> None:
    write(State(epoch=1), path, ABOUT)
    write(State(epoch=2), path, ABOUT)
    load_checkpoint(path, state := State(epoch=0))
    assert state.epoch == 2
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (datetime.datetime(2020, 1, 1), "datetime.datetime"),
        ([1, {"deep": object()}], r"state\['epoch'\]\[1\]\['deep'\] is a builtins.object"),
        (collections.Counter("aab"), "Counter"),
    ],
)
def test_what_could_only_be_read_back_by_running_code_is_refused_and_named(
    path: Path, value: object, named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        write(State(epoch=value), path, ABOUT)
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/model.pt cannot be written: No such file"):
        write(State(), path.parent / "nowhere" / "model.pt", ABOUT)


def test_a_folder_is_no_file_and_a_relative_path_no_place(path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder"):
        write(State(), path.parent, ABOUT)
    with pytest.raises(CheckpointError, match="not absolute"):
        write(State(), Path("model.pt"), ABOUT)


def test_a_disk_that_is_full_leaves_the_old_file_and_no_other(path: Path) -> None:
    write(State(epoch=1), path, ABOUT)
    with pytest.raises(CheckpointError, match=r"written.*No space left"):
        write_through("/dev/full", path)
    load_checkpoint(path, state := State(epoch=0))
    assert state.epoch == 1
    assert list(path.parent.iterdir()) == [path]


def write_through(device: str, path: Path) -> None:
    """As `write`, onto a device that is full: the file beside is a link to it."""
    real_open = Path.open

    def open_device(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.parent == path.parent and self.suffix == ".part":
            self.symlink_to(device)
            return real_open(self, "wb")
        return real_open(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", open_device)
        write(State(epoch=2), path, ABOUT)


def test_a_disk_that_fails_at_the_last_moment_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(State(epoch=1), path, ABOUT)

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoints.os, "fsync", broken)
    with pytest.raises(CheckpointError, match="Input/output error"):
        write(State(epoch=2), path, ABOUT)
    load_checkpoint(path, state := State(epoch=0))
    assert state.epoch == 1
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupt_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(State(), path, ABOUT)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_half_a_file_is_refused(path: Path, kept: float) -> None:
    write(State(epoch=1), path, ABOUT)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(CheckpointError, match=str(path)):
        load_checkpoint(path, State(epoch=0))


def test_one_wrong_bit_in_the_weights_is_noticed(path: Path) -> None:
    state = State(epoch=1)
    write(state, path, ABOUT)
    damaged = bytearray(path.read_bytes())
    where = damaged.find(state.model[0].weight.detach().numpy().tobytes())
    assert where > 0
    damaged[where + 5] ^= 1
    path.write_bytes(damaged)
    fresh = State(epoch=0)
    with pytest.raises(CheckpointError, match="damaged: the checksum"):
        load_checkpoint(path, fresh)
    assert (fresh.epoch, fresh.saves) == (0, 0)


class Bomb:
    exploded = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (Bomb, "exploded", True)


@pytest.mark.parametrize(
    "save", [lambda value, path: torch.save(value, path), lambda v, p: p.write_bytes(pickle.dumps(v))]
)
def test_a_file_that_would_run_code_is_refused_before_it_does(path: Path, save: Any) -> None:
    save({"format": "flexo checkpoint", "version": 1, "about": Bomb()}, path)
    with pytest.raises(CheckpointError, match="no checkpoint of flexo's"):
        load_checkpoint(path, State())
    assert not Bomb.exploded


def of_another_job(path: Path) -> None:
    write(State(epoch=9), path, replace(ABOUT, job_id=8))


def a_link_to_an_earlier_one(path: Path) -> None:
    write(State(epoch=9), path.with_name("earlier.pt"), ABOUT)
    path.symlink_to("earlier.pt")


def half_of_one(path: Path) -> None:
    write(State(epoch=9), path, ABOUT)
    path.write_bytes(path.read_bytes()[:-500])


FILES: list[Callable[[Path], object]] = [
    lambda path: path.write_text("my thesis"),
    lambda path: path.write_text(""),
    lambda path: path.symlink_to(path.parent / "thesis"),
    lambda path: torch.save({"weights": torch.ones(3)}, path),
    lambda path: torch.save({"format": "flexo checkpoint", "version": 1, "about": {}}, path),
    lambda path: torch.save({"format": "flexo checkpoint", "version": 1, "about": Bomb()}, path),
    lambda path: os.mkfifo(path),
    of_another_job,
    a_link_to_an_earlier_one,
    half_of_one,
]


def found_at(path: Path) -> tuple[int, int, int, bytes]:
    """What a file is, and what it holds."""
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b""


@pytest.mark.parametrize("make", FILES)
def test_nothing_is_replaced_but_a_checkpoint_of_the_same_job(
    path: Path, make: Callable[[Path], object]
) -> None:
    (path.parent / "thesis").write_text("my thesis")
    make(path)
    before, beside = found_at(path), sorted(path.parent.iterdir())
    state = State(epoch=1)
    with pytest.raises(CheckpointError) as caught:
        write(state, path, ABOUT)
    assert str(path) in str(caught.value)
    assert "job 7" in str(caught.value)
    assert found_at(path) == before
    assert sorted(path.parent.iterdir()) == beside
    assert state.saves == 0
    assert not Bomb.exploded


def test_a_requeued_job_replaces_what_it_wrote_before(path: Path) -> None:
    write(State(epoch=1), path, ABOUT)
    write(State(epoch=2), path, replace(ABOUT, restart_count=2, commits=80))
    load_checkpoint(path, state := State(epoch=0))
    assert state.epoch == 2


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_somebody_puts_there_meanwhile_stays(
    path: Path, earlier: bool, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if earlier:
        write(State(epoch=1), path, ABOUT)
    real_save = torch.save

    def save_slowly(content: object, file: Any) -> None:
        real_save(content, file)
        path.unlink(missing_ok=True)
        path.write_text("my thesis")

    monkeypatch.setattr(torch, "save", save_slowly)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(CheckpointError, match=str(path)):
        write(State(epoch=2), path, ABOUT)
    assert path.read_text() == "my thesis"
    assert list(path.parent.iterdir()) == [path]


def no_links(*arguments: object, **options: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_file_system_without_links_takes_checkpoints_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links)
    for epoch in (1, 2):
        write(State(epoch=epoch), path, ABOUT)
        load_checkpoint(path, state := State(epoch=0))
        assert state.epoch == epoch
    assert list(path.parent.iterdir()) == [path]


def test_a_job_may_say_in_which_folder_alone_checkpoints_are_written(path: Path) -> None:
    allowed, outside = path.parent / "allowed", path.parent / "outside"
    for folder in (allowed / "below", outside):
        folder.mkdir(parents=True)
    (allowed / "door").symlink_to(outside)
    for inside in (allowed / "model.pt", allowed / "below" / "model.pt"):
        write(State(epoch=1), inside, ABOUT, allowed)
    for other in (outside, allowed / "door", allowed / ".." / "outside"):
        with pytest.raises(CheckpointError, match=str(allowed)):
            write(State(epoch=1), other / "model.pt", ABOUT, allowed)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"weights": 1}, "though torch.load reads it"),
        ({"format": "flexo checkpoint", "version": 9}, "of version 9"),
    ],
)
def test_other_files_of_torch_s_are_refused(path: Path, content: object, named: str) -> None:
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=named):
        load_checkpoint(path, State())


def test_a_state_with_other_names_or_another_model_is_refused(path: Path) -> None:
    write(State(epoch=1), path, ABOUT)
    with pytest.raises(CheckpointError, match="it holds epoch, this script's state batch, epoch"):
        load_checkpoint(path, State(epoch=0, batch=0))
    other = State(epoch=0)
    other._handlers["model"].value = torch.nn.Linear(4, 9)
    with pytest.raises(CheckpointError, match=r"'model'.*\bfit\b"):
        load_checkpoint(path, other)


def test_a_file_that_is_not_there_is_said_to_be_so(path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        load_checkpoint(path, State())
