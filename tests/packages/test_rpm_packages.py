"""The RPM packages: built, installed in a folder system by rpm, used there, upgraded and removed.

The folder system is Debian's, because it has the Python and the Slurm that the packages were built with.
So the names of Red Hat's packages in Requires: are not tried here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clean_system import CleanSystem, why_impossible

import flexo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

BUILD = Path(__file__).resolve().parents[2] / "packages" / "build_rpms.py"
SLURM_CONF = "ClusterName=c\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n"
WITH_PROC = 'mount -t proc proc "$0/proc" && exec rpm --root "$0" --dbpath /var/lib/rpm "$@"'
"""As on a host that runs: scripts of packages use /proc."""
PLUGIN_FOLDER = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm")


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """All packages, by name."""
    reason = why_impossible() or (None if shutil.which("rpmbuild") else "rpmbuild is not installed")
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("a folder") / "rpm"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [sys.executable, str(BUILD), "--out", str(out), "--libraries", str(PLUGIN_FOLDER)]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    yield {path.name.partition(f"-{flexo.__version__}")[0]: path for path in out.glob("*.rpm")}
    shutil.rmtree(out)  # a hundred megabytes


@pytest.fixture(scope="module")
def system(rpms: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanSystem]:
    """A clean one with all packages installed."""
    clean = CleanSystem.unpacked(tmp_path_factory.mktemp("clean") / "root")
    clean.path("/etc/slurm/slurm.conf").write_text(SLURM_CONF)
    rpm(clean, "--initdb")
    rpm(clean, "--install", *map(str, rpms.values()))
    yield clean
    subprocess.run(["rm", "-rf", "--one-file-system", str(clean.root)], check=True)


def rpm(system: CleanSystem, *arguments: str, check: bool = True) -> str:
    """What rpm says. Requirements are not looked at: the folder's own packages are Debian's."""
    command = ["unshare", "--mount", "sh", "-c", WITH_PROC, str(system.root), *arguments]
    if arguments[0] in ("--install", "--upgrade", "--erase"):
        command.append("--nodeps")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 or not check, done.stdout
    return done.stdout


def test_what_rpm_installs_is_whole_and_works_for_everybody(system: CleanSystem) -> None:
    assert rpm(system, "--verify", "--nodeps", "flexo", "flexo-web", "flexo-slurm-plugin") == ""
    as_games = ("setpriv", "--reuid=games", "--regid=games", "--clear-groups")
    assert system.run(*as_games, "flexo", "version").stdout == f"flexo {flexo.__version__}\n"
    assert system.run(*as_games, "flexod", "--check-config").stdout == "/etc/flexo/flexo.toml: in order\n"
    assert "--elastic=MIN-MAX" in system.run("sbatch", "--help").stdout
    account = system.run("getent", "passwd", "flexo").stdout.split(":")
    assert account[5:] == ["/var/lib/flexo", "/usr/sbin/nologin\n"]
    assert system.run("stat", "--format=%U:%G %a", "/var/lib/flexo").stdout == "flexo:flexo 750\n"


def test_the_web_pages_come_with_their_hardened_unit_an_account_and_the_daemons_release(
    system: CleanSystem, rpms: dict[str, Path]
) -> None:
    where = "/usr/lib/systemd/system/flexo-web.service"
    assert where in rpm(system, "--query", "--list", "flexo-web").split()
    unit = system.path(where)
    assert unit.read_text() == (BUILD.parent / "systemd" / "flexo-web.service").read_text()
    assert {"ProtectSystem=strict", "NoNewPrivileges=yes"} <= set(unit.read_text().splitlines())
    assert system.run("getent", "passwd", "flexo-web").stdout.split(":")[6] == "/usr/sbin/nologin\n"
    assert "--help" in system.run("flexo-web", "--help").stdout
    required = rpm(system, "--query", "--requires", "flexo-web").splitlines()
    assert f"flexo = {flexo.__version__}" in required


def test_an_upgrade_of_the_web_pages_keeps_their_changed_settings_and_removal_saves_them(
    system: CleanSystem, rpms: dict[str, Path]
) -> None:
    settings = system.path("/etc/default/flexo-web")
    settings.write_text("FLEXO_WEB=mine\n")
    rpm(system, "--upgrade", "--replacepkgs", str(rpms["flexo-web"]))
    assert settings.read_text() == "FLEXO_WEB=mine\n"
    rpm(system, "--erase", "flexo-web")
    assert settings.with_name("flexo-web.rpmsave").read_text() == "FLEXO_WEB=mine\n"
    assert not system.path("/usr/bin/flexo-web").exists()


def test_the_rpm_of_the_plugin_requires_the_release_of_slurm_that_it_was_built_for(
    rpms: dict[str, Path],
) -> None:
    asked = subprocess.run(
        ["rpm", "-qp", "--requires", str(rpms["flexo-slurm-plugin"])],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    release = rpms["flexo-slurm-plugin"].name.partition(".slurm")[2].rpartition(".x86_64")[0]
    assert f"slurm >= {release}" in asked
    assert any(line.startswith("slurm < ") for line in asked)


def test_an_installation_anew_keeps_a_changed_configuration(
    system: CleanSystem, rpms: dict[str, Path]
) -> None:
    own = '[service]\naddress = "ctl1:6836"\n'
    system.path("/etc/flexo/flexo.toml").write_text(own)
    rpm(system, "--upgrade", "--replacepkgs", str(rpms["flexo"]))
    assert system.path("/etc/flexo/flexo.toml").read_text() == own
    assert system.run("flexo", "version").stdout == f"flexo {flexo.__version__}\n"


def test_the_plugin_is_not_removed_while_slurms_script_loads_its_module(system: CleanSystem) -> None:
    script = system.path("/etc/slurm/job_submit.lua")
    script.write_text('local elastic = dofile("/etc/slurm/job_submit_elastic.lua")\n')
    assert "take its lines out first" in rpm(system, "--erase", "flexo-slurm-plugin", check=False)
    assert system.path("/etc/slurm/job_submit_elastic.lua").is_file()
    script.unlink()
    rpm(system, "--erase", "flexo-slurm-plugin")
    assert "--elastic" not in system.run("sbatch", "--help").stdout


def test_removal_by_rpm_keeps_the_event_store_and_a_changed_configuration(system: CleanSystem) -> None:
    store = system.path("/var/lib/flexo/journal.sqlite")
    store.write_text("")
    system.path("/etc/flexo/flexo.toml").write_text("# mine\n")
    rpm(system, "--erase", "flexo")
    assert store.exists()
    assert not system.path("/usr/lib/flexo").exists()
    assert system.path("/etc/flexo/flexo.toml.rpmsave").read_text() == "# mine\n"
