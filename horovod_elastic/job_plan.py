"""What a job is, and what every agent of it is told on its command line, so that any of them can lead it.

An agent in a satellite has the environment of another part of the job around it: what the base is must come
with it. Agents of other releases of flexo read the same line: its keys stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from flexo_protos.resources import Resources, amount, as_texts, of_texts
from horovod_elastic import wire


@dataclass(frozen=True, slots=True)
class BaseNode:
    """A node of the base and how many of its workers run there."""

    name: str
    workers: int


@dataclass(frozen=True, slots=True)
class BaseJob:
    """The user's own job. `minimum` and `maximum` are equal when it did not ask for more sizes."""

    job_id: str
    restart_count: int
    nodes: tuple[BaseNode, ...]
    shape: Resources
    """What one worker takes of a node."""
    minimum: int
    maximum: int
    account: str
    batch: str = ""
    """The aggregate batches that it may train with, MIN-MAX samples (--elastic-batch); "" for its own one."""
    declared: bool = False
    """It was submitted with --elastic, so that flexod knows it: also with a range of one size."""
    heterogeneous: bool = False
    """Its workers may be on several GPU types in the same run (--elastic-heterogeneous)."""

    @property
    def elastic(self) -> bool:
        """Whether it may grow."""
        return self.maximum > self.minimum

    @property
    def workers(self) -> int:
        """Workers that the base itself holds."""
        return sum(node.workers for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Site:
    """What flexo has to know of the cluster's configuration."""

    binds_cpus: bool = True
    """The cluster binds what it starts to CPUs, and agents have to be exempted from that."""
    signals_reach_all: bool = True
    """The cluster signals all processes of a part of a job; where not, only those that it started itself."""
    controller: str = ""
    """The host of the cluster's controller, which all nodes reach; "" if unknown."""


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
        fields = asdict(self)
        fields["base"]["shape"] = _shape_fields(self.base.shape)
        fields["base"]["job_id"] = wire.job_number(self.base.job_id)
        return json.dumps(fields, separators=(",", ":"))


def from_text(text: str) -> JobPlan:
    """The inverse of JobPlan.to_text. Raises ValueError for anything else."""
    try:
        fields = json.loads(text)
        base = fields.pop("base")
        base["job_id"] = wire.job_id(base["job_id"])
        shape, nodes = _shape_of(**base.pop("shape")), tuple(BaseNode(**node) for node in base.pop("nodes"))
        return JobPlan(
            base=BaseJob(**base, shape=shape, nodes=nodes), site=Site(**fields.pop("site")), **fields
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"'{text[:200]}' is no job's plan: {error!r}") from error


def _shape_fields(shape: Resources) -> dict[str, object]:
    """As older releases read it, as long as it is nothing that they do not know."""
    fields: dict[str, object] = {
        "gpus": shape.gpus if isinstance(shape.gpus, int) else str(shape.gpus),
        "cpus": shape.cpus,
        "memory_mib": shape.memory_mib,
        "gpu_type": shape.gpu_type,
    }
    if shape.devices:
        fields["devices"] = as_texts(shape.devices)
    return fields


def _shape_of(
    gpus: int | str, cpus: int, memory_mib: int, gpu_type: str, devices: Iterable[Iterable[str]] = ()
) -> Resources:
    """The inverse."""
    return Resources(amount(gpus), cpus, memory_mib, gpu_type, of_texts(devices))
