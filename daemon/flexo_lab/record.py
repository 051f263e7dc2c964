"""lab.json: the record of a lab, from which other processes load the lab.

The record may be lost: taking a lab down does not need it (teardown.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flexo_lab.spec import LabSpec, Profile


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports of a lab. `dbd` is 0 if there is no slurmdbd, `web` if there is no flexo-web."""

    slurmctld: int
    flexod: int
    slurmds: tuple[int, ...]
    """Ports of the slurmds, in the order of LabSpec.node_names."""
    dbd: int = 0
    web: int = 0

    def all(self) -> frozenset[int]:
        """Every port of the lab."""
        return frozenset(
            port for port in (self.slurmctld, self.flexod, *self.slurmds, self.dbd, self.web) if port
        )


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a lab. `up` is false until every part of the lab answers."""

    spec: LabSpec
    ports: Ports
    up: bool

    def write(self, path: Path) -> None:
        """Replace `path` in one step: readers see the old record or the new one."""
        replace_record(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """Read the record at `path`; None if there is none, or it cannot be read."""
        try:
            data = json.loads(path.read_text())
            spec = LabSpec(**{**data["spec"], "profile": Profile(data["spec"]["profile"])})
            ports = Ports(**{**data["ports"], "slurmds": tuple(data["ports"]["slurmds"])})
            return cls(spec, ports, bool(data["up"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def replace_record(path: Path, data: Mapping[str, object]) -> None:
    """Replace the record at `path`, of a lab of any kind, in one step."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.replace(path)


def says_up(path: Path) -> bool:
    """Whether the record at `path`, of a lab of any kind, says that the lab is up."""
    try:
        return bool(json.loads(path.read_text())["up"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
