"""The plan of a job. Every agent gets the plan on its command line, so that any agent can lead.

The environment of an agent in a satellite describes the satellite, not the base. So the plan describes the
base. Agents of other releases of flexo read the same line, so its keys must not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from flexo_protos.resources import Resources, amount, as_texts, of_texts
from horovod_elastic import wire

_PART = ".."
"""Before the number of a part of a host. No host has two dots in a row in its name."""


def host_of(node: str) -> str:
    """The cluster's own name of a node of the base."""
    return node.partition(_PART)[0]


def part_of(host: str, number: int) -> str:
    """The name of a host's part with this number, from 1."""
    return host if number == 1 else f"{host}{_PART}{number}"


@dataclass(frozen=True, slots=True)
class BaseNode:
    """A node of the base, and the number of the base's workers there.

    Where the cluster gives a base several separate parts of one host, each part is a node: "h1", "h1..2".
    """

    name: str
    workers: int

    @property
    def host(self) -> str:
        """The cluster's own name of the node."""
        return host_of(self.name)


@dataclass(frozen=True, slots=True)
class BaseJob:
    """The user's own job. `minimum` and `maximum` are equal for a job of one size."""

    job_id: str
    restart_count: int
    nodes: tuple[BaseNode, ...]
    shape: Resources
    """The resources of one worker on a node."""
    minimum: int
    maximum: int
    account: str
    batch: str = ""
    """Range of its aggregate batch, MIN-MAX samples (--elastic-batch); "" if the script alone sets it."""
    declared: bool = False
    """Whether the job was submitted with --elastic, even for one size; flexod then knows the job."""
    heterogeneous: bool = False
    """Whether its workers may be on several GPU types in the same run (--elastic-heterogeneous)."""

    unit: int = 1
    """Number of workers that come and go together (flexo run --elastic-unit)."""
    opportunistic: bool = False
    """Whether the base has no workers, and all of them are in satellites (--elastic-opportunistic)."""
    cohost: bool = False
    """Whether the job lets opportunistic jobs use its GPUs (--elastic-cohost)."""
    satellite_options: tuple[str, ...] = ()
    """The parts of the base's own request that its satellites repeat, as options of the cluster's command."""

    @property
    def elastic(self) -> bool:
        """Whether the job may change its size. An opportunistic job pauses and goes on at any range."""
        return self.opportunistic or self.maximum > self.minimum

    @property
    def founders(self) -> int:
        """Number of workers with which training begins, and whose batches make the global batch."""
        return self.minimum if self.opportunistic else self.workers

    @property
    def workers(self) -> int:
        """Number of workers in the base itself."""
        return sum(node.workers for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Site:
    """The parts of the cluster's configuration that flexo uses."""

    binds_cpus: bool = True
    """Whether the cluster binds the processes that it starts to CPUs; agents must then be exempt."""
    signals_reach_all: bool = True
    """Whether the cluster signals all processes of a part of a job; else only those that it started."""
    controller: str = ""
    """The host of the cluster's controller, which all nodes reach; "" if unknown."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of one run of `flexo run`."""

    base: BaseJob
    site: Site
    output: str
    """The file that the base's output goes to, so that satellites can write there too; "" if unknown."""
    daemon: str
    """flexod's host:port; "" for a job that flexod does not know, or if no flexod is configured."""
    leases: str
    """Place of its leader lease: flexod://host:port, etcd://..., run://host:port (lease_place.py)."""

    def to_text(self) -> str:
        """The plan as one line, for an argument of a command line."""
        fields = asdict(self)
        fields["base"]["shape"] = _shape_fields(self.base.shape)
        fields["base"]["job_id"] = wire.job_number(self.base.job_id)
        if self.base.unit == 1:  # older releases know no units
            del fields["base"]["unit"]
        for word in ("opportunistic", "cohost", "satellite_options"):  # nor shared GPUs, nor options
            if not fields["base"][word]:
                del fields["base"][word]
        return json.dumps(fields, separators=(",", ":"))


def from_text(text: str) -> JobPlan:
    """The plan that JobPlan.to_text has written as `text`. Raises ValueError for any other text."""
    try:
        fields = json.loads(text)
        base = fields.pop("base")
        base["job_id"] = wire.job_id(base["job_id"])
        shape, nodes = _shape_of(**base.pop("shape")), tuple(BaseNode(**node) for node in base.pop("nodes"))
        options = tuple(map(str, base.pop("satellite_options", ())))
        return JobPlan(
            base=BaseJob(**base, shape=shape, nodes=nodes, satellite_options=options),
            site=Site(**fields.pop("site")),
            **fields,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"'{text[:200]}' is no job's plan: {error!r}") from error


def _shape_fields(shape: Resources) -> dict[str, object]:
    """The fields of `shape`. Older releases read them, unless `shape` has shares of GPUs or other devices."""
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
    """The inverse of `_shape_fields`."""
    return Resources(amount(gpus), cpus, memory_mib, gpu_type, of_texts(devices))
