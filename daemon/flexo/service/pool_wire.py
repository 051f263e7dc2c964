"""Converts the messages of pool Aggregators to the model's types and back, and checks their bounds."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from flexo.model.aggregation import Drain, Eviction, JobSums, PoolAggregator
from flexo.model.queue import Principal
from flexo.service.wire import (
    LONGEST_RELEASE,
    MAX_COUNT,
    Malformed,
    amount,
    at_most,
    from_one,
    host_in,
    matching,
    port_in,
)
from flexo.words import one_line
from flexo_protos.aggregation_token import KEY_BYTES
from flexo_protos.v1 import aggregators_pb2 as pb

MOST_MEMORY: Final = 1 << 50
MOST_NETWORK: Final = 1 << 44
MOST_JOBS: Final = 10_000
_JOB: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


def introduced(hello: pb.AggregatorHello, owner: Principal) -> PoolAggregator:
    """An Aggregator by its first message. `owner`: the account that it runs as. Raises Malformed."""
    if len(hello.token_key) != KEY_BYTES:
        raise Malformed(f"token_key has {len(hello.token_key)} bytes: {KEY_BYTES} are required")
    return PoolAggregator(
        host=host_in("host", hello.host),
        port=port_in("port", hello.port),
        memory=from_one("memory_bytes", hello.memory_bytes, MOST_MEMORY),
        network=from_one("network_bytes_per_s", hello.network_bytes_per_s, MOST_NETWORK),
        key=hello.token_key,
        slurm_job_id=at_most("slurm_job_id", hello.slurm_job_id, MAX_COUNT),
        owner=owner,
        release=one_line(hello.flexo_version, LONGEST_RELEASE),
    )


def with_status(known: PoolAggregator, status: pb.AggregatorStatus) -> PoolAggregator:
    """An Aggregator with its newest status. Raises Malformed."""
    if len(status.jobs) > MOST_JOBS:
        raise Malformed(f"{len(status.jobs)} jobs in a status: at most {MOST_JOBS} are allowed")
    jobs = tuple(
        JobSums(
            job=matching("jobs.job", each.job, _JOB),
            size=at_most("jobs.bytes", each.bytes, MOST_MEMORY),
            sums=at_most("jobs.sums", each.sums, MAX_COUNT),
            cpu_s=amount("jobs.cpu_s", each.cpu_s),
            longest_wait_s=amount("jobs.longest_wait_s", each.longest_wait_s),
        )
        for each in status.jobs
    )
    if len({each.job for each in jobs}) != len(jobs):
        raise Malformed("a status names a job twice")
    return replace(
        known,
        jobs=jobs,
        cpu_s=amount("cpu_s", status.cpu_s),
        leaving=status.leaving,
        interface_received=at_most("interface_received", status.interface_received, MAX_COUNT),
        interface_sent=at_most("interface_sent", status.interface_sent, MAX_COUNT),
        moved=at_most("moved", status.moved, MAX_COUNT),
    )


def to_aggregator(told: Eviction | Drain) -> pb.ToAggregator:
    """An eviction or a drain, as a message."""
    if isinstance(told, Drain):
        return pb.ToAggregator(drain=pb.AggregatorDrain())
    return pb.ToAggregator(evict=pb.AggregatorEvict(job=told.job))
