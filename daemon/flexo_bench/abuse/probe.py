"""An honest leader that dials flexod again and again, as the owner of its job.

One round is a new connection, Attach and Hello until Welcome, a report, and the refresh of the leader lease
until it is granted. A refused round is repeated; the time until success counts.

`python -m flexo_bench.abuse.probe JOB_ID CALLS` prints a JSON list of seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import grpc

from flexo_protos.credentials import METADATA_KEY, Authenticator, new_authenticator
from flexo_protos.v1 import jobs_pb2, jobs_pb2_grpc, leases_pb2, leases_pb2_grpc
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.leader.daemon_link import ATTACH
from horovod_elastic.wire import CHANNEL_OPTIONS

ACQUIRE = "/flexo.v1.LeaseService/Acquire"
BETWEEN_S = 0.02
GIVEN_UP_S = 10.0
"""Limit of a round. A round that is not done by then counts as this long."""
LONGEST_S = 150.0
"""Limit of all rounds together, for a flexod that does not answer."""


def main() -> None:
    """Run the rounds and print their times."""
    job_id, calls = int(sys.argv[1]), int(sys.argv[2])
    address, munge = daemon_address(), new_authenticator()
    assert address is not None
    began, rounds = time.monotonic(), list[float]()
    while len(rounds) < calls and time.monotonic() - began < LONGEST_S:
        rounds.append(_until_it_succeeds(address, munge, job_id))
        time.sleep(BETWEEN_S)
    print(json.dumps(rounds))


def _until_it_succeeds(address: str, munge: Authenticator, job_id: int) -> float:
    began = time.monotonic()
    while (spent := time.monotonic() - began) < GIVEN_UP_S:
        try:
            _round(address, munge, job_id, GIVEN_UP_S - spent)
        except grpc.RpcError:
            time.sleep(BETWEEN_S)
        else:
            return time.monotonic() - began
    return GIVEN_UP_S


def _round(address: str, munge: Authenticator, job_id: int, within_s: float) -> None:
    """Run one round. Raises grpc.RpcError."""
    options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))  # a connection of its own
    with grpc.insecure_channel(address, options=options) as channel:
        stream = jobs_pb2_grpc.JobServiceStub(channel).Attach(
            _said(job_id), metadata=((METADATA_KEY, munge.credential(ATTACH)),), timeout=within_s
        )
        assert next(stream).WhichOneof("body") == "welcome"
        leases_pb2_grpc.LeaseServiceStub(channel).Acquire(
            leases_pb2.AcquireRequest(
                job=leases_pb2.JobKey(job_id=job_id, run="probe"),
                holder="probe",
                address="127.0.0.1:1",
                ttl_s=5.0,
            ),
            metadata=((METADATA_KEY, munge.credential(ACQUIRE)),),
            timeout=within_s,
        )
        stream.cancel()


def _said(job_id: int) -> Iterator[jobs_pb2.FromLeader]:
    report = jobs_pb2.Report(workers=1)
    yield jobs_pb2.FromLeader(
        hello=jobs_pb2.Hello(
            job_id=job_id,
            workers=jobs_pb2.WorkerRange(min=1, max=4),
            shape=jobs_pb2.WorkerShape(gpus=1, cpus=1),
            base_nodes=["t1"],
            report=report,
        )
    )
    yield jobs_pb2.FromLeader(report=report)
    time.sleep(GIVEN_UP_S)  # the stream stays open until the client cancels it


if __name__ == "__main__":
    main()
