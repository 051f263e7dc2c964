"""What other accounts can read or steer of flexod, and what users can write into its log and its memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from flexo.config import ConfigError, LogSettings, load
from flexo.control.slow_gpus import MOST_OF_A_JOB, SlowGpus
from flexo.event_store.store import EventStore
from flexo.events import Event
from flexo.model.measured import SlowGpuReport
from flexo.model.queue import JobKey
from flexo.service import logs
from flexo_protos.leader_leases.file_store import FileLeaseStore
from flexo_protos.leader_leases.lease import OF_FLEXODS, StoreUnavailable

LIAR = JobKey(7)


def test_the_event_store_is_not_for_others_to_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    event_store = EventStore(path, 30)
    event_store.record(1.0, (Event(1.0, "grow", LIAR, "2 workers"),))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    event_store.close()
    assert path.name in modes
    assert not [name for name, mode in modes.items() if mode & 0o027], modes


def test_a_configuration_that_everybody_may_write_is_not_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "flexo.toml"
    file.write_text("")
    file.chmod(0o646)
    with pytest.raises(ConfigError, match=f"chmod o-w {file}"):
        load(file)
    file.chmod(0o644)
    load(file)


FOREIGN_GROUP = 64_001


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda file: (os.chown(file, -1, FOREIGN_GROUP), file.chmod(0o664)), "chmod g-w {file}"),
        (lambda file: file.parent.chmod(0o757), "chmod o-w {file.parent}"),
        (
            lambda file: (os.chown(file.parent, -1, FOREIGN_GROUP), file.parent.chmod(0o775)),
            "chmod g-w {file.parent}",
        ),
        (lambda file: os.chown(file, 64_001, -1), "chown root {file}"),
        (lambda file: os.chown(file.parent, 64_001, -1), "chown root {file.parent}"),
    ],
    ids=["the group", "the folder", "the folder's group", "the owner", "the folder's owner"],
)
def test_a_configuration_that_another_account_can_change_is_not_obeyed(
    tmp_path: Path, change: Callable[[Path], object], remedy: str
) -> None:
    if os.geteuid():
        pytest.skip("only root gives files to other accounts")
    file = tmp_path / "etc" / "flexo.toml"
    file.parent.mkdir()
    file.write_text("")
    load(file)
    change(file)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert remedy.format(file=file) in str(caught.value)


def test_a_configuration_that_own_and_roots_group_may_write_is_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "flexo.toml"
    file.write_text("")
    file.chmod(0o664)
    load(file)


def test_a_link_to_a_file_that_another_account_can_replace_is_not_obeyed(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    (loose / "flexo.toml").write_text("")
    loose.chmod(0o777)
    link = tmp_path / "flexo.toml"
    link.symlink_to(loose / "flexo.toml")
    with pytest.raises(ConfigError, match=f"chmod o-w {loose}"):
        load(link)


def test_what_is_checked_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who can write the file puts an innocent one in its place right after it was read."""
    file, innocent = tmp_path / "flexo.toml", tmp_path / "innocent"
    file.write_text("")
    file.chmod(0o666)
    innocent.write_text("")
    read_text, open_file = Path.read_text, os.open

    def swapped(opened: object) -> object:
        if innocent.exists():
            innocent.rename(file)
        return opened

    monkeypatch.setattr(Path, "read_text", lambda path, **more: swapped(read_text(path, **more)))
    monkeypatch.setattr(os, "open", lambda *what, **more: swapped(open_file(*what, **more)))
    with pytest.raises(ConfigError, match="everybody may write it"):
        load(file)


def test_a_folder_that_everybody_may_write_says_nothing_of_who_is_active(tmp_path: Path) -> None:
    store = FileLeaseStore(tmp_path, OF_FLEXODS)
    assert store.read().version == 0
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreUnavailable, match=f"chmod o-w {tmp_path}"):
        store.read()


@pytest.mark.parametrize("form", ["text", "json"])
def test_whatever_a_user_has_named_stays_on_its_line(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(LogSettings(format=form))
    hostile = "a\n2026-01-01 [info] all is well\r\x1b[2J\x00\u2028\u202eb"
    structlog.get_logger("flexo.test").warning(f"job {hostile} ended", why=hostile)
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.endswith("\n")
    said = text.removesuffix("\n")
    assert "a" in said
    assert not [character for character in said if not character.isprintable()]


def test_a_leader_that_finds_everything_slow_is_believed_within_bounds(tmp_path: Path) -> None:
    event_store = EventStore(tmp_path / "journal.sqlite", 30)
    slow = SlowGpus(event_store, 1800.0, 0.0)
    held = {LIAR: frozenset({"n1"})}
    told = 0
    for second in range(100):
        reports = [SlowGpuReport(LIAR, "n1", (second * 20 + number,), 9.0) for number in range(20)]
        elsewhere = [SlowGpuReport(LIAR, f"n{second}x{number}", (), 9.0) for number in range(20)]
        told += len(slow.take(reports + elsewhere, held, {LIAR: "liar"}, float(second)))
    assert told <= MOST_OF_A_JOB
    assert len(slow.known) <= MOST_OF_A_JOB
    event_store.close()


def test_who_says_the_same_again_at_once_says_nothing_new(tmp_path: Path) -> None:
    event_store = EventStore(tmp_path / "journal.sqlite", 30)
    slow = SlowGpus(event_store, 1800.0, 0.0)
    report = SlowGpuReport(LIAR, "n1", (1,), 2.0)
    events = [
        slow.take([report], {LIAR: frozenset({"n1"})}, {LIAR: "liar"}, at) for at in (0.0, 1.0, 299.0, 300.0)
    ]
    assert [len(each) for each in events] == [1, 0, 0, 1]
    event_store.close()
