"""Which kind of cluster a process of a job runs on: all kinds are registered here."""

from __future__ import annotations

from collections.abc import Mapping

from horovod_elastic.platforms import slurm
from horovod_elastic.platforms.base import VARIABLE, Kind, NotInAJob, Platform

_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Add a kind of cluster, or replace the one of that name."""
    _kinds[kind.name] = kind


def find(environment: Mapping[str, str]) -> Platform:
    """The platform of the process with this environment: as flexo has said, else as the environment shows.

    Where nothing shows it is the kind that was registered first: its own words say what is missing. Raises
    NotInAJob for a name that nobody has registered.
    """
    if name := environment.get(VARIABLE, ""):
        if name not in _kinds:
            raise NotInAJob(
                f"{VARIABLE} is '{name}', which is no kind of cluster; it is one of {', '.join(_kinds)}"
            )
        return _kinds[name].open(environment)
    kinds = list(_kinds.values())
    return next((kind for kind in kinds if kind.recognizes(environment)), kinds[0]).open(environment)


register(slurm.KIND)
