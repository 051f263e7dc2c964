"""Checks MUNGE, or Slurm's sack, on this host: a credential is made and read back as flexod does it."""

from __future__ import annotations

import stat
from pathlib import Path

from flexo.doctor.finding import Finding, not_checked, ok, problem
from flexo_protos.credentials import Authenticator, NotAuthentic

_METHOD = "doctor"


def check_munge(authenticator: Authenticator, socket: Path | None) -> list[Finding]:
    """Check the socket, if one is named, and the round trip of a credential."""
    return [_socket(socket), _round_trip(authenticator)]


def check_sack(authenticator: Authenticator) -> list[Finding]:
    """Check the round trip of a credential at Slurm's sack, where [service] authentication is slurm."""
    check = "sack.round_trip"
    try:
        caller = authenticator.verify(authenticator.credential(_METHOD), _METHOD)
    except NotAuthentic as error:
        fix = "Start slurmd here, or sackd where no slurmd runs, with the cluster's slurm.key (auth/slurm)."
        return [problem(check, str(error), fix)]
    return [ok(check, f"a credential was made and read back (uid {caller.uid})")]


def _socket(socket: Path | None) -> Finding:
    check = "munge.socket"
    if socket is None:
        return ok(check, "the socket is libmunge's own")
    key = "[service] munge_socket in flexo.toml, or $FLEXO_MUNGE_SOCKET"
    try:
        kind = socket.stat().st_mode
    except OSError as error:
        return problem(
            check,
            f"{socket}: {error.strerror} ({key})",
            "`systemctl start munge`; Slurm's own is AuthInfo=socket=... in slurm.conf.",
        )
    if stat.S_ISSOCK(kind):
        return ok(check, f"the socket is {socket}")
    return problem(check, f"{socket} is no socket ({key})", "Name munged's socket there, or nothing.")


def _round_trip(authenticator: Authenticator) -> Finding:
    check = "munge.round_trip"
    try:
        caller = authenticator.verify(authenticator.credential(_METHOD), _METHOD)
    except NotAuthentic as error:
        return problem(
            check,
            str(error),
            "`systemctl start munge` on this host, and `munge -n | unmunge` to see for yourself.",
        )
    return ok(check, f"a credential was made and read back (uid {caller.uid})")


def other_hosts() -> Finding:
    """The finding on checks that one host cannot do."""
    return not_checked(
        "munge.hosts",
        "whether all hosts have the same key cannot be seen from here",
        "`munge -n | ssh NODE unmunge`, once for each kind of host.",
    )
