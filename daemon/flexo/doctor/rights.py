"""Checks the rights of flexod's account in Slurm: to extend and cancel others' jobs, and to edit partitions
if it lends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexo.doctor.finding import Finding, not_checked, ok, problem
from flexo.doctor.slurm_says import SlurmConfig
from flexo.loaning.settings import LoaningSettings

_ENOUGH: Final = ("Operator", "Administrator")


@dataclass(frozen=True, slots=True)
class Account:
    """flexod's account, as far as the doctor knows it."""

    name: str
    """The name; "": not known."""
    admin_level: str = ""
    """The account's admin level in slurmdbd: None, Operator, Administrator; "" where slurmdbd does not know
    it."""
    unknown: str = ""
    """The reason why `admin_level` could not be read; "" if it could."""


def check_rights(config: SlurmConfig, account: Account, loaning: LoaningSettings) -> list[Finding]:
    """Check the right to extend time limits, and the right to lend servers."""
    if not account.name:
        why = "nobody knows which account flexod runs as: its event store's folder is not there"
        return [not_checked("rights.operator", why)]
    return [_operator(config, account), *_lending(config, account, loaning)]


def _operator(config: SlurmConfig, account: Account) -> Finding:
    check, name = "rights.operator", account.name
    if _is_master(config, name):
        return ok(check, f"flexod's account {name} is Slurm's own (SlurmUser) or root")
    if "slurmdbd" not in config.accounting_type:
        return problem(
            check,
            f"flexod's account {name} may not extend satellites: without slurmdbd only SlurmUser"
            f" ({config.slurm_user}) and root may",
            f"Run flexod as {config.slurm_user} (`systemctl edit flexod`: [Service], User=..., Group=...), or"
            " set slurmdbd up and make the account Operator.",
        )
    if account.unknown:
        return not_checked(
            check, f"slurmdbd was not asked: {account.unknown}", f"`sacctmgr show user {name}`"
        )
    if account.admin_level in _ENOUGH:
        return ok(check, f"flexod's account {name} is {account.admin_level}")
    verb = "modify user" if account.admin_level else "add user"
    how = (
        f"{name} set AdminLevel=Operator"
        if account.admin_level
        else f"{name} Account=... AdminLevel=Operator"
    )
    return problem(
        check,
        f"flexod's account {name} is not Operator: it may neither extend satellites nor see hidden jobs",
        f"`sacctmgr {verb} {how}`",
    )


def _lending(config: SlurmConfig, account: Account, loaning: LoaningSettings) -> list[Finding]:
    if not loaning.enabled or loaning.static:
        return []
    check, name = "rights.lending", account.name
    if not loaning.edit_command:
        if _is_master(config, name):
            return [ok(check, f"{name} may edit the partition {loaning.partition} itself")]
        return [
            problem(
                check,
                f"{name} may not edit the partition {loaning.partition}: only SlurmUser and root may",
                'flexo.toml, [loaning]: edit_command = ["sudo", "-n", "-u", "slurm",'
                ' "/usr/sbin/flexo-partition"], and sudoers.example of flexo-slurm-plugin.',
            )
        ]
    missing = [word for word in loaning.edit_command if word.startswith("/") and not Path(word).is_file()]
    if missing:
        return [
            problem(
                check,
                f"[loaning] edit_command: there is no {missing[0]}",
                "Install flexo-slurm-plugin on this host, or `make -C slurm_plugin install-partition`.",
            )
        ]
    command = " ".join(loaning.edit_command)
    return [
        not_checked(
            check,
            "whether edit_command works cannot be seen without editing a partition",
            f"`runuser -u {name} -- {command} set x y` has to answer that x may not be edited.",
        )
    ]


def _is_master(config: SlurmConfig, name: str) -> bool:
    return name in ("root", config.slurm_user)


def parse_admin_level(text: str) -> str:
    """The admin level in `sacctmgr --noheader --parsable2 show user NAME format=user,adminlevel`; "" if there
    is no such user."""
    first = next(iter(text.splitlines()), "")
    return first.partition("|")[2].strip()
