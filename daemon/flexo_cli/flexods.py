"""The status of each of several flexods, for `flexo status`: every flexod is asked directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexo_cli.connection import Address, Daemon, Refusal, Unreachable
from flexo_cli.output import Json, ago
from flexo_protos.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class OneOfThem:
    """The status of one flexod, or in `silent` a sentence on why there is none."""

    address: str
    silent: str = ""
    version: str = ""
    trouble: str = ""
    about: admin_pb2.Availability | None = None

    @property
    def active(self) -> bool:
        """True if this flexod is the active one."""
        return self.about is not None and self.about.active

    def sentence(self) -> str:
        """The status in one sentence: ``ctl1:6836 is active (epoch 7, for 3 h)``."""
        if self.silent:
            return self.silent
        if self.about is None:
            return f"{self.address} is alone: its configuration knows no other"
        trouble = f", but {self.about.trouble}" if self.about.trouble else ""
        if not self.active:
            return f"{self.address} stands by{trouble}"
        return f"{self.address} is active (epoch {self.about.epoch}, for {ago(self.about.since_at)}){trouble}"


def each_of(hosts: Sequence[str]) -> tuple[OneOfThem, ...]:
    """Ask the flexods at `hosts` for their status, one after the other."""
    return tuple(_asked(host) for host in hosts)


def _asked(host: str) -> OneOfThem:
    try:
        reply = Daemon(Address(host, "[high_availability] hosts")).own_status()
    except Unreachable as error:
        return OneOfThem(host, silent=str(error))
    except Refusal as error:
        return OneOfThem(host, silent=f"flexod at {host} refuses to say: {error}")
    about = reply.availability if reply.HasField("availability") else None
    return OneOfThem(host, "", reply.flexod_version, reply.trouble, about)


def as_json(about: admin_pb2.Availability, beside: Sequence[OneOfThem]) -> Json:
    """The part of `flexo status --json` about several flexods. `about`: the active flexod's answer."""
    found: list[Json] = [
        {
            "address": each.address,
            "active": each.active,
            "answers": not each.silent,
            "trouble": each.silent or (each.about.trouble if each.about else ""),
        }
        for each in beside
    ]
    return {"active": about.holder, "epoch": about.epoch, "since_at": about.since_at, "flexods": found}
