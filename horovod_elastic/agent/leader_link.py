"""An agent's stream to its job's leader. Both sides prove who they are."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from flexo_protos.credentials import Authenticator, NotAuthentic
from flexo_protos.v1 import workers_pb2 as pb
from flexo_protos.v1 import workers_pb2_grpc as rpc
from horovod_elastic import wire
from horovod_elastic.proofs import ProvingCaller
from horovod_elastic.trace import say_error

# Channels do not share connections: gRPC would wait before it dials an address that has just failed.
_OPTIONS = (*wire.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))


class LeaderLink:
    """One attempt at `address`. `heard`: called with each message. `ended`: called once, with the reason.

    Callbacks run in the link's own thread.
    """

    def __init__(
        self,
        address: str,
        hello: pb.AgentHello,
        heard: Callable[[LeaderLink, pb.ToAgent], None],
        ended: Callable[[LeaderLink, str], None],
        authenticator: Authenticator,
    ) -> None:
        self.address = address
        self.heard_at = time.monotonic()
        """Time of the leader's last message, or of the dial."""
        self._heard = heard
        self._ended = ended
        self._caller = ProvingCaller(authenticator, address)
        self._outbox: queue.SimpleQueue[pb.FromAgent | None] = queue.SimpleQueue()
        self._outbox.put(pb.FromAgent(hello=hello))
        self._call: grpc.Call | None = None
        self._closed = False
        threading.Thread(target=self._run, name="leader-link", daemon=True).start()

    def send(self, message: pb.FromAgent) -> None:
        """Send `message` after all earlier ones. The message is lost if the stream breaks."""
        self._outbox.put(message)

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._outbox.put(None)
        if self._call is not None:
            self._call.cancel()

    def _run(self) -> None:
        why = "the stream has ended"
        try:
            with grpc.insecure_channel(self.address, options=_OPTIONS) as channel:
                self._converse(channel)
        except grpc.RpcError as error:
            why = str(error.details())
        except NotAuthentic as error:
            why = str(error)
        except Exception as error:  # otherwise the agent would wait for a message of this leader
            say_error(error)
            why = repr(error)
        self._outbox.put(None)
        self._ended(self, why)

    def _converse(self, channel: grpc.Channel) -> None:
        metadata = self._caller.metadata(wire.ATTACH_AGENT)
        stream = rpc.LeaderServiceStub(channel).AttachAgent(self._outgoing(), metadata=metadata)
        self._call = stream
        if self._closed:
            stream.cancel()
        proven = False  # before a refusal nobody proves anything, and reading the stream says why
        for message in stream:
            if not proven:
                self._caller.check(wire.ATTACH_AGENT, stream)
                proven = True
            self.heard_at = time.monotonic()
            self._heard(self, message)

    def _outgoing(self) -> Iterator[pb.FromAgent]:
        while (message := self._outbox.get()) is not None:
            yield message
