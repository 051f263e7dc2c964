"""A grant as the leader passes it on to the ApplicationMaster, and back."""

from __future__ import annotations

from flexo_protos.v1 import jobs_pb2
from horovod_elastic.platforms.base import GrantedWorkers


def to_message(grant: GrantedWorkers) -> jobs_pb2.Grant:
    """The message of a grant; flexod's signature is for flexod alone."""
    return jobs_pb2.Grant(
        grant_id=grant.grant_id,
        node=grant.node,
        workers=grant.workers,
        partition=grant.partition,
        time_limit_s=grant.time_limit_s,
        start_within_s=grant.start_within_s,
        qos=grant.qos,
    )


def from_message(message: jobs_pb2.Grant) -> GrantedWorkers:
    """The inverse of `to_message`."""
    return GrantedWorkers(
        grant_id=message.grant_id,
        node=message.node,
        workers=message.workers,
        partition=message.partition,
        time_limit_s=message.time_limit_s,
        start_within_s=message.start_within_s,
        qos=message.qos,
    )
