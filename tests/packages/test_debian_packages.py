"""The Debian packages: built, installed in a clean folder system, used there, upgraded, removed, purged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clean_system import CleanSystem

import flexo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SYSTEMCTL = """#!/bin/sh
echo "$@" >> /var/log/systemctl
"""
"""Stands for systemd, which does not run in a folder."""
SLURM_CONF = "ClusterName=c\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=p Nodes=n1\n"
READY = """
import os, shutil, socket, subprocess, sys
systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
systemd.bind("/run/notify")
os.chmod("/run/notify", 0o777)
systemd.settimeout(90)
os.makedirs("/run/munge", mode=0o755)
shutil.chown("/run/munge", "munge", "munge")
as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
subprocess.run([*as_munge, "munged", "--force"], check=True)
as_flexo = ["setpriv", "--reuid=flexo", "--regid=flexo", "--clear-groups"]
flexod = subprocess.Popen([*as_flexo, "flexod"], env={**os.environ, "NOTIFY_SOCKET": "/run/notify"})
print(systemd.recv(100).decode(), flush=True)
flexod.terminate()
print(systemd.recv(100).decode(), flush=True)
sys.exit(flexod.wait(60))
"""


@pytest.fixture(scope="module")
def system(packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[CleanSystem]:
    """A clean one with all packages installed."""
    clean = CleanSystem.unpacked(tmp_path_factory.mktemp("clean") / "root")
    clean.path("/etc/slurm/slurm.conf").write_text(SLURM_CONF)
    clean.dpkg("--install", packages=tuple(packages.values()))
    yield clean
    subprocess.run(["rm", "-rf", "--one-file-system", str(clean.root)], check=True)


def test_what_is_installed_is_whole_and_works_for_everybody(system: CleanSystem) -> None:
    assert system.dpkg("--verify", "flexo", "flexo-web", "flexo-slurm-plugin") == ""
    as_games = ("setpriv", "--reuid=games", "--regid=games", "--clear-groups")
    assert system.run(*as_games, "flexo", "version").stdout == f"flexo {flexo.__version__}\n"
    assert system.run(*as_games, "flexod", "--check-config").stdout == "/etc/flexo/flexo.toml: in order\n"
    assert "scale" in system.run(*as_games, "env", "_FLEXO_COMPLETE=complete_bash", "COMP_WORDS=flexo sc",
                                     "COMP_CWORD=1", "flexo").stdout  # fmt: skip
    for path in (
        "/usr/lib/systemd/system/flexod.service",
        "/usr/lib/systemd/system/flexo-web.service",
        "/usr/share/man/man1/flexo-doctor.1.gz",
        "/usr/share/man/man5/flexo.toml.5.gz",
        "/usr/share/man/man8/flexod.8.gz",
        "/usr/share/man/man8/flexo-partition.8.gz",
        "/usr/share/bash-completion/completions/flexo",
        "/usr/share/flexo/grafana-dashboard.json",
        "/usr/share/flexo/alerts.yml",
    ):
        assert system.path(path).is_file(), path


def test_flexo_web_has_an_account_of_its_own_and_starts_as_that_alone(system: CleanSystem) -> None:
    account = system.run("getent", "passwd", "flexo-web").stdout.split(":")
    assert account[6] == "/usr/sbin/nologin\n"
    assert "root" in system.run("flexo-web", check=False).stdout
    as_web = ("setpriv", "--reuid=flexo-web", "--regid=flexo-web", "--clear-groups")
    assert "--reports" in system.run(*as_web, "flexo-web", "--help").stdout


def test_several_flexods_can_keep_their_lease_in_etcd_with_nothing_installed_besides(
    system: CleanSystem,
) -> None:
    config = system.path("/tmp/flexo.toml")
    config.write_text('[high_availability]\nhosts = ["a:1", "b:1"]\nlease = "etcd://127.0.0.1:1"\n')
    done = system.run("flexo", "doctor", "--json", "--config", "/tmp/flexo.toml", check=False)
    config.unlink()
    said = {each["check"]: each["what"] for each in json.loads(done.stdout)["findings"]}
    assert all(fact in said["etcd.flexods"] for fact in ("127.0.0.1:1", "no leases"))


def test_flexod_has_an_account_and_a_folder_that_is_its_own_alone(system: CleanSystem) -> None:
    account = system.run("getent", "passwd", "flexo").stdout.split(":")
    assert account[5:] == ["/var/lib/flexo", "/usr/sbin/nologin\n"]
    folder = system.run("stat", "--format=%U:%G %a", "/var/lib/flexo").stdout
    assert folder == "flexo:flexo 750\n"


def test_flexod_starts_as_that_account_and_tells_systemd_when_it_is_ready(system: CleanSystem) -> None:
    done = system.run("/usr/bin/python3", "-c", READY, check=False)
    assert done.returncode == 0, done.stdout
    told = [line for line in done.stdout.splitlines() if line.endswith("=1")]
    assert told == ["READY=1", "STOPPING=1"], done.stdout


def test_the_doctor_says_what_is_left_to_do_after_an_installation(system: CleanSystem) -> None:
    done = system.run("flexo", "doctor", "--json", check=False)
    assert done.returncode == 1
    levels = {each["check"]: each["level"] for each in json.loads(done.stdout)["findings"]}
    assert levels["flexod.config"] == levels["flexod.journal"] == "ok"
    assert levels["slurm.answers"] == levels["flexod.answers"] == "problem"


def test_sbatch_has_elastic_while_the_plugin_is_there_and_works_without_it_afterwards(
    system: CleanSystem, packages: dict[str, Path]
) -> None:
    assert "--elastic=MIN-MAX" in system.run("sbatch", "--help").stdout
    loading = system.path("/etc/slurm/job_submit.lua")
    loading.write_text('local elastic = dofile("/etc/slurm/job_submit_elastic.lua")\n')
    said = system.dpkg("--remove", "flexo-slurm-plugin")
    assert "take its lines out" in said
    assert system.path("/etc/slurm/job_submit_elastic.lua").is_file()
    assert "--elastic" not in system.run("sbatch", "--help").stdout
    system.dpkg("--install", packages=[packages["flexo-slurm-plugin"]])
    assert "--elastic=MIN-MAX" in system.run("sbatch", "--help").stdout


def test_the_plugin_goes_with_the_release_of_slurm_that_it_was_built_for(packages: dict[str, Path]) -> None:
    fields = subprocess.run(
        ["dpkg-deb", "--field", str(packages["flexo-slurm-plugin"]), "Version", "Depends"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    release = fields.partition("+slurm")[2].split()[0]
    assert f"slurm-client (>= {release})" in fields
    assert "slurm-client (<< " in fields


def test_removal_keeps_configuration_and_event_store_purging_does_not_and_an_upgrade_restarts_flexod(
    system: CleanSystem, packages: dict[str, Path], tmp_path: Path
) -> None:
    with_systemd(system)
    config, event_store = system.path("/etc/flexo/flexo.toml"), system.path("/var/lib/flexo/journal.sqlite")
    event_store.write_text("")
    system.dpkg("--purge", "flexo-web")
    assert asked_of_systemd(system) == ["stop flexo-web.service", "--system daemon-reload"]
    assert not system.path("/etc/default/flexo-web").exists()
    system.dpkg("--remove", "flexo")
    assert asked_of_systemd(system) == ["stop flexod.service", "--system daemon-reload"]
    assert not system.path("/usr/lib/flexo").exists()
    assert event_store.exists()
    assert config.exists()
    system.dpkg("--purge", "flexo")
    assert not event_store.parent.exists()
    assert not config.parent.exists()

    said = system.dpkg("--install", packages=[older(packages["flexo"], tmp_path)])
    assert "systemctl enable --now flexod" in said
    own = '[service]\naddress = "ctl1:6836"\n'
    config.write_text(own)
    asked_of_systemd(system)
    system.dpkg("--install", packages=[packages["flexo"]])
    assert config.read_text() == own
    assert asked_of_systemd(system) == ["--system daemon-reload", "try-restart flexod.service"]

    config.write_text("[service]\nadress = 3\n")
    said = system.run("/var/lib/dpkg/info/flexo.postinst", "configure", "0.0.1").stdout
    assert all(fact in said for fact in ("adress", "old one runs"))
    assert asked_of_systemd(system) == ["--system daemon-reload"]


def with_systemd(system: CleanSystem) -> None:
    """Let the packages' scripts think that systemd runs, and write down what they ask of it."""
    system.path("/run/systemd/system").mkdir(parents=True)
    systemctl = system.path("/usr/bin/systemctl")
    systemctl.write_text(SYSTEMCTL)
    systemctl.chmod(0o755)


def asked_of_systemd(system: CleanSystem) -> list[str]:
    """What was asked since the last time."""
    log = system.path("/var/log/systemctl")
    asked = log.read_text().splitlines()
    log.unlink()
    return asked


def older(package: Path, folder: Path) -> Path:
    """A package 0.0.1 with the scripts of this one, and hardly any files."""
    tree, made = folder / "tree", folder / "flexo_0.0.1.deb"
    tree.mkdir()
    subprocess.run(["dpkg-deb", "--control", str(package), str(tree / "DEBIAN")], check=True)
    (tree / "DEBIAN" / "md5sums").unlink()
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text().replace(f"Version: {flexo.__version__}\n", "Version: 0.0.1\n"))
    for name in ("etc/flexo/flexo.toml", "usr/lib/sysusers.d/flexo.conf", "usr/lib/tmpfiles.d/flexo.conf"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("# of an older release\n")
    subprocess.run(["dpkg-deb", "--build", str(tree), str(made)], check=True, stdout=subprocess.DEVNULL)
    return made
