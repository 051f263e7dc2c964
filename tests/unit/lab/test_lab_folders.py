"""Root reads and runs nothing of a lab in folders that somebody else can change."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flexo_cli.site.lab import app
from flexo_lab import LabSpec, UnsafeFolder, all_labs, bring_up, bringup, take_down, teardown
from flexo_lab import lab as lab_module
from flexo_lab.folders import check
from flexo_lab.layout import Layout
from flexo_lab.record import Ports, Record

STRANGER = 5
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user: needs root")


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root of labs that does not exist yet; that of tmp_path is too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="fl-", dir="/tmp") as folder:
        monkeypatch.setenv("FLEXO_LABS", f"{folder}/labs")
        yield Path(folder, "labs")


def lab_in(labs: Path, name: str = "lab") -> Path:
    """A lab that says it is up, in which a command of Slurm's would read slurm.conf."""
    folder = labs / name
    folder.mkdir(parents=True, mode=0o755)
    record = Record(LabSpec(name=name, nodes=1), Ports(1, 2, (3, 4)), up=True)
    record.write(folder / "lab.json")
    (folder / "slurm.conf").write_text("PluginDir=/somebody/elses\n")
    return folder


def given_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_its_group(path: Path) -> None:
    path.chmod(0o775)


def sticky_and_open(path: Path) -> None:
    path.chmod(0o1777)


def behind_a_link(path: Path) -> None:
    elsewhere = path.with_name(f"{path.name}-elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


SPOILED: list[object] = [
    pytest.param(given_away, marks=as_root),
    open_to_all,
    open_to_its_group,
    sticky_and_open,
    behind_a_link,
]


@pytest.mark.parametrize("what", ["labs", "lab"])
@pytest.mark.parametrize("spoil", SPOILED)
def test_folders_that_others_can_change_are_neither_read_nor_run_nor_removed(
    labs: Path, what: str, spoil: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = lab_in(labs)
    spoil(labs if what == "labs" else lab)
    monkeypatch.setattr(bringup, "require", lambda profile: None)
    for module in (teardown, lab_module):
        monkeypatch.setattr(module.subprocess, "run", lambda *a, **k: pytest.fail("a command was run"))
    monkeypatch.setattr(os, "execvpe", lambda *a: pytest.fail("a shell was started"))

    commands = [["up"], ["status"], ["status", "lab"], ["shell"]]
    commands += [["down"], ["down", "--all"]] if os.geteuid() == 0 else []
    for command in commands:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1, command
        assert result.stderr.count("\n") == 1
        assert str(labs if what == "labs" else lab) in result.stderr
        assert "FLEXO_LABS" in result.stderr
    assert (lab / "slurm.conf").exists()


@as_root
@pytest.mark.parametrize("what", ["labs", "lab"])
def test_the_message_names_the_folder_and_who_owns_it(labs: Path, what: str) -> None:
    lab = lab_in(labs)
    given_away(labs if what == "labs" else lab)
    with pytest.raises(UnsafeFolder) as caught:
        take_down("lab")
    assert f"{labs if what == 'labs' else lab} belongs to " in str(caught.value)
    assert f"user id {STRANGER}" in str(caught.value)


@as_root
def test_up_takes_no_folder_of_another_user_down(labs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_in(labs)
    given_away(labs)
    monkeypatch.setattr(bringup, "require", lambda profile: None)
    with pytest.raises(UnsafeFolder):
        bring_up(LabSpec(name="lab"))
    assert sorted(path.name for path in lab.iterdir()) == ["lab.json", "slurm.conf"]


def test_labs_are_found_where_only_the_caller_may_write(labs: Path) -> None:
    assert all_labs() == []
    lab_in(labs)
    assert all_labs() == ["lab"]
    assert Layout.of("lab").slurm_conf.exists()


def test_a_parent_for_all_is_allowed_if_it_is_sticky_and_not_otherwise(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "labs").mkdir(parents=True)
    shared.chmod(0o1777)
    check(shared / "labs", "lab")
    shared.chmod(0o777)
    with pytest.raises(UnsafeFolder, match=r"shared has mode 0777"):
        check(shared / "labs", "lab")


@as_root
def test_a_parent_of_another_user_is_refused_even_while_the_labs_are_roots(tmp_path: Path) -> None:
    (tmp_path / "home" / "labs").mkdir(parents=True)
    given_away(tmp_path / "home")
    with pytest.raises(UnsafeFolder, match=r"home belongs to"):
        check(tmp_path / "home" / "labs", "lab")


@as_root
def test_a_link_on_the_way_counts_by_its_own_owner(tmp_path: Path) -> None:
    (tmp_path / "real" / "labs").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    check(tmp_path / "link" / "labs", "lab")
    os.lchown(tmp_path / "link", STRANGER, STRANGER)
    with pytest.raises(UnsafeFolder, match=r"link belongs to"):
        check(tmp_path / "link" / "labs", "lab")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UnsafeFolder, match="link"):
        check(tmp_path / "a" / "labs")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "labs").write_text("")
    with pytest.raises(UnsafeFolder, match="is no folder"):
        check(tmp_path / "labs", "lab")


def test_the_shell_is_bash_where_nothing_says_which(labs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers leave $SHELL unset. /bin/sh has no history, edits no line, and has no prompt of the lab."""
    lab = lab_in(labs)
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execvpe", lambda path, command, environment: started.append(command))
    for shell in ("", "/usr/bin/zsh"):
        monkeypatch.setenv("SHELL", shell)
        assert CliRunner().invoke(app, ["shell"]).exit_code == 0
    unset, chosen = started
    assert Path(unset[0]).name == "bash"
    assert unset[1:] == ["--rcfile", str(lab / "bashrc")]
    assert chosen == ["/usr/bin/zsh"]
