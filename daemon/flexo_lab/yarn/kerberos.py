"""Kerberos of a YARN lab: a KDC with a realm of its own, keytabs, and what Hadoop's files say of them.

Everything is in the lab's folder. NodeManagers share one principal: the ResourceManager compares it with what
the caller proves, and would look for a host's own by the caller's address, which is 127.0.0.1 for all.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import textwrap
from collections.abc import Sequence
from typing import Final

from flexo_lab import processes
from flexo_lab.errors import LabFailed
from flexo_lab.ports import is_listening
from flexo_lab.processes import Account
from flexo_lab.requirements import SYSTEM_PATH
from flexo_lab.yarn.layout import YarnLayout
from flexo_yarn.kerberos import INSTALL, Kerberos, Tickets

KDC_PORT: Final = 88
FLEXOD: Final = "flexo"
"""The user who is flexod."""
USERS: Final = ("ada", "ben")
"""Users whom this machine need not know."""
_RM, _NM, _HTTP = "rm", "nm", "http"
_START_S = 30.0
_PROGRAMS: Final = {
    "krb5kdc": "krb5-kdc",
    "kdb5_util": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "kinit": "krb5-user",
}
"""What a KDC needs, and Debian's packages of it."""


def why_unavailable() -> str | None:
    """One sentence saying what a lab with Kerberos lacks, or None."""
    missing = {package for name, package in _PROGRAMS.items() if not shutil.which(name, path=SYSTEM_PATH)}
    if missing:
        return f"Kerberos needs a KDC (on Debian: apt-get install {' '.join(sorted(missing))})"
    if importlib.util.find_spec("gssapi") is None:
        return f"Kerberos needs the Python package gssapi: {INSTALL}"
    return None


def environment(layout: YarnLayout) -> dict[str, str]:
    """What lets Kerberos' programs and libraries use the lab's KDC, and its own tickets."""
    return {"KRB5_CONFIG": str(layout.krb5_conf), "KRB5CCNAME": f"FILE:{layout.tickets}"}


def proof_of(layout: YarnLayout, user: str) -> Kerberos:
    """How this process calls the ResourceManager as `user`; it reads $KRB5_CONFIG from then on.

    The library of Kerberos knows no other way to say where the KDC is.
    """
    os.environ["KRB5_CONFIG"] = str(layout.krb5_conf)
    return Kerberos(Tickets(layout.keytab(user), layout.principal(user)), _principal(layout, _RM, "_HOST"))


def tickets_as_text(layout: YarnLayout) -> str:
    """Whose tickets `flexo lab shell` has, and how to get those of others."""
    own = layout.principal(Account.own().name)
    return f"{own}; in the lab's shell: kinit -kt {layout.keytab(USERS[0])} {USERS[0]}"


def start(layout: YarnLayout, nodes: int) -> None:
    """Make the realm and the keytabs, start the KDC, get tickets for this account. Raises LabFailed."""
    folder = layout.kerberos
    folder.mkdir()
    layout.krb5_conf.write_text(_krb5_conf(layout))
    (folder / "kdc.conf").write_text(_kdc_conf(layout))
    password = secrets.token_hex(16)
    _run(layout, ["kdb5_util", "create", "-s", "-r", layout.realm, "-P", password])
    _run(layout, ["kadmin.local", "-r", layout.realm], "\n".join(_to_add(layout, nodes)))
    (folder / "http.secret").write_text(secrets.token_hex(32))
    command = ["krb5kdc", "-n", "-r", layout.realm, "-P", str(folder / "krb5kdc.pid")]
    log = layout.directory / "log" / "krb5kdc.out"
    kdc = processes.start(command, log, _environment(layout))
    processes.wait_until(lambda: is_listening(KDC_PORT, layout.kdc), "krb5kdc to listen", _START_S, log, kdc)
    own = Account.own().name
    _run(layout, ["kinit", "-k", "-t", str(layout.keytab(own)), layout.principal(own)])


def core_site(layout: YarnLayout) -> dict[str, str]:
    """Settings of core-site.xml."""
    http = f"{_HTTP.upper()}/_HOST@{layout.realm}"
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "hadoop.security.auth_to_local": "DEFAULT",
        "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
        "hadoop.http.authentication.type": "kerberos",
        "hadoop.http.authentication.simple.anonymous.allowed": "false",
        "hadoop.http.authentication.signature.secret.file": str(layout.kerberos / "http.secret"),
        "hadoop.http.authentication.kerberos.principal": http,
        "hadoop.http.authentication.kerberos.keytab": str(layout.keytab(_HTTP)),
    }


def yarn_site(layout: YarnLayout) -> dict[str, str]:
    """Settings of yarn-site.xml."""
    http = f"{_HTTP.upper()}/_HOST@{layout.realm}"
    # With Kerberos, Hadoop opens logs by its native library, which is not among the jars. NodeManagers end.
    settings = {"yarn.log-aggregation-enable": "false"}
    for part, name, principal in (
        ("resourcemanager", _RM, _principal(layout, _RM, "_HOST")),
        ("nodemanager", _NM, _principal(layout, _NM, "lab")),
    ):
        settings |= {
            f"yarn.{part}.principal": principal,
            f"yarn.{part}.keytab": str(layout.keytab(name)),
            f"yarn.{part}.webapp.spnego-principal": http,
            f"yarn.{part}.webapp.spnego-keytab-file": str(layout.keytab(_HTTP)),
        }
    return settings


def _principal(layout: YarnLayout, name: str, host: str) -> str:
    return f"{name}/{host}@{layout.realm}"


def _to_add(layout: YarnLayout, nodes: int) -> list[str]:
    """What kadmin.local is told: all principals, and a keytab for each kind."""
    manager, _ = layout.resource_managers
    hosts = [manager, *(layout.node(number) for number in range(1, nodes + 1))]
    principals = {
        _RM: [_principal(layout, _RM, manager)],
        _NM: [_principal(layout, _NM, "lab")],
        _HTTP: [_principal(layout, _HTTP.upper(), host) for host in hosts],
        **{name: [layout.principal(name)] for name in (Account.own().name, FLEXOD, *USERS)},
    }
    added = [f"addprinc -randkey {each}" for found in principals.values() for each in found]
    return added + [f"ktadd -k {layout.keytab(name)} {' '.join(found)}" for name, found in principals.items()]


def _krb5_conf(layout: YarnLayout) -> str:
    return textwrap.dedent(f"""\
        [libdefaults]
            default_realm = {layout.realm}
            dns_lookup_kdc = false
            dns_lookup_realm = false
            dns_canonicalize_hostname = false
            rdns = false
            udp_preference_limit = 1

        [realms]
            {layout.realm} = {{
                kdc = {layout.kdc}:{KDC_PORT}
            }}
    """)


def _kdc_conf(layout: YarnLayout) -> str:
    """One kind of keys: everything here speaks it, and the database is made sooner."""
    return textwrap.dedent(f"""\
        [kdcdefaults]
            kdc_listen = {layout.kdc}:{KDC_PORT}
            kdc_tcp_listen = {layout.kdc}:{KDC_PORT}

        [realms]
            {layout.realm} = {{
                database_name = {layout.kerberos}/principal
                key_stash_file = {layout.kerberos}/stash
                acl_file = {layout.kerberos}/kadm5.acl
                supported_enctypes = aes256-cts:normal
                max_life = 24h
            }}

        [logging]
            kdc = FILE:{layout.directory}/log/krb5kdc.log
    """)


def _environment(layout: YarnLayout) -> dict[str, str]:
    return {
        "PATH": SYSTEM_PATH,
        "LANG": "C.UTF-8",
        **environment(layout),
        "KRB5_KDC_PROFILE": str(layout.kerberos / "kdc.conf"),
    }


def _run(layout: YarnLayout, command: Sequence[str], said: str = "") -> None:
    done = subprocess.run(
        command,
        input=said,
        capture_output=True,
        text=True,
        timeout=_START_S,
        env=_environment(layout),
        check=False,
    )
    if done.returncode != 0:
        raise LabFailed(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()}")
