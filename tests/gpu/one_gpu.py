"""Several ranks of NCCL on one GPU, which NCCL refuses unless it takes them for ranks on several machines.

NCCL tells machines apart by NCCL_HOSTID. Ranks with different ones talk through sockets, on loopback here. So
NCCL's own code runs, with as many ranks as wanted. Its speed says nothing of a machine with as many GPUs.
"""

from __future__ import annotations

ENVIRONMENT = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def as_machine(number: int) -> dict[str, str]:
    """The environment of a worker on a pretended machine."""
    return {**ENVIRONMENT, "NCCL_HOSTID": f"machine-{number}"}
