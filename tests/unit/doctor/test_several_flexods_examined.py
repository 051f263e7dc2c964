"""What the doctor says of several flexods."""

from __future__ import annotations

from pathlib import Path

import pytest
from says import says

from flexo.doctor.availability import check_active, check_lease_folder
from flexo.doctor.finding import Finding, Level
from flexo.doctor.flexod import FlexodAnswer

ACTIVE, WAITING, SILENT = (
    FlexodAnswer(version="1"),
    FlexodAnswer(version="1", stands_by=True),
    FlexodAnswer(silent="no answer"),
)


def levels(findings: list[Finding]) -> dict[str, Level]:
    return {finding.check: finding.level for finding in findings}


def test_exactly_one_has_to_be_active() -> None:
    (fine,) = check_active({"a:1": WAITING, "b:1": ACTIVE})
    assert fine.level is Level.OK
    assert says(fine.what, "b:1 is active", "a:1 stands by")
    assert levels(check_active({"a:1": SILENT, "b:1": ACTIVE})) == {"availability.active": Level.OK}
    (none,) = check_active({"a:1": WAITING, "b:1": SILENT})
    assert none.level is Level.PROBLEM
    (both,) = check_active({"a:1": ACTIVE, "b:1": ACTIVE})
    assert (both.level, "a:1 and b:1" in both.what) == (Level.PROBLEM, True)


def test_the_folder_of_the_lease_has_to_be_there_and_not_for_everybody(tmp_path: Path) -> None:
    event_store = tmp_path / "journal.sqlite"
    assert levels(check_lease_folder(tmp_path / "none", event_store)) == {
        "availability.folder": Level.PROBLEM
    }
    assert levels(check_lease_folder(tmp_path, event_store)) == {"availability.folder": Level.OK}
    assert list(tmp_path.iterdir()) == []
    assert levels(check_lease_folder(tmp_path, Path("/var/lib/flexo/journal.sqlite"))) == {
        "availability.folder": Level.OK,
        "availability.journal": Level.WARNING,
    }
    tmp_path.chmod(0o777)
    (open_to_all,) = check_lease_folder(tmp_path, event_store)
    assert (open_to_all.level, "chmod 750" in open_to_all.fix) == (Level.PROBLEM, True)


def test_a_file_system_without_hard_links_cannot_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    (found,) = check_lease_folder(tmp_path, tmp_path / "journal.sqlite")
    assert (found.level, "Operation not permitted" in found.what) == (Level.PROBLEM, True)
    assert list(tmp_path.iterdir()) == []
