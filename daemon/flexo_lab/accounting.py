"""slurmdbd with a MariaDB of the lab's own, and its users and accounts.

MariaDB listens only on a socket in the lab's directory. The account slurm needs no password: MariaDB reads
the account from the socket (unix_socket).
"""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from flexo_lab.errors import LabFailed
from flexo_lab.layout import Layout
from flexo_lab.ports import is_listening
from flexo_lab.processes import Account, daemons_of, start, start_daemonizing, tail, wait_until
from flexo_lab.record import Record
from flexo_lab.requirements import program
from flexo_lab.slurm_files import SATELLITE_QOS, cluster_name

OPERATOR = "daemon"
"""The account that runs flexod in this profile: AdminLevel=Operator, and no other privilege."""
USERS = {"games": "research", "news": "teaching"}
"""Ordinary users that every Debian has, each with the Slurm account that its jobs are charged to."""
QOS = "urgent"
_STARTS, _PAUSE_S = 10, 1.0
"""Maximum of slurmdbd's starts, and the pause after each.

A new MariaDB 11.8 answers slurmdbd's first query wrongly for some seconds, and slurmdbd ends.
"""
USAGE_FACTOR = 0.25
"""UsageFactor of the satellites' QOS: an hour of a satellite counts as a quarter of an hour."""


def start_database(layout: Layout, environment: Mapping[str, str]) -> None:
    """Create a MariaDB, start it and wait until it listens. Raises LabFailed."""
    slurm, log = Account.named("slurm"), layout.logs / "mariadbd.log"
    for directory in (layout.database, layout.database_scratch):
        directory.mkdir()
        os.chown(directory, slurm.uid, slurm.gid)
    # Every mariadbd that starts removes the temporary tables that it finds: two in /tmp would lose theirs.
    of_its_own = f"--tmpdir={layout.database_scratch}"
    with log.open("ab") as output:
        made = subprocess.run(
            [
                program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={layout.database}",
                of_its_own,
                "--user=slurm",
                "--auth-root-authentication-method=socket",
                "--auth-root-socket-user=slurm",
                "--skip-test-db",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            timeout=120,
        )
    if made.returncode != 0:
        # it follows its errors by so many hints that they are not among the last lines
        errors = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
        raise LabFailed("; ".join(["mariadb-install-db made no database", *errors]) + f"; see {log}")
    process = start(
        [
            program("mariadbd"),
            "--no-defaults",
            f"--datadir={layout.database}",
            of_its_own,
            f"--socket={layout.database_socket}",
            f"--pid-file={layout.database}/mariadbd.pid",
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=0",
            # MariaDB turns this on by default since 11.6.2; slurmdbd then ends when two writes conflict
            "--loose-innodb-snapshot-isolation=OFF",
        ],
        log,
        environment,
        slurm,
    )
    wait_until(layout.database_socket.exists, "mariadbd to listen", 60, log, process)


def start_slurmdbd(layout: Layout, record: Record, environment: Mapping[str, str]) -> None:
    """Start slurmdbd and wait until it listens. Raises LabFailed."""
    slurm, log = Account.named("slurm"), layout.logs / "slurmdbd.log"
    _write_slurmdbd_conf(layout, record, slurm)
    # libmariadb reads the socket of "localhost" from MYSQL_UNIX_PORT
    with_socket = {**environment, "MYSQL_UNIX_PORT": str(layout.database_socket)}
    # slurmdbd looks for slurmdbd.conf beside the file that SLURM_CONF names

    def listens() -> bool:
        return is_listening(record.ports.dbd)

    for _ in range(_STARTS):
        start_daemonizing([program("slurmdbd")], log, with_socket)
        wait_until(lambda: listens() or not _lives(layout), "slurmdbd to listen", 60, log)
        if listens():
            return
        time.sleep(_PAUSE_S)
    raise LabFailed(f"slurmdbd has ended {_STARTS} times{tail(log)}")


def _lives(layout: Layout) -> bool:
    return any(daemon.name == "slurmdbd" for daemon in daemons_of(layout.directory))


def add_users(record: Record, environment: Mapping[str, str]) -> None:
    """Add cluster, accounts, associations, QOS and the Operator. Raises LabFailed with sacctmgr's message."""
    cluster = cluster_name(record.spec)
    _sacctmgr(environment, "add", "cluster", cluster)
    _sacctmgr(environment, "add", "qos", QOS, "Priority=100")
    names = ["normal", QOS]
    if record.spec.by_qos:
        factor, grace = f"UsageFactor={USAGE_FACTOR}", "GraceTime=20"
        _sacctmgr(environment, "add", "qos", SATELLITE_QOS, "PreemptMode=cancel", grace, factor)
        for name in names:
            _sacctmgr(environment, "modify", "qos", name, "set", f"Preempt={SATELLITE_QOS}")
        names.append(SATELLITE_QOS)
    for account in sorted(set(USERS.values())):
        _sacctmgr(environment, "add", "account", account, f"Cluster={cluster}", f"Description={account}")
    for user, account in USERS.items():
        _sacctmgr(environment, "add", "user", user, f"Account={account}", f"QOS={','.join(names)}")
    _sacctmgr(environment, "add", "user", OPERATOR, "Account=research", "AdminLevel=Operator")


def _write_slurmdbd_conf(layout: Layout, record: Record, slurm: Account) -> None:
    text = f"""\
        AuthType=auth/munge
        AuthInfo=socket={layout.munge_socket}
        DbdHost=localhost
        DbdAddr=127.0.0.1
        DbdPort={record.ports.dbd}
        SlurmUser=slurm
        LogFile={layout.logs}/slurmdbd.log
        PidFile={layout.state}/slurmdbd.pid
        DebugLevel=info
        StorageType=accounting_storage/mysql
        StorageHost=localhost
        StorageUser=slurm
        StorageLoc=slurm
    """
    _write_private(layout.slurmdbd_conf, textwrap.dedent(text), slurm)


def _write_private(path: Path, text: str, owner: Account) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    os.chown(path, owner.uid, owner.gid)


def _sacctmgr(environment: Mapping[str, str], *words: str) -> None:
    done = subprocess.run(
        [program("sacctmgr"), "--immediate", "--quiet", *words],
        capture_output=True,
        text=True,
        env=dict(environment),
        timeout=60,
    )
    if done.returncode != 0:
        raise LabFailed(f"sacctmgr {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
