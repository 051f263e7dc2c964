"""The kinds of clusters, by the names that `[cluster] kind` takes: one folder and one entry here for each."""

from __future__ import annotations

import importlib
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Final

from flexo.clusters.base import Cluster, Site
from flexo.sections import KindSection


@dataclass(frozen=True, slots=True)
class Kind:
    """The parts of a kind, as ``module:name``. They are imported only when they are needed."""

    settings: str
    """The kind's section of the configuration file: a KindSection in which every key has a default."""
    connect: str
    """A function of that section and a Site. It returns a Cluster, which need not answer yet."""


KINDS: Final[dict[str, Kind]] = {
    "slurm": Kind("flexo.clusters.slurm.settings:SlurmSettings", "flexo.clusters.slurm.connecting:connect"),
}


def names() -> Set[str]:
    """The names of all kinds."""
    return KINDS.keys()


def settings_of(name: str) -> type[KindSection]:
    """The section of the configuration file for the kind of this name."""
    found: type[KindSection] = _found(KINDS[name].settings)
    return found


def connect(name: str, settings: KindSection, site: Site) -> Cluster:
    """The cluster of the kind of this name, made from its settings."""
    cluster: Cluster = _found(KINDS[name].connect)(settings, site)
    return cluster


def _found(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)
