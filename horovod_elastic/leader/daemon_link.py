"""The leader's side of its conversation with flexod: dial, say hello, report, hear grants, dial again.

Training never depends on it. While flexod is away the leader keeps what it has; satellites end when their
leases do.
"""

from __future__ import annotations

import os
import queue
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from flexo_protos.credentials import METADATA_KEY, Munge, NotAuthentic
from flexo_protos.v1 import jobs_pb2 as pb
from flexo_protos.v1 import jobs_pb2_grpc as rpc
from horovod_elastic.wire import CHANNEL_OPTIONS

ATTACH = "/flexo.v1.JobService/Attach"
CONFIG = "/etc/flexo/flexo.toml"
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
REFUSED_RETRY_S = 60.0
REPORT_INTERVAL_S = 5.0
"""Until flexod has said what it wants."""
_REFUSALS = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,  # replaced by another leader of this job: taking turns would help nobody
)


def daemon_address() -> str | None:
    """flexod's host:port: $FLEXO_DAEMON, else [service] address in $FLEXO_CONFIG or /etc/flexo/flexo.toml."""
    if address := os.environ.get("FLEXO_DAEMON"):
        return address
    try:
        with Path(os.environ.get("FLEXO_CONFIG", CONFIG)).open("rb") as file:
            service = tomllib.load(file).get("service")
    except (OSError, ValueError):  # TOMLDecodeError and UnicodeDecodeError are both of the latter
        return None
    address = service.get("address") if isinstance(service, dict) else None
    return address if isinstance(address, str) else None


class DaemonLink:
    """A thread that keeps the stream to flexod open. Callbacks run in that thread."""

    def __init__(
        self,
        address: str,
        hello: Callable[[], pb.Hello],
        on_grants: Callable[[pb.Grants], None],
        on_command: Callable[[pb.Command], None],
        say: Callable[[str], None],
    ) -> None:
        self._address = address
        self._hello = hello
        self._on_grants = on_grants
        self._on_command = on_command
        self._say = say
        self._said = ""
        self.report_interval_s = REPORT_INTERVAL_S
        """How often flexod wants to hear of this job at least."""
        self._wait_s = FIRST_RETRY_S
        self._outbox: queue.SimpleQueue[pb.FromLeader | None] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_open, name="flexod-link", daemon=True)

    def start(self) -> None:
        """Begin dialling; nothing if it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def send(self, message: pb.FromLeader) -> None:
        """Tell flexod, if it is there; a later hello tells it everything anyway."""
        outbox = self._outbox
        if outbox is not None:
            outbox.put(message)

    def close(self, reason: str) -> None:
        """The job ends: say goodbye and hang up."""
        self.send(pb.FromLeader(goodbye=pb.Goodbye(reason=reason)))
        self.hang_up()

    def hang_up(self) -> None:
        """Without a word: somebody else leads the job."""
        self._ended.set()
        outbox = self._outbox
        if outbox is not None:
            outbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _keep_open(self) -> None:
        while not self._ended.is_set():
            refused = False
            try:
                self._converse()
            except grpc.RpcError as error:
                refused = self._explain(error)
            except NotAuthentic as error:
                self._say_once(f"{error}; training goes on with the workers it has")
                refused = True
            self._ended.wait(REFUSED_RETRY_S if refused else self._wait_s)
            self._wait_s = min(LAST_RETRY_S, self._wait_s * 2)

    def _converse(self) -> None:
        with grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            outbox: queue.SimpleQueue[pb.FromLeader | None] = queue.SimpleQueue()
            outbox.put(pb.FromLeader(hello=self._hello()))
            self._outbox = outbox
            metadata = ((METADATA_KEY, Munge().credential(ATTACH)),)
            try:
                for message in rpc.JobServiceStub(channel).Attach(_outgoing(outbox), metadata=metadata):
                    self._hear(message)
            finally:
                self._outbox = None
                outbox.put(None)

    def _hear(self, message: pb.ToLeader) -> None:
        kind = message.WhichOneof("body")
        if kind == "welcome":
            self.report_interval_s = float(max(1, message.welcome.report_interval_s))
            self._wait_s = FIRST_RETRY_S
            self._say_once(f"attached to flexod {message.welcome.flexod_version} at {self._address}")
        elif kind == "grants":
            self._on_grants(message.grants)
        elif kind == "command":
            self._on_command(message.command)

    def _explain(self, error: grpc.RpcError) -> bool:
        """Say what is wrong, once a cause; whether it is one that trying again soon will not change."""
        code = error.code()
        if code in _REFUSALS:
            self._say_once(f"flexod at {self._address} refuses this job: {error.details()}")
            return True
        if not self._ended.is_set():
            self._say_once(f"no flexod at {self._address}: training goes on with the workers it has")
        return False

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._say(sentence)


def _outgoing(outbox: queue.SimpleQueue[pb.FromLeader | None]) -> Iterator[pb.FromLeader]:
    while (message := outbox.get()) is not None:
        yield message
