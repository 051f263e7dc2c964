"""YARN's identifiers as text and back, and amounts of resources as flexo counts them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from flexo_protos.hadoop import yarn_pb2 as pb

ALIVE: Final = (pb.NEW, pb.NEW_SAVING, pb.SUBMITTED, pb.ACCEPTED, pb.RUNNING)
ENDED: Final = (pb.FINISHED, pb.FAILED, pb.KILLED)
"""States of applications."""
GPU = "yarn.io/gpu"
"""YARN's name of the resource GPU."""
OWN_PRIORITY: Final = 0
"""The priority that YARN gives to an application's own container."""
_APPLICATION = re.compile(r"application_(\d+)_(\d+)")
_CONTAINER = re.compile(r"container_(?:e(\d+)_)?(\d+)_(\d+)_(\d+)_(\d+)")
_APPLICATIONS = 1_000_000
"""More than a ResourceManager starts before it is restarted; with the time, it fits into 63 bits."""
_GRANT = re.compile(r"g([0-9a-f]{8})")
_PRIORITIES = 1 << 30
"""Grants have numbers below it, and so have the priorities of their containers."""
_EPOCH_SHIFT = 40
"""The upper bits of a container's number count restarts of the ResourceManager."""


def application_text(application: pb.ApplicationId) -> str:
    """Like "application_1700000000000_0007"."""
    return f"application_{application.cluster_timestamp}_{application.id:04d}"


def read_application(text: str) -> pb.ApplicationId:
    """The identifier in this text. Raises ValueError."""
    if (match := _APPLICATION.fullmatch(text)) is None:
        raise ValueError(f"'{text}' is no application; allowed: application_TIMESTAMP_NUMBER")
    return pb.ApplicationId(cluster_timestamp=int(match[1]), id=int(match[2]))


def application_number(application: pb.ApplicationId) -> int:
    """The number by which flexo knows an application: its cluster's start (ms) and its own number."""
    return int(application.cluster_timestamp) * _APPLICATIONS + int(application.id)


def numbered_application(number: int) -> pb.ApplicationId:
    """The inverse of `application_number`."""
    timestamp, own = divmod(number, _APPLICATIONS)
    return pb.ApplicationId(cluster_timestamp=timestamp, id=own)


def grant_priority(grant_id: str) -> int:
    """The priority of a grant's container: a report of YARN's names nothing else of it. Raises ValueError."""
    match = _GRANT.fullmatch(grant_id)
    if match is None or int(match[1], 16) >= _PRIORITIES:
        raise ValueError(
            f"'{grant_id}' is no grant for YARN; allowed: g and eight digits, below g{_PRIORITIES:x}"
        )
    return int(match[1], 16)


def priority_grant(priority: int) -> str:
    """The inverse of `grant_priority`."""
    return f"g{priority:08x}"


def satellite_number(application: pb.ApplicationId, priority: int) -> int:
    """The number by which flexo knows a container of a flex application: its own, by the priority."""
    return int(application.id) * _PRIORITIES + priority


def container_text(container: pb.ContainerId) -> str:
    """Like "container_e02_1700000000000_0007_01_000003", without "e02_" before the first restart of YARN."""
    attempt = container.application_attempt_id
    epoch, number = container.id >> _EPOCH_SHIFT, container.id & ((1 << _EPOCH_SHIFT) - 1)
    prefix = f"e{epoch:02d}_" if epoch else ""
    application = attempt.application_id
    return (
        f"container_{prefix}{application.cluster_timestamp}_{application.id:04d}_"
        f"{attempt.attempt_id:02d}_{number:06d}"
    )


def read_container(text: str) -> pb.ContainerId:
    """The identifier in this text. Raises ValueError."""
    if (match := _CONTAINER.fullmatch(text)) is None:
        raise ValueError(
            f"'{text}' is no container; allowed: container_[eEPOCH_]TIMESTAMP_APP_ATTEMPT_NUMBER"
        )
    application = pb.ApplicationId(cluster_timestamp=int(match[2]), id=int(match[3]))
    attempt = pb.ApplicationAttemptId(application_id=application, attempt_id=int(match[4]))
    number = (int(match[1] or 0) << _EPOCH_SHIFT) | int(match[5])
    return pb.ContainerId(application_attempt_id=attempt, id=number)


def living(containers: Iterable[pb.ContainerReport]) -> list[pb.ContainerReport]:
    """Those that have not ended."""
    return [each for each in containers if each.state != pb.C_COMPLETE]


def resource(memory_mib: int, cores: int, gpus: int) -> pb.Resource:
    """An amount of memory, virtual cores and GPUs."""
    others = [pb.ResourceInformation(key=GPU, value=gpus, units="")] if gpus else []
    return pb.Resource(memory=memory_mib, virtual_cores=cores, others=others)


def gpus(amount: pb.Resource) -> int:
    """The GPUs in an amount of resources."""
    return sum(each.value for each in amount.others if each.key == GPU)
