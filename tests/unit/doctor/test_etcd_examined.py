"""What the doctor says of an etcd that keeps leases; one that answers is asked in tests/etcd."""

from __future__ import annotations

from pathlib import Path

from flexo.config import Settings, parse
from flexo.doctor.etcd import check_etcd
from flexo.doctor.finding import Level

NOWHERE = "etcd://127.0.0.1:1"
AVAILABLE = f'[high_availability]\nhosts = ["a:1", "b:1"]\nlease = "{NOWHERE}"\n'


def settings(text: str) -> Settings:
    return parse(text, "flexo.toml")


def test_where_nothing_is_kept_in_etcd_nothing_is_said_of_it(tmp_path: Path) -> None:
    in_folder = AVAILABLE.replace(NOWHERE, f"file://{tmp_path}")
    assert check_etcd(settings(in_folder)) == check_etcd(settings("")) == []


def test_an_etcd_that_does_not_answer_is_a_problem_for_flexods_and_for_leaders() -> None:
    found = check_etcd(settings(f'{AVAILABLE}[lease]\nstore = "{NOWHERE}"\n'))
    assert [(each.check, each.level) for each in found] == [
        ("etcd.flexods", Level.PROBLEM),
        ("etcd.leaders", Level.PROBLEM),
    ]
    assert all("127.0.0.1:1" in each.what for each in found)


def test_whoever_may_not_read_etcds_password_cannot_check_it(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    (found,) = check_etcd(settings(f'{AVAILABLE}[lease]\netcd_password_file = "{secret}"\n'))
    assert (found.check, found.level) == ("etcd.flexods", Level.NOT_CHECKED)
    assert str(secret) in found.what
