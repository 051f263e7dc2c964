"""The kinds of clusters, by the names that `[cluster] kind` takes: one folder and one entry here for each."""

from __future__ import annotations

import importlib
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Final

from flexo.clusters.base import Cluster, Site
from flexo.sections import KindSection
from flexo_protos.credentials import Authenticator


@dataclass(frozen=True, slots=True)
class Kind:
    """The parts of a kind, as ``module:name``. They are imported only when they are needed."""

    settings: str
    """The kind's section of the configuration file: a KindSection in which every key has a default."""
    connect: str
    """A function of that section and a Site. It returns a Cluster, which need not answer yet."""
    authenticator: str = ""
    """A function of that section and the Authenticator of everybody else, for leaders of jobs that prove
    otherwise who they are; "": they prove it like everybody else."""


KINDS: Final[dict[str, Kind]] = {
    "slurm": Kind("flexo.clusters.slurm.settings:SlurmSettings", "flexo.clusters.slurm.connecting:connect"),
    "yarn": Kind(
        "flexo.clusters.yarn.settings:YarnSettings",
        "flexo.clusters.yarn.connecting:connect",
        "flexo.clusters.yarn.connecting:authenticator",
    ),
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


def authenticates(name: str) -> bool:
    """Whether leaders of jobs on the kind of this name prove otherwise than everybody else who they are."""
    return bool(KINDS[name].authenticator)


def authenticator(name: str, settings: KindSection, others: Authenticator) -> Authenticator:
    """What verifies all callers on the kind of this name; `others` verifies those who lead no job."""
    if not authenticates(name):
        return others
    made: Authenticator = _found(KINDS[name].authenticator)(settings, others)
    return made


def _found(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)
