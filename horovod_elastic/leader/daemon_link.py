"""The leader's connection to flexod: dial, say hello, report, hear grants, dial again.

Training never depends on it. While flexod is away, the leader keeps its satellites until their time limits
end them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import grpc

from flexo_protos import flexods, tls
from flexo_protos.credentials import METADATA_KEY, NotAuthentic, new_authenticator
from flexo_protos.job_secret import for_flexod
from flexo_protos.v1 import jobs_pb2 as pb
from flexo_protos.v1 import jobs_pb2_grpc as rpc
from horovod_elastic.trace import say_error
from horovod_elastic.wire import CHANNEL_OPTIONS

ATTACH = "/flexo.v1.JobService/Attach"
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
REFUSED_RETRY_S = 60.0
REPORT_INTERVAL_S = 5.0
"""Interval of reports until flexod has sent its own."""
_REFUSALS = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,  # replaced by another leader of this job: taking turns would help nobody
)
_BROKEN_OFF = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
)
"""Codes that gRPC itself gives when nobody answers, or no more. A server has chosen all other codes."""


class _Outdated(Exception):
    """A message came from a flexod that another flexod has replaced."""


@dataclass(frozen=True, slots=True)
class _Silence:
    """The end of an attempt at one flexod."""

    why: str
    then: str = ":"
    """Punctuation before the sentence that training goes on; "": that sentence is left out."""
    refused: bool = False
    """Whether flexod refuses, or a retry soon cannot help for another reason."""
    stands_by: bool = False
    """Whether this flexod stands by: another one is active, or this one will be soon."""


class DaemonLink:
    """A thread that keeps the stream to flexod open. Callbacks run in that thread.

    The thread asks several flexods one after the other, until the active one answers.
    """

    def __init__(
        self,
        address: str,
        hello: Callable[[], pb.Hello],
        on_grants: Callable[[pb.Grants], None],
        on_command: Callable[[pb.Command], None],
        say: Callable[[str], None],
        on_aggregators: Callable[[pb.Aggregators], None] = lambda _: None,
        on_welcome: Callable[[pb.Welcome], None] = lambda _: None,
    ) -> None:
        """`address`: flexod's host:port, or several separated by commas."""
        self._addresses = flexods.several(address)
        self._options = flexods.options_for(self._addresses, CHANNEL_OPTIONS)
        self._epoch = 0
        """The highest epoch of any flexod that was heard."""
        self._hello = hello
        self._on_grants = on_grants
        self._on_command = on_command
        self._on_aggregators = on_aggregators
        self._on_welcome = on_welcome
        self._say = say
        self._said = ""
        self.report_interval_s = REPORT_INTERVAL_S
        """Longest interval between reports that flexod accepts."""
        self._wait_s = FIRST_RETRY_S
        self._outbox: queue.SimpleQueue[pb.FromLeader | None] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_open, name="flexod-link", daemon=True)

    def start(self) -> None:
        """Begin to dial. A second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def send(self, message: pb.FromLeader) -> None:
        """Send flexod a message, if flexod is there. A later hello tells it everything anyway."""
        outbox = self._outbox
        if outbox is not None:
            outbox.put(message)

    def close(self, reason: str) -> None:
        """Say goodbye and end the stream, because the job ends."""
        self.send(pb.FromLeader(goodbye=pb.Goodbye(reason=reason)))
        self.hang_up()

    def hang_up(self) -> None:
        """End the stream without a goodbye, because another leader has the job."""
        self._ended.set()
        outbox = self._outbox
        if outbox is not None:
            outbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _keep_open(self) -> None:
        while not self._ended.is_set():
            tried = [self._try(address) for address in self._addresses]
            self._explain(tried)
            if any(silence.refused for silence in tried):
                self._ended.wait(REFUSED_RETRY_S)
                continue
            if any(silence.stands_by for silence in tried):
                self._wait_s = FIRST_RETRY_S  # one of the flexods is about to take over
            self._ended.wait(self._wait_s)
            self._wait_s = min(LAST_RETRY_S, self._wait_s * 2)

    def _try(self, address: str) -> _Silence:
        """Keep a stream to the flexod at `address` until the stream ends; return how it ended."""
        if self._ended.is_set():
            return _Silence("the job ends")
        try:
            self._converse(address)
        except grpc.RpcError as error:
            return _silence(address, error)
        except _Outdated:
            return _Silence(f"flexod at {address} is not the active one any more")
        except (NotAuthentic, tls.AuthorityUnusable) as error:
            return _Silence(str(error), ";", refused=True)
        except Exception as error:  # without this thread, the job would hear no more of flexod
            say_error(error)
            return _Silence(f"what flexod at {address} says cannot be used: {error!r}", ";", refused=True)
        return _Silence(f"no flexod at {address}")

    def _converse(self, address: str) -> None:
        with tls.channel(address, self._options) as channel:
            outbox: queue.SimpleQueue[pb.FromLeader | None] = queue.SimpleQueue()
            outbox.put(pb.FromLeader(hello=self._hello()))
            self._outbox = outbox
            authenticator = for_flexod(new_authenticator(), [address])
            metadata = ((METADATA_KEY, authenticator.credential(ATTACH)),)
            try:
                for message in rpc.JobServiceStub(channel).Attach(_outgoing(outbox), metadata=metadata):
                    self._hear(message, address)
            finally:
                self._outbox = None
                outbox.put(None)

    def _hear(self, message: pb.ToLeader, address: str) -> None:
        if 0 < message.epoch < self._epoch:
            raise _Outdated
        self._epoch = max(self._epoch, message.epoch)
        kind = message.WhichOneof("body")
        if kind == "welcome":
            self.report_interval_s = float(max(1, message.welcome.report_interval_s))
            self._wait_s = FIRST_RETRY_S
            self._say_once(f"attached to flexod {message.welcome.flexod_version} at {address}")
            self._on_welcome(message.welcome)
        elif kind == "grants":
            self._on_grants(message.grants)
        elif kind == "command":
            self._on_command(message.command)
        elif kind == "aggregators":
            self._on_aggregators(message.aggregators)

    def _explain(self, tried: Sequence[_Silence]) -> None:
        """Tell the user why there is no stream; the same sentence is not repeated."""
        if self._ended.is_set():
            return
        told = [silence for silence in tried if silence.refused] or tried
        what = ", ".join(dict.fromkeys(silence.why for silence in told))
        then = told[-1].then
        self._say_once(f"{what}{then} training goes on with the workers it has" if then else what)

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._say(sentence)


def _silence(address: str, error: grpc.RpcError) -> _Silence:
    code = error.code()
    if code in _REFUSALS:
        return _Silence(f"flexod at {address} refuses this job: {error.details()}", "", refused=True)
    if flexods.stands_by(error):
        return _Silence(f"flexod at {address} stands by", stands_by=True)
    if code not in _BROKEN_OFF:
        return _Silence(f"flexod at {address} answers {code.name}: {error.details()}", ";")
    if why := tls.what_is_wrong(address):
        return _Silence(f"flexod at {address}: {why}", ";")
    return _Silence(f"no flexod at {address}")


def _outgoing(outbox: queue.SimpleQueue[pb.FromLeader | None]) -> Iterator[pb.FromLeader]:
    while (message := outbox.get()) is not None:
        yield message
