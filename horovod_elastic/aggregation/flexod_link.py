"""A pool Aggregator's stream to flexod: who it is, what its jobs use, and which jobs must go.

Sums never depend on it. While flexod is away, jobs go on here with the assignments that they have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc

from flexo_protos import flexods, tls
from flexo_protos.credentials import METADATA_KEY, NotAuthentic, new_authenticator
from flexo_protos.v1 import aggregators_pb2 as pb
from flexo_protos.v1 import aggregators_pb2_grpc as rpc
from horovod_elastic import network
from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.server import Server
from horovod_elastic.trace import say
from horovod_elastic.wire import CHANNEL_OPTIONS

ATTACH = "/flexo.v1.AggregatorService/Attach"
RETRY_S = 2.0
STATUS_S = 1.0


class FlexodLink:
    """A thread that keeps the stream open (see the module). It asks several flexods in turn."""

    def __init__(self, address: str, hello: pb.AggregatorHello, server: Server, door: PoolDoor) -> None:
        """`address`: flexod's host:port, or several separated by commas."""
        self._addresses = flexods.several(address)
        self._options = flexods.options_for(self._addresses, CHANNEL_OPTIONS)
        self._hello = hello
        self._server = server
        self._door = door
        self._interface = network.link_of(hello.host)
        self.is_leaving = False
        """Whether this Aggregator is to end: flexod says so, or `leave` was called."""
        self._told_leaving = threading.Event()
        self._over = threading.Event()
        self._epoch = 0
        self._said = ""
        threading.Thread(target=self._keep_open, name="flexod-link", daemon=True).start()

    def leave(self) -> None:
        """Let no job in any more, and tell flexod so with the next status. A signal handler may call it."""
        self._door.is_draining = True
        self.is_leaving = True

    def wait_until_told(self) -> None:
        """Wait until flexod has been told; not longer than that takes, if it is there."""
        self._told_leaving.wait(2 * STATUS_S)

    def close(self) -> None:
        """End the stream."""
        self._over.set()

    def _keep_open(self) -> None:
        while not self._over.is_set():
            for address in self._addresses:
                try:
                    self._converse(address)
                    why = f"flexod at {address} has ended the stream"
                except grpc.RpcError as error:
                    why = f"flexod at {address}: {error.code().name}: {error.details()}"
                except (NotAuthentic, tls.AuthorityUnusable) as error:
                    why = f"flexod at {address}: {error}"
                self._door.refused = frozenset()  # until the next flexod says who must go
                if self._over.is_set():
                    return
                self._say_once(f"{why}; its jobs go on here")
            self._over.wait(RETRY_S)

    def _converse(self, address: str) -> None:
        with tls.channel(address, self._options) as channel:
            metadata = ((METADATA_KEY, new_authenticator().credential(ATTACH)),)
            told = rpc.AggregatorServiceStub(channel).Attach(self._tell(), metadata=metadata)
            for message in told:
                if 0 < message.epoch < self._epoch:
                    return  # a flexod that another one has replaced
                self._epoch = max(self._epoch, message.epoch)
                self._hear(message, address)

    def _hear(self, message: pb.ToAggregator, address: str) -> None:
        match message.WhichOneof("body"):
            case "welcome":
                self._say_once(f"attached to flexod {message.welcome.flexod_version} at {address}")
            case "drain":
                self.leave()
            case "evict":
                self._door.refused |= {message.evict.job}
                self._server.evict(message.evict.job)

    def _tell(self) -> Iterator[pb.FromAggregator]:
        yield pb.FromAggregator(hello=self._hello)
        while not self._over.is_set():
            status = self._status()
            yield pb.FromAggregator(status=status)
            if status.leaving:  # and it is sent: gRPC asks for the next message
                self._told_leaving.set()
            self._over.wait(STATUS_S)

    def _status(self) -> pb.AggregatorStatus:
        jobs = [
            pb.JobSums(
                job=job,
                bytes=use.bytes,
                sums=use.sums,
                cpu_s=use.cpu_s,
                longest_wait_s=use.longest_wait_s,
            )
            for job, use in self._server.used().items()
        ]
        received, sent = network.traffic(self._interface)
        return pb.AggregatorStatus(
            jobs=jobs,
            cpu_s=time.process_time(),
            leaving=self.is_leaving,
            interface_received=received,
            interface_sent=sent,
            moved=self._server.moved,
        )

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            say(sentence)
