#!/usr/bin/python3 -IS
"""flexo-partition set PARTITION NODE,NODE,...: let a borrowed partition have these nodes, and nothing else.

Slurm lets SlurmUser and root alone edit partitions. A flexod that runs as neither calls this program through
sudo, as SlurmUser. The program trusts flexod no more than any other caller. A file of root's says which
partitions may be edited, and which inference partition their nodes may come from. Slurm must list each node
in the inference partition, or in one of the partitions that may be edited. Nothing of the caller's
environment reaches scontrol, and there is no shell. The program is self-contained: it needs Python 3.8 or
later and nothing of flexo.

Exit codes: 0 done, 1 Slurm said no or nothing, 2 the request or the configuration is not allowed.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, fields, replace

CONFIG = "/etc/flexo/partition.conf"
PARTITION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Pattern of one node's name: no list in brackets, no "+i1" or "-i1", no character that ends a word."""
MOST_NODES = 20000
TIMEOUT_S = 15
"""Limit of the whole run. It is below flexod's [slurm] timeout_s: flexod cannot end a program under sudo."""
STARTED = time.monotonic()
USAGE = 'usage: flexo-partition set PARTITION NODE[,NODE...]     (no nodes: "")'


@dataclass(frozen=True)
class Settings:
    """Settings from CONFIG, with a default for each key that CONFIG does not set."""

    borrowed: tuple[str, ...] = ("borrowed",)
    """The partitions that may be edited, with a comma between."""
    inference: str = "infer"
    """The partition whose nodes may be put into them."""
    scontrol: str = "/usr/bin/scontrol"
    """Slurm's command."""
    slurm_conf: str = ""
    """The slurm.conf to go by; without one, what scontrol finds by itself."""


class Refused(Exception):
    """The request or the text of CONFIG is not allowed; the message says what is allowed."""


class SlurmSaidNo(Exception):
    """scontrol failed, timed out or could not be started; the message says which."""


def main(arguments: list[str]) -> int:
    """Entry point. Returns the exit code."""
    try:
        settings = read_settings(CONFIG)
        partition, nodes = wanted(arguments, settings)
        check_nodes(nodes, settings)
        scontrol(settings, "update", f"PartitionName={partition}", f"Nodes={','.join(nodes)}")
    except Refused as refusal:
        return complain(str(refusal), 2)
    except SlurmSaidNo as failure:
        return complain(str(failure), 1)
    return 0


def complain(text: str, code: int) -> int:
    """Print `text` on the error output, with `?` for unprintable characters. Returns `code`."""
    sys.stderr.write("flexo-partition: " + re.sub(r"[^ -~]", "?", text) + "\n")
    return code


def wanted(arguments: list[str], settings: Settings) -> tuple[str, list[str]]:
    """The partition and the nodes that the command line names, sorted, each once. Raises Refused."""
    if len(arguments) != 3 or arguments[0] != "set":
        raise Refused(USAGE)
    partition, listed = arguments[1:]
    if partition not in settings.borrowed:
        allowed = ", ".join(settings.borrowed)
        raise Refused(f"the partition '{partition[:80]}' may not be edited; allowed: {allowed}")
    names = listed.split(",") if listed else []
    if len(names) > MOST_NODES:
        raise Refused(f"{len(names)} nodes are named; at most {MOST_NODES} are allowed")
    for name in names:
        if NODE_NAME.fullmatch(name) is None or name.upper() == "ALL":
            raise Refused(f"'{name[:80]}' is not the name of one node, such as i1")
    return partition, sorted(set(names))


def check_nodes(nodes: list[str], settings: Settings) -> None:
    """Check that each node is in the inference partition or borrowed. Raises Refused, SlurmSaidNo."""
    strangers = set(nodes)
    for partition in (settings.inference, *settings.borrowed):
        if not strangers:
            return
        strangers -= members(partition, settings)
    if strangers:
        raise Refused(f"'{min(strangers)}' is not a node of the partition '{settings.inference}'")


def members(partition: str, settings: Settings) -> set[str]:
    """The nodes that Slurm lists in `partition`. Raises SlurmSaidNo."""
    shown = scontrol(settings, "--all", "--oneliner", "show", "partition", partition)
    match = re.search(r"(?:^|\s)Nodes=(\S+)", shown)
    if match is None or match.group(1) == "(null)":
        return set()
    return set(scontrol(settings, "show", "hostnames", match.group(1)).split())


def scontrol(settings: Settings, *arguments: str) -> str:
    """Run scontrol in an environment that is made here. Returns its output. Raises SlurmSaidNo."""
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    if settings.slurm_conf:
        environment["SLURM_CONF"] = settings.slurm_conf
    try:
        done = subprocess.run(
            [settings.scontrol, *arguments],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.0, STARTED + TIMEOUT_S - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmSaidNo(f"scontrol {arguments[0]}: connection timed out after {TIMEOUT_S} s") from None
    except OSError as error:
        raise SlurmSaidNo(f"{settings.scontrol}: {error.strerror}") from None
    if done.returncode != 0:
        said = " ".join((done.stderr + b" " + done.stdout).decode("utf-8", "replace").split())
        raise SlurmSaidNo(f"scontrol {arguments[0]}: {said or f'exit status {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")


def read_settings(path: str) -> Settings:
    """Read the settings from `path`, which root alone may write. Without it, the defaults. Raises Refused."""
    try:
        # whoever may write the folder could replace `path` by a link to another file of root's
        folder = os.path.dirname(path)  # noqa: PTH120 (pathlib would be imported for this alone)
        check_root_alone_writes(os.stat(folder), folder)  # noqa: PTH116
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            check_root_alone_writes(os.fstat(file.fileno()), path)
            text = file.read()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    settings = Settings()
    for number, line in enumerate(text.splitlines(), start=1):
        if stripped := line.partition("#")[0].strip():
            settings = changed(settings, stripped, f"{path}:{number}")
    if settings.inference in settings.borrowed:
        raise Refused(f"{path}: '{settings.inference}' is borrowed and inference; they must differ")
    return settings


def check_root_alone_writes(found: os.stat_result, path: str) -> None:
    """Raise Refused unless `path` belongs to root and root alone may write it."""
    if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o022:
        raise Refused(f"{path} must belong to root and be writable by root alone")


def changed(settings: Settings, line: str, where: str) -> Settings:
    """`settings` with the change that `line`, `key = value`, makes. Raises Refused."""
    key, equals, value = (part.strip() for part in line.partition("="))
    keys = [field.name for field in fields(Settings)]
    if not equals or key not in keys:
        raise Refused(f"{where}: '{line[:80]}': allowed is KEY = VALUE; the keys are {', '.join(keys)}")
    if key in ("scontrol", "slurm_conf"):
        if not value.startswith("/"):
            raise Refused(f"{where}: {key} = {value[:80]}: that is not an absolute path")
        return replace(settings, scontrol=value) if key == "scontrol" else replace(settings, slurm_conf=value)
    names = tuple(name.strip() for name in value.split(",")) if key == "borrowed" else (value,)
    for name in names:
        if PARTITION_NAME.fullmatch(name) is None:
            raise Refused(f"{where}: {key} = {value[:80]}: '{name[:80]}' is not the name of a partition")
    return replace(settings, borrowed=names) if key == "borrowed" else replace(settings, inference=value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
