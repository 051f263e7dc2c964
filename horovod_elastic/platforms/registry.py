"""The registry of kinds of clusters, which finds the kind that a process of a job runs on."""

from __future__ import annotations

from collections.abc import Mapping

from horovod_elastic.platforms import slurm, yarn
from horovod_elastic.platforms.base import VARIABLE, Kind, NotInAJob, Platform

_kinds: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Add a kind of cluster, or replace the kind of the same name."""
    _kinds[kind.name] = kind


def find(environment: Mapping[str, str]) -> Platform:
    """The platform of the process with this environment.

    Its kind is the one that VARIABLE names, else the first that recognizes the environment. If none does, it
    is the kind that was registered first, whose own error messages say what is missing. Raises NotInAJob for
    a name that is not registered.
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
register(yarn.KIND)
