"""Checks flexod: its configuration, its address as nodes see it, whether it answers, its event store's
folder."""

from __future__ import annotations

import ipaddress
import os
import pwd
import shutil
import socket
import stat
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexo.config import ConfigError, Settings, load
from flexo.doctor.finding import Finding, not_checked, ok, problem, warning

_LEAST_FREE_MIB: Final = 100
_NO_SHELLS: Final = ("nologin", "false")


@dataclass(frozen=True, slots=True)
class PoolAnswer:
    """flexod's pool Aggregators."""

    aggregators: tuple[AnsweredAggregator, ...] = ()
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class AnsweredAggregator:
    """A pool Aggregator that is attached to flexod."""

    name: str
    version: str
    memory_limit: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class FlexodAnswer:
    """flexod's status, or why it does not answer."""

    silent: str = ""
    """The reason why there is no answer; "" if there is one."""
    version: str = ""
    trouble: str = ""
    dry_run: bool = False
    stands_by: bool = False
    """This flexod stands by, and another one acts."""
    pool: PoolAnswer | None = None
    """The pool; None: flexod has none, or does not answer."""


def read_settings(path: Path) -> tuple[Settings, tuple[str, ...]]:
    """The configuration, and its errors; the default configuration if there are errors."""
    try:
        return load(path), ()
    except ConfigError as error:
        return Settings(), error.problems


def check_config(path: Path, problems: Iterable[str], old_names: Iterable[str] = ()) -> list[Finding]:
    """Check the configuration file. `problems`: its errors. `old_names`: its renamed settings. A sentence
    each."""
    found = [
        problem(
            "flexod.config",
            each,
            "`flexod --check-config` says when it is in order; flexo.toml.example has every key.",
        )
        for each in problems
    ]
    found += [warning("flexod.config", each, "Write the new name.") for each in old_names]
    return found or [ok("flexod.config", f"{path} is in order")]


def check_address(address: str, node_addresses: Set[str]) -> list[Finding]:
    """Check whether nodes can mean this host by `address`. `node_addresses`: NodeAddr of all nodes."""
    check, host = "flexod.address", address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    found = _resolved(host)
    if not found:
        return [
            problem(
                check,
                f"[service] address = {address}: this host knows no {host}",
                "flexo.toml: [service] address with the name by which compute nodes know flexod's host.",
            )
        ]
    away = ""
    if _all_loopback(found):
        away = next((node for node in sorted(node_addresses) if not _all_loopback(_resolved(node))), "")
    if away:
        return [
            problem(
                check,
                f"[service] address = {address} is this host alone: nodes such as {away} cannot dial it",
                f'flexo.toml: [service] address = "{socket.gethostname()}:6836", or by what name nodes know'
                " flexod's host; restart flexod.",
            )
        ]
    return [
        ok(check, f"[service] address = {address}"),
        not_checked(
            "flexod.network",
            "whether compute nodes reach that address cannot be seen from here",
            f"`srun -w NODE bash -c ': </dev/tcp/{host}/{address.rpartition(':')[2]}'`, on each network.",
        ),
    ]


def check_answer(answer: FlexodAnswer, version: str) -> list[Finding]:
    """Check whether flexod answers and is well. `version`: the version of this command."""
    if answer.silent:
        return [
            problem(
                "flexod.answers", answer.silent, "`systemctl enable --now flexod`; `journalctl -u flexod`"
            )
        ]
    dry = " in a dry run: it changes nothing" if answer.dry_run else ""
    dry = " and stands by" if answer.stands_by else dry
    findings = [ok("flexod.answers", f"flexod {answer.version} answers{dry}")]
    if answer.version != version:
        said = f"flexod is {answer.version} and this command {version}"
        findings.append(
            warning("flexod.version", said, "`systemctl restart flexod`, or install the same here.")
        )
    if answer.trouble:
        said = f"flexod says: {answer.trouble}"
        findings.append(
            problem("flexod.trouble", said, "`flexo status` and `journalctl -u flexod` say more.")
        )
    return findings


def check_web_steering(names: Iterable[str]) -> list[Finding]:
    """Check the accounts that may scale jobs for flexo-web's viewers. No names, no findings: the pages only
    read."""
    return [_web_account(name) for name in names]


def _web_account(name: str) -> Finding:
    check, said = "flexod.web_steering", f"[service] web_steering: {name}"
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        return problem(
            check,
            f"{said} is no account of this host, so flexod believes nobody of that name",
            "flexo.toml: [service] web_steering with the account that flexo-web runs as.",
        )
    if account.pw_uid == 0:
        return problem(
            check,
            f"{said} is root's account, which flexod does not believe",
            "Run flexo-web as an account of its own, and name that one.",
        )
    if Path(account.pw_shell).name not in _NO_SHELLS:
        return warning(
            check,
            f"{said} has the shell {account.pw_shell}: whoever logs in there can scale every user's jobs",
            f"Name an account that is flexo-web's alone, or `usermod -s /usr/sbin/nologin {name}`.",
        )
    return ok(check, f"{said} may scale jobs for those who look at the web pages")


def check_event_store(event_store: Path, account: str) -> list[Finding]:
    """Check whether flexod's account may write its event store. `account`: its name; "": not known."""
    check, folder = "flexod.journal", event_store.parent
    if not folder.is_dir():
        return [
            problem(
                check,
                f"there is no folder {folder} for the event store",
                f"`install -d -o flexo -g flexo -m 750 {folder}`",
            )
        ]
    barred = [path for path in (folder, event_store) if path.exists() and not _may_write(path, account)]
    if barred:
        fix = f"`chown {account} {barred[0]}`"
        return [problem(check, f"flexod's account {account} may not write {barred[0]}", fix)]
    free = shutil.disk_usage(folder).free >> 20
    if free < _LEAST_FREE_MIB:
        said = f"{folder} has {free} MiB left for the event store"
        return [warning(check, said, "Make room, or name another place in flexo.toml: [event_store] path.")]
    return [ok(check, f"{folder} is {account}'s, and {free} MiB are free there")]


def account_of(event_store: Path) -> str:
    """The owner of the event store's folder, which is flexod's account; "" if there is no folder, or its
    owner has no name."""
    try:
        return pwd.getpwuid(event_store.parent.stat().st_uid).pw_name
    except (OSError, KeyError):
        return ""


def _may_write(path: Path, account: str) -> bool:
    """Whether `account` may write `path`, by owner, group and others, which decide where there are no access
    lists."""
    try:
        user = pwd.getpwnam(account)
    except KeyError:
        return False
    if user.pw_uid == 0:
        return True
    status = path.stat()
    if status.st_uid == user.pw_uid:
        return bool(status.st_mode & stat.S_IWUSR)
    if status.st_gid in os.getgrouplist(account, user.pw_gid):
        return bool(status.st_mode & stat.S_IWGRP)
    return bool(status.st_mode & stat.S_IWOTH)


def _resolved(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None))
    except OSError:
        return frozenset()


def _all_loopback(addresses: frozenset[str]) -> bool:
    return bool(addresses) and all(ipaddress.ip_address(each).is_loopback for each in addresses)
