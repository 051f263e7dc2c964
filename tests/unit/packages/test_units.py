"""The units of flexod and flexo-web, as systemd itself judges them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flexo.service import watchdog

SYSTEMD = Path(__file__).resolve().parents[3] / "packages" / "systemd"
IMPLY_NO_NEW_PRIVILEGES = (
    "DynamicUser",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
    "SystemCallFilter",
    "SystemCallLog",
)
"""systemd.exec(5), NoNewPrivileges=."""


def settings(text: str) -> dict[str, str]:
    """The last value of each key of [Service]."""
    return dict(re.findall(r"^([A-Z]\w+)=(.*)$", text.partition("[Service]")[2], re.MULTILINE))


@pytest.fixture
def analyze() -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    return program


@pytest.fixture(params=["flexod", "flexo-web"])
def unit(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The unit, of a program that is there on every machine."""
    path = tmp_path / f"{request.param}.service"
    text = (SYSTEMD / path.name).read_text().replace(f"/usr/bin/{request.param}", "/bin/true")
    path.write_text(re.sub("^Documentation=.*\n", "", text, flags=re.MULTILINE))
    return path


@pytest.mark.processes
def test_systemd_finds_nothing_wrong_with_the_unit(analyze: str, unit: Path) -> None:
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if unit.stem in line] == []


@pytest.mark.processes
def test_systemd_calls_the_unit_well_protected(analyze: str, unit: Path) -> None:
    # in tenths; systemd calls from 0 to 2.0 the best that a service can be
    command = [analyze, "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a file")
    assert done.returncode == 0, done.stdout[-3000:]


def test_systemds_watchdog_waits_for_many_looks_so_that_a_busy_flexod_lives_and_leaves_no_core() -> None:
    plain = settings((SYSTEMD / "flexod.service").read_text())
    assert float(plain["WatchdogSec"]) >= 10 * watchdog.LOOK_S
    assert plain["LimitCORE"] == "0"


def test_lending_through_sudo_takes_back_everything_that_forbids_sudo_and_nothing_more() -> None:
    plain = settings((SYSTEMD / "flexod.service").read_text())
    lending = settings((SYSTEMD / "flexod-lending.conf").read_text())
    forbidding = {key for key in IMPLY_NO_NEW_PRIVILEGES if plain.get(key)}
    assert {key for key in forbidding if lending.get(key) in ("", "no")} == forbidding
    assert lending["NoNewPrivileges"] == "no"
    assert set(lending) - forbidding == {"NoNewPrivileges", "CapabilityBoundingSet"}
