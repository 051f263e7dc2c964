"""What every agent of a job is told of it on its command line, so that any of them can lead it.

An agent in a satellite has another Slurm job's environment around it: what the base is must come with it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from horovod_elastic.slurm_job import BaseJob, BaseNode, Shape, Site


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One run of `flexo run`."""

    base: BaseJob
    site: Site
    output: str
    """The file that the base's output goes to, so that satellites can write there too; "" if unknown."""
    daemon: str
    """flexod's host:port; "" for a job that flexod does not know, or where there is none."""
    leases: str
    """Where its agents find out who leads: flexod://host:port, etcd://..., run://host:port (leases.py)."""

    def to_text(self) -> str:
        """One line, for a command line's argument."""
        return json.dumps(asdict(self), separators=(",", ":"))


def from_text(text: str) -> JobPlan:
    """The inverse of JobPlan.to_text. Raises ValueError for anything else."""
    try:
        fields = json.loads(text)
        base = fields.pop("base")
        shape, nodes = Shape(**base.pop("shape")), tuple(BaseNode(**node) for node in base.pop("nodes"))
        return JobPlan(
            base=BaseJob(**base, shape=shape, nodes=nodes), site=Site(**fields.pop("site")), **fields
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"'{text[:200]}' is no job's plan: {error!r}") from error
