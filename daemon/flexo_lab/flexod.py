"""flexod of a lab: its configuration, its account and its process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from flexo_lab.errors import LabFailed
from flexo_lab.layout import Layout
from flexo_lab.ports import is_listening
from flexo_lab.processes import Account, belonging_to, daemons_of, start, wait_until
from flexo_lab.record import Record
from flexo_lab.slurm_files import (
    BORROWED_PARTITION,
    BORROWED_SATELLITES,
    INFERENCE_PARTITION,
    SATELLITE_PARTITION,
    SATELLITE_QOS,
    SHARED_PARTITION,
)
from flexo_lab.spec import Profile

_START_S = 30
FAST_LOANS = """
        edit_interval_s = 5.0
        interval_s = 2.0
        rest_s = 4.0
        hysteresis_servers = 0.0
        reclaim_s = 60.0
        preempt_within_s = 35.0
        save_within_s = 5.0
        force_within_s = 10.0
        forecast = "none"
    """
"""Keys of [loaning] that make a minute of a real cluster's loans take a few seconds."""


def write_flexo_toml(layout: Layout, record: Record) -> None:
    """Write flexo.toml, and make the directory of flexod's event store."""
    account = Account.named(record.spec.flexod_account)
    layout.flexod.mkdir()
    os.chown(layout.flexod, account.uid, account.gid)
    layout.flexo_toml.write_text(flexo_toml(layout, record))


def start_flexod(
    layout: Layout, record: Record, environment: Mapping[str, str], address: str = ""
) -> subprocess.Popen[bytes]:
    """Start flexod as its account and wait until it listens. Raises LabFailed.

    `address`: this flexod's address if flexo.toml has several in [high_availability] hosts, else "".
    """
    account = Account.named(record.spec.flexod_account)
    port = int(address.rpartition(":")[2]) if address else record.ports.flexod
    log = layout.logs / (f"flexod-{port}.log" if address else "flexod.log")
    options = ["--address", address] if address else []
    return run_flexod(layout, account, f"127.0.0.1:{port}", log, environment, options)


def run_flexod(
    layout: Layout,
    account: Account,
    address: str,
    log: Path,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start flexod with the lab's flexo.toml, and wait until it listens at `address`. Raises LabFailed."""
    command = [str(Path(sys.executable).parent / "flexod"), "--config", str(layout.flexo_toml), *options]
    process = start_own(command, account, log, environment)
    host, _, port = address.rpartition(":")
    wait_until(lambda: is_listening(int(port), host), "flexod to listen", _START_S, log, process)
    return process


def start_own(
    command: Sequence[str], account: Account, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a daemon of flexo's as `account`, which may be unable to read this checkout. Raises LabFailed."""
    if _may_read_the_code(account, environment):
        return start(command, log, environment, account)
    return start([*_reading_all(account), *command], log, environment)


def flexod_processes(layout: Layout) -> list[psutil.Process]:
    """The lab's living flexod processes, without the commands that flexod runs."""
    pids = {daemon.pid for daemon in daemons_of(layout.directory) if daemon.name == "flexod"}
    return [process for process in belonging_to(layout.directory) if process.pid in pids]


def flexo_toml(layout: Layout, record: Record) -> str:
    """Text of flexo.toml. Profile production resizes as often as by default, the others within seconds."""
    text = f"""\
        [service]
        address = "127.0.0.1:{record.ports.flexod}"
        {_authentication(layout, record)}

        [slurm]
        conf = "{layout.slurm_conf}"
        satellite_partition = "{SATELLITE_PARTITION}"
        satellite_qos = "{SATELLITE_QOS if record.spec.by_qos else ""}"

        [event_store]
        path = "{layout.flexod}/journal.sqlite"
    """
    if record.spec.profile is not Profile.PRODUCTION:
        text += f"""
        [controller]
        max_interval_s = {2.0 if record.spec.loans else 5.0}
        min_resize_interval_s = 5.0
    """
    if record.spec.loans:
        text += f"""
        [loaning]
        enabled = true
        inference_partition = "{INFERENCE_PARTITION}"
        partition = "{BORROWED_PARTITION}"
        satellite_partition = "{BORROWED_SATELLITES}"
    """
        text = text.rstrip() + ("\n" if record.spec.profile is Profile.PRODUCTION else FAST_LOANS)
    if record.spec.sharing:
        text += f"""
        [sharing]
        partition = "{SHARED_PARTITION}"
    """
    if record.spec.aggregation:
        text += """
        [aggregation]
        enabled = true
        share = "all"
    """
    return textwrap.dedent(text)


def _authentication(layout: Layout, record: Record) -> str:
    return 'authentication = "slurm"' if record.spec.auth_slurm else f'munge_socket = "{layout.munge_socket}"'


def _may_read_the_code(account: Account, environment: Mapping[str, str]) -> bool:
    """True if `account` can import flexo. Only root can enter a checkout or a Python in /root."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", "import flexo"],
            env=dict(environment),
            capture_output=True,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            timeout=30,
        )
    except PermissionError:
        return False
    return tried.returncode == 0


def _reading_all(account: Account) -> list[str]:
    """Prefix that runs a command as `account` with one privilege of root's: to read every file."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise LabFailed(
            f"'{account.name}', who runs a daemon of a lab, cannot read {Path(__file__).parents[2]}: "
            "move the checkout to where others may read, or install setpriv (util-linux)"
        )
    return [
        setpriv,
        f"--reuid={account.uid}",
        f"--regid={account.gid}",
        "--init-groups",
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
