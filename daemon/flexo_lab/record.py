"""What a lab writes down about itself, so that another process can find it: lab.json.

Taking a lab down needs none of it (teardown.py): it may be lost.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flexo_lab.spec import LabSpec, Profile


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports of a lab. `dbd` is 0 where there is no slurmdbd."""

    slurmctld: int
    flexod: int
    slurmds: tuple[int, ...]
    """In the order of LabSpec.node_names."""
    dbd: int = 0

    def all(self) -> frozenset[int]:
        """Every port of the lab."""
        return frozenset((self.slurmctld, self.flexod, *self.slurmds, *((self.dbd,) if self.dbd else ())))


@dataclass(frozen=True, slots=True)
class Record:
    """`up` is false from the moment the directory exists until every part answers."""

    spec: LabSpec
    ports: Ports
    up: bool

    def write(self, path: Path) -> None:
        """Replace `path` in one step: readers see the old record or the new one."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self), indent=2) + "\n")
        fresh.replace(path)

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """None if there is no record, or none that can be read."""
        try:
            data = json.loads(path.read_text())
            spec = LabSpec(**{**data["spec"], "profile": Profile(data["spec"]["profile"])})
            ports = Ports(**{**data["ports"], "slurmds": tuple(data["ports"]["slurmds"])})
            return cls(spec, ports, bool(data["up"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
