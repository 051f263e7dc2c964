"""Connections whose other end has vanished, and those on which there is nothing to say, with real gRPC.

The options are those that jobs, flexod and its commands use, with their times divided, so that nobody waits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from chaos.system.link import Link

from flexo.service.server import OPTIONS as FLEXOD
from flexo_cli.connection import CHANNEL_OPTIONS as COMMANDS
from flexo_protos import keepalive
from horovod_elastic.wire import CHANNEL_OPTIONS as JOBS
from horovod_elastic.wire import server_options

LEADER = server_options()
QUICKER = 20
BOUND_S = 30.0
"""Far from the second or two that it takes, and from gRPC's own minute."""
NOTHING_IS_SAID_S = 5.0
PAIRS = {"agent and leader": (JOBS, LEADER), "leader and flexod": (JOBS, FLEXOD),
         "command and flexod": (COMMANDS, FLEXOD)}  # fmt: skip
PINGS = frozenset(name for name, _ in (*keepalive.noticing(1, 1), *keepalive.bearing_pings(1)))
ANSWERS = frozenset({"grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"})
METHOD = "/test.Talk/Talk"


def quicker(options: tuple[tuple[str, object], ...], names: frozenset[str]) -> list[tuple[str, object]]:
    """The options, the times among `names` divided."""
    return [
        (name, value // QUICKER if name in names and isinstance(value, int) else value)
        for name, value in options
    ]


class Talk:
    """A stream through a link, whose ends say one word each and then wait for more."""

    def __init__(self, channel: list[tuple[str, object]], server: list[tuple[str, object]]) -> None:
        self.ended = {"client": threading.Event(), "server": threading.Event()}
        self.why = ""
        self._over: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._server = grpc.server(ThreadPoolExecutor(2), options=server)
        handler = grpc.stream_stream_rpc_method_handler(self._answer)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Talk", {"Talk": handler}),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.link = Link(port)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self.link.port}", options=channel)
        self._over.put(b"a word")
        self._stream = self._channel.stream_stream(METHOD)(iter(self._over.get, None))
        assert next(self._stream) == b"an answer"
        threading.Thread(target=self._listen, daemon=True).start()

    def _answer(self, words: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(self.ended["server"].set)
        next(words)
        yield b"an answer"
        self.ended["server"].wait()

    def _listen(self) -> None:
        try:
            next(self._stream)
        except grpc.RpcError as error:
            self.why = f"{error.code()}: {error.details()}"
        self.ended["client"].set()

    def close(self) -> None:
        self._stream.cancel()
        self._over.put(None)
        self._channel.close()
        self._server.stop(0).wait()
        self.link.close()


@pytest.fixture
def talks() -> Iterator[dict[str, Talk]]:
    """Filled by the tests."""
    begun: dict[str, Talk] = {}
    yield begun
    for talk in begun.values():
        talk.close()


def test_both_ends_miss_a_peer_that_has_vanished_long_before_grpc_would(talks: dict[str, Talk]) -> None:
    for name, (channel, server) in PAIRS.items():
        talks[name] = Talk(quicker(channel, PINGS), quicker(server, PINGS))
    for talk in talks.values():
        talk.link.stall()
    deadline = time.monotonic() + BOUND_S
    for name, talk in talks.items():
        for end, ended in talk.ended.items():
            assert ended.wait(max(0.0, deadline - time.monotonic())), f"the {end} of {name}"
        assert talk.why.startswith("StatusCode.UNAVAILABLE"), name


@pytest.mark.thorough
def test_a_stream_on_which_nothing_is_said_lasts(talks: dict[str, Talk]) -> None:
    for name, (channel, server) in PAIRS.items():
        patient = PINGS - ANSWERS  # pings as often, but all the time to answer them: the machine may be busy
        talks[name] = Talk(quicker(channel, patient), quicker(server, patient))
    time.sleep(NOTHING_IS_SAID_S)
    for name, talk in talks.items():
        assert not any(ended.is_set() for ended in talk.ended.values()), f"{name}: {talk.why}"
