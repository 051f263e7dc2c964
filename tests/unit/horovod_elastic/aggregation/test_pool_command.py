"""`flexo aggregator` serves until it is told to end: by flexod, or by SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from flexo_protos.v1 import aggregators_pb2 as pb
from flexo_protos.v1 import aggregators_pb2_grpc as rpc
from horovod_elastic.aggregation.pool import job_number

ROOT = Path(__file__).resolve().parents[4]
BOUND_S = 60.0
SCRIPT = """
import sys
from flexo_bench.local_job.trusting import Trusting
from horovod_elastic import pool_aggregator
from horovod_elastic.aggregation import flexod_link
flexod_link.new_authenticator = Trusting
sys.exit(pool_aggregator.main(sys.argv[1:]))
"""
pytestmark = pytest.mark.processes


class PlayedFlexod(rpc.AggregatorServiceServicer):
    """Hears one Aggregator, and tells it to end when it should."""

    def __init__(self) -> None:
        self.attached = threading.Event()
        self.heard_leaving = threading.Event()
        self.drains = False
        self.hello = pb.AggregatorHello()

    def Attach(  # noqa: N802
        self, request_iterator: Iterator[pb.FromAggregator], context: grpc.ServicerContext
    ) -> Iterator[pb.ToAggregator]:
        for said in request_iterator:
            if said.WhichOneof("body") == "hello":
                self.hello = said.hello
                self.attached.set()
                yield pb.ToAggregator(welcome=pb.AggregatorWelcome(flexod_version="1"))
            elif said.status.leaving:
                self.heard_leaving.set()
            elif self.drains:
                yield pb.ToAggregator(drain=pb.AggregatorDrain())


@pytest.fixture
def flexod() -> PlayedFlexod:
    return PlayedFlexod()


@pytest.fixture
def aggregator(flexod: PlayedFlexod) -> Iterator[subprocess.Popen[bytes]]:
    """A pool's Aggregator that is attached to `flexod`."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    rpc.add_AggregatorServiceServicer_to_server(flexod, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    modules = os.pathsep.join(str(ROOT / each) for each in (".", "daemon", "protos"))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, f"--flexod=127.0.0.1:{port}", "--host=127.0.0.1"],
        env={**os.environ, "PYTHONPATH": modules, "SLURM_JOB_ID": "77"},
    )
    try:
        assert flexod.attached.wait(BOUND_S)
        yield process
    finally:
        process.kill()
        process.wait()
        server.stop(None)


def test_a_pools_aggregator_names_the_slurm_job_that_it_runs_in(
    flexod: PlayedFlexod, aggregator: subprocess.Popen[bytes]
) -> None:
    assert flexod.hello.slurm_job_id == 77


@pytest.mark.parametrize(
    ("said", "number"), [("12", 12), ("", 0), ("12_3", 0), ("-1", 0), ("9" * 30, 0), ("٣", 0)]
)
def test_what_is_no_number_of_a_job_is_none(said: str, number: int) -> None:
    assert job_number(said) == number


def test_a_pools_aggregator_ends_when_flexod_says_so(
    flexod: PlayedFlexod, aggregator: subprocess.Popen[bytes]
) -> None:
    flexod.drains = True
    assert aggregator.wait(BOUND_S) == 0


def test_a_pools_aggregator_tells_flexod_that_it_ends_after_sigterm(
    flexod: PlayedFlexod, aggregator: subprocess.Popen[bytes]
) -> None:
    aggregator.send_signal(signal.SIGTERM)
    assert aggregator.wait(BOUND_S) == 0
    assert flexod.heard_leaving.is_set()
