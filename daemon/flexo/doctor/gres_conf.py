"""Parses gres.conf, as far as the doctor compares it with what Slurm reports of nodes. Pure functions.

slurmctld does not report device files, and each node may have a gres.conf of its own. So the doctor reads the
file beside slurm.conf on this host, where it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flexo.clusters.slurm.hostlist import expand


@dataclass(frozen=True, slots=True)
class GresLine:
    """A line of gres.conf that names a GRES."""

    nodes: frozenset[str] | None
    """The nodes to which the line applies; None: all nodes that read the file."""
    name: str
    type: str
    files: tuple[str, ...]
    flags: frozenset[str]
    """The flags, in small letters."""

    def is_of(self, node: str, name: str) -> bool:
        """Whether the line describes the GRES `name` of `node`."""
        return self.name == name and (self.nodes is None or node in self.nodes)


def parse_gres_conf(text: str) -> tuple[GresLine, ...]:
    """All lines that name a GRES, in their order. Raises BadHostlist.

    Keys count in small and capital letters alike. A line of AutoDetect alone is left out, and so is Include.
    """
    lines = (line.partition("#")[0].split() for line in text.replace("\\\n", " ").splitlines())
    return tuple(found for words in lines if (found := _line(dict(map(_pair, words)))) is not None)


def files_of(lines: Sequence[GresLine], node: str, name: str) -> tuple[str, ...]:
    """The device files of a node's GRES, in the order in which Slurm numbers them."""
    return tuple(file for line in lines if line.is_of(node, name) for file in line.files)


def _pair(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key.lower(), value.strip('"')


def _line(fields: dict[str, str]) -> GresLine | None:
    if "name" not in fields:
        return None
    nodes = fields.get("nodename")
    return GresLine(
        nodes=frozenset(expand(nodes)) if nodes else None,
        name=fields["name"].lower(),
        type=fields.get("type", ""),
        files=expand(fields.get("file", "")),
        flags=frozenset(fields.get("flags", "").lower().split(",")) - {""},
    )
