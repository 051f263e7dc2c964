"""The common parts of the gRPC servers inside a job: one address, one free port, long streams both ways."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc

from horovod_elastic.network import NoAddress
from horovod_elastic.wire import server_options

MAX_STREAMS = 1024
CLOSE_WITHIN_S = 2.0
_Message = TypeVar("_Message")
_Outgoing = TypeVar("_Outgoing")


def listen_on(address: str) -> tuple[grpc.Server, str]:
    """A server on a free port of `address` only, not started yet, and its host:port. Raises NoAddress."""
    server = grpc.server(
        ThreadPoolExecutor(max_workers=MAX_STREAMS, thread_name_prefix="stream"), options=server_options()
    )
    host = f"[{address}]" if ":" in address else address
    try:
        port = server.add_insecure_port(f"{host}:0")
    except RuntimeError as error:
        raise NoAddress(
            f"cannot listen on {address}, the address of this node: is it a node of the job? ({error})"
        ) from error
    return server, f"{host}:{port}"


def first(requests: Iterator[_Message], context: grpc.ServicerContext) -> _Message:
    """The first message of a stream. A stream without a message is aborted."""
    try:
        return next(requests)
    except StopIteration:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "nothing was said")
        raise


def converse(
    requests: Iterator[_Message],
    context: grpc.ServicerContext,
    outbox: queue.SimpleQueue[_Outgoing | None],
    heard: Callable[[_Message], None],
    ended: Callable[[], None],
) -> Iterator[_Outgoing]:
    """Send the messages in `outbox`, while a thread passes incoming messages to `heard`.

    `ended`: called once, when either side has ended the stream.
    """

    def listen() -> None:
        try:
            for message in requests:
                heard(message)
        except Exception:
            # grpc raises a bare Exception here when the stream breaks; `ended` reports that.
            pass
        ended()
        outbox.put(None)

    threading.Thread(target=listen, name="listen", daemon=True).start()
    context.add_callback(lambda: outbox.put(None))
    while (message := outbox.get()) is not None:
        yield message
