"""What every policy is: a name, and a pure function from a snapshot to a plan."""

from __future__ import annotations

from typing import Protocol

from flexo.model import Plan, Snapshot


class Policy(Protocol):
    """Settings, frozen, and what to do with them. Equal snapshots give equal plans."""

    @property
    def name(self) -> str:
        """As `--policy` and `[controller] policy` take it."""
        ...

    @property
    def oracle(self) -> bool:
        """Whether it goes by what no scheduler can know; every output then says so."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """What to change now, and why."""
        ...
