"""The place of a job's leader lease as text, in a site's configuration and from `flexo run` to its agents.

    flexod                                      flexod, wherever the job finds it
    run                                         each `flexo run` keeps its own
    flexod://ctl1:6836#3f9c                     that flexod, and which run of the job it is for
    flexod://ctl1:6836,ctl2:6836#3f9c           whichever of them is active
    run://10.1.0.7:41234#3f9c                   the small server inside `flexo run`
    etcd://e1:2379,e2:2379/flexo#3f9c           etcd: its members, and the prefix of flexo's keys
    etcds://e1:2379/flexo                       the same over TLS

flexod, which checks the configuration, and the job, which reads it, share this module.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

GRAMMAR = (
    '"flexod", "flexod://HOST:PORT[,HOST:PORT...]", "run" (inside each job itself)'
    ' or "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]" (etcds:// for TLS)'
)
DEFAULT_PREFIX = "flexo"
_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):\d{1,5}"
_PLACE = re.compile(
    rf"(?P<kind>flexod|etcds?|run)(?:://(?P<hosts>{_HOST}(?:,{_HOST})*)(?:/(?P<prefix>[A-Za-z0-9_./-]+))?)?"
    r"(?:#(?P<run>[A-Za-z0-9_-]{1,64}))?"
)


class Kind(enum.Enum):
    """The kind of server that keeps the lease."""

    FLEXOD = "flexod"
    RUN = "run"
    ETCD = "etcd"
    ETCD_OVER_TLS = "etcds"


_ETCD = (Kind.ETCD, Kind.ETCD_OVER_TLS)


@dataclass(frozen=True, slots=True)
class LeasePlace:
    """See the module. `hosts` ("host:port") is empty if the address is found elsewhere."""

    kind: Kind
    hosts: tuple[str, ...] = ()
    prefix: str = DEFAULT_PREFIX
    run: str = ""

    @property
    def etcd(self) -> bool:
        """Whether etcd keeps the lease."""
        return self.kind in _ETCD

    def __str__(self) -> str:
        text = self.kind.value
        if self.hosts:
            text += "://" + ",".join(self.hosts)
        if self.etcd:
            text += "/" + self.prefix
        return f"{text}#{self.run}" if self.run else text


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """The credentials for a site's etcd, from flexo.toml; "" for one that etcd does not require."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""


def parse(text: str) -> LeasePlace:
    """The place that `text` names. Raises ValueError; its message says what is allowed."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' names no place for leases: it takes {GRAMMAR}")
    kind = Kind(match["kind"])
    hosts = tuple(match["hosts"].split(",")) if match["hosts"] else ()
    if (
        (len(hosts) > 1 and kind is Kind.RUN)
        or (not hosts and kind in _ETCD)
        or (match["prefix"] and kind not in _ETCD)
        or any(not 1 <= int(host.rpartition(":")[2]) <= 65535 for host in hosts)
    ):
        raise ValueError(f"'{text}' names no place for leases: it takes {GRAMMAR}")
    return LeasePlace(kind, hosts, (match["prefix"] or DEFAULT_PREFIX).strip("/"), match["run"] or "")
