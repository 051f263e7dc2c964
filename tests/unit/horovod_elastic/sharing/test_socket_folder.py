"""The folder of a supervisor's socket goes with it, however it ends."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from horovod_elastic.sharing.socket_folder import BEGUN_S, PREFIX, socket_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_old(folder: Path) -> None:
    before = time.time() - 2 * BEGUN_S
    os.utime(folder, (before, before))


def left(temporary: Path, name: str) -> Path:
    """A folder as a killed process leaves it."""
    folder = temporary / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / "supervisor").touch()
    make_old(folder)
    return folder


def test_only_its_user_can_enter_it_and_it_goes_with_its_process(temporary: Path) -> None:
    with socket_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent == temporary
    assert list(temporary.iterdir()) == []


def test_the_next_process_removes_what_a_killed_one_has_left(temporary: Path) -> None:
    folder = left(temporary, "killed")
    with socket_folder():
        assert not folder.exists()


def test_a_folder_in_use_stays_however_old_it_is(temporary: Path) -> None:
    with socket_folder() as long_used:
        make_old(long_used)
        with socket_folder():
            pass
        assert long_used.exists()


def test_a_folder_that_was_just_made_and_somebody_elses_stay(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = temporary / f"{PREFIX}new"
    new.mkdir()
    with socket_folder():
        assert new.exists()
    others = left(temporary, "others")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with socket_folder():
        assert others.exists()


def test_a_link_with_such_a_name_is_not_followed(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("target")
    (target / "kept").touch()
    link = temporary / f"{PREFIX}link"
    link.symlink_to(target)
    os.utime(link, (1, 1), follow_symlinks=False)
    with socket_folder():
        assert (target / "kept").exists()
