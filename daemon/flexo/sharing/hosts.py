"""The GPUs that a second job may use: the cluster says who holds them, their jobs agree, and their leaders
report how busy they are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from flexo.model.elastic import ElasticJob, Grant, SatelliteState
from flexo.model.nodes import Node
from flexo.model.plans import Snapshot
from flexo.model.queue import JobKey
from flexo.model.sharing import GpuUse, number_of, shared_gpu
from flexo.sharing.settings import SharingSettings
from flexo_protos.resources import Devices

Gpu = tuple[str, int]
"""A GPU: its node, and its number there."""
HeldGpus = Mapping[JobKey, frozenset[Gpu]]
"""The GPUs that jobs hold, as the cluster records it."""

BUSIEST: Final = 0.95
"""The utilization from which nothing is left for a second job: gaps that short cost more than they give."""


@dataclass(frozen=True, slots=True)
class Host:
    """A GPU whose holder, a guarantee job, lets a second job use it."""

    gpu: Gpu
    holder: JobKey
    tenant: str
    """The holder's account; its user if the cluster keeps no accounts."""
    use: GpuUse | None
    """The last report on its use; None: there is none."""

    @property
    def ready(self) -> bool:
        """Whether a second job may come: the guarantee job is steady, and leaves something."""
        return self.use is not None and self.use.steady and self.use.utilization < BUSIEST


def tenant_of(job: ElasticJob) -> str:
    """The account of the job; its user if the cluster keeps no accounts."""
    return job.account or job.user


def consents(job: ElasticJob) -> bool:
    """Whether the job lets others use its GPU, as it was submitted.

    The GPUs of a job with several are not shared: one slow worker would hold up all others.
    """
    return job.cohost and not job.opportunistic and job.granted_workers * job.shape.gpus == 1


def hosts_of(jobs: Iterable[ElasticJob], held: HeldGpus) -> dict[Gpu, Host]:
    """All GPUs that may be shared, by where they are; none that two jobs hold, as only an error could say."""
    found: dict[Gpu, Host] = {}
    twice: set[Gpu] = set()
    for job in jobs:
        if not consents(job) or job.suspended:
            continue
        uses = {(use.node, use.gpu): use for use in job.gpu_uses}
        for gpu in held.get(job.key, frozenset()):
            if gpu in found:
                twice.add(gpu)
            found[gpu] = Host(gpu, job.key, tenant_of(job), uses.get(gpu))
    return {gpu: host for gpu, host in found.items() if gpu not in twice}


def may_use(job: ElasticJob, host: Host, settings: SharingSettings) -> bool:
    """Whether this opportunistic job may use that GPU."""
    return settings.across_accounts or tenant_of(job) == host.tenant


def taken(snapshot: Snapshot) -> frozenset[Gpu]:
    """The shared GPUs that a second job has, or has been granted."""
    used = {gpu for node in snapshot.nodes for gpu in gpus_on(node.name, node.allocated.devices)}
    granted = {gpu for job in snapshot.elastic for grant in job.grants for gpu in gpus_of(grant)}
    return frozenset(used | granted)


def gpus_of(grant: Grant) -> tuple[Gpu, ...]:
    """The shared GPUs of a grant."""
    return gpus_on(grant.node, grant.shared_gpus)


def gpus_on(node: str, devices: Iterable[Devices]) -> tuple[Gpu, ...]:
    """The shared GPUs among the resources of `node`."""
    return tuple((node, number) for number in _numbers(devices))


def offered(node: Node) -> frozenset[int]:
    """The numbers of the GPUs on `node` that the site has set up for sharing."""
    return frozenset(_numbers(node.capacity.devices))


def stands(grant: Grant) -> bool:
    """Whether the grant is not on its way out."""
    return grant.state is not SatelliteState.LEAVING


def _numbers(devices: Iterable[Devices]) -> list[int]:
    numbers = (number_of(device) for device in devices if device.amount)
    return [number for number in numbers if number is not None]


def devices_of(numbers: Iterable[int]) -> tuple[Devices, ...]:
    """The cluster's resources for the GPUs with these numbers."""
    return tuple(shared_gpu(number) for number in sorted(numbers))
