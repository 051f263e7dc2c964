"""A stand-in for flexod that one job's leader attaches to: it asks for trials and assigns Aggregators.

It is the last step of flexod's decisions alone. What the leader does with it is real.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from flexo_protos.credentials import JOB_SECRET, SCHEME_VARIABLE
from flexo_protos.job_secret import FILE_VARIABLE, SECRET_BYTES
from flexo_protos.v1 import jobs_pb2 as pb
from flexo_protos.v1 import jobs_pb2_grpc as rpc
from horovod_elastic.aggregation.control import AssignedAggregator

_THREADS = 8


class AssigningFlexod(rpc.JobServiceServicer):
    """See the module. It believes whoever calls it."""

    def __init__(self, *, try_batches: bool = False) -> None:
        """`try_batches`: whether the job is to try several batches when it begins."""
        self.address = ""
        """Its host:port."""
        self.tried: pb.TriedBatches | None = None
        """The job's trials, as its leader reports them."""
        self._welcome = pb.Welcome(
            report_interval_s=1, flexod_version="of a benchmark", try_batches=try_batches
        )
        self._lock = threading.Lock()
        self._last = pb.Aggregators()
        self._streams: list[queue.SimpleQueue[pb.ToLeader | None]] = []
        self._use = pb.AggregationUse()

    @property
    def version_in_use(self) -> int:
        """The version of the assignment that the job sums by, as its leader reports it; 0: none."""
        return int(self._use.version)

    def assign(self, aggregators: Sequence[AssignedAggregator]) -> int:
        """Have these sum the job's gradients. Returns the version of the assignment."""
        with self._lock:
            assigned = [
                pb.AssignedAggregator(host=each.host, port=each.port, token=each.token, share=each.share)
                for each in aggregators
            ]
            self._last = pb.Aggregators(version=self._last.version + 1, aggregators=assigned)
            for stream in self._streams:
                stream.put(pb.ToLeader(aggregators=self._last))
            return int(self._last.version)

    def Attach(  # noqa: N802  (gRPC's name)
        self, request_iterator: Iterator[pb.FromLeader], context: grpc.ServicerContext
    ) -> Iterator[pb.ToLeader]:
        """See jobs.proto."""
        stream: queue.SimpleQueue[pb.ToLeader | None] = queue.SimpleQueue()
        stream.put(pb.ToLeader(welcome=self._welcome))
        with self._lock:
            self._streams.append(stream)
            if self._last.version:
                stream.put(pb.ToLeader(aggregators=self._last))
        hears = threading.Thread(target=self._hear, args=(request_iterator, stream), daemon=True)
        context.add_callback(lambda: stream.put(None))
        hears.start()
        while (message := stream.get()) is not None:
            yield message

    def _hear(self, said: Iterator[pb.FromLeader], stream: queue.SimpleQueue[pb.ToLeader | None]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in said:
                report = message.hello.report if message.HasField("hello") else message.report
                if report.HasField("aggregation"):
                    self._use = report.aggregation
                if report.HasField("tried"):
                    self.tried = report.tried
        stream.put(None)


@contextlib.contextmanager
def assigning_flexod(*, try_batches: bool = False) -> Iterator[AssigningFlexod]:
    """The stand-in, while it serves."""
    flexod = AssigningFlexod(try_batches=try_batches)
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="assigning")
    server = grpc.server(threads)
    rpc.add_JobServiceServicer_to_server(flexod, server)
    flexod.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield flexod
    finally:
        server.stop(grace=None).wait()


def variables_of(folder: Path) -> dict[str, str]:
    """The variables by which a local job calls the stand-in without MUNGE. `folder`: for the job's secret."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "secret"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(SECRET_BYTES))
    return {SCHEME_VARIABLE: JOB_SECRET, FILE_VARIABLE: str(file)}
