"""A raw HTTP/2 client that can send a gRPC server data that no gRPC client would send."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hpack

Address = tuple[str, int] | str
"""A host and a TCP port, or the path of a Unix socket."""


@dataclass
class Seen:
    """The server's messages on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    """Headers and trailers."""
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None
    """The error code of the stream's RST_STREAM."""

    @property
    def status(self) -> int | None:
        """The grpc-status; None if the server has sent none."""
        text = self.headers.get("grpc-status")
        return None if text is None else int(text)


class RawConnection:
    """One connection. It reads only when told to, and returns flow-control credit only if `generous`."""

    def __init__(self, address: Address, *, window: int = 65_535, generous: bool = True) -> None:
        """`window`: how many bytes of each stream the server may send ahead."""
        self._generous = generous
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(10)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, timeout=10)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                h2.settings.SettingCodes.ENABLE_PUSH: 0,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window,
            },
        )
        self.h2.initiate_connection()
        self.streams: dict[int, Seen] = {}
        self.goaway: int | None = None
        """The error code of the server's GOAWAY."""
        self.closed = False
        """True if the server has closed the connection."""
        self.acknowledged_pings = 0
        self.greeted = False
        """True if the server has sent its settings."""
        self._next = 1
        self.flush()
        self.read(2.0, until=lambda: self.greeted or self.closed)

    @property
    def most_streams(self) -> int | None:
        """The server's SETTINGS_MAX_CONCURRENT_STREAMS; None if the server has sent none."""
        said = self.h2.remote_settings.get(h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS)
        return None if said is None or said >= 1 << 31 else said

    def call(self, path: str, metadata: Iterable[tuple[str, str]] = (), *, end: bool = False) -> int:
        """Send the headers of a call, nothing more; returns the stream's number."""
        stream = self.h2.get_next_available_stream_id()
        self.streams[stream] = Seen()
        self.h2.send_headers(stream, _headers(path, metadata), end_stream=end)
        return stream

    def calls(self, path: str, count: int, metadata: Iterable[tuple[str, str]] = ()) -> None:
        """Send the headers of `count` calls at once, past the server's limit of streams.

        This bypasses h2's own bookkeeping, so nothing more can be sent on these streams.
        """
        first = max(self._next, self.h2.get_next_available_stream_id())
        self._next = first + 2 * count
        block = hpack.Encoder().encode(_headers(path, metadata), huffman=False)
        first_frame, rest = (
            block[:16_000],
            [block[at : at + 16_000] for at in range(16_000, len(block), 16_000)],
        )
        for stream in range(first, first + 2 * count, 2):
            frames = frame(1, 0 if rest else 4, stream, first_frame)
            for number, piece in enumerate(rest):
                frames += frame(9, 4 if number == len(rest) - 1 else 0, stream, piece)
            self.raw(frames)

    def say(self, stream: int, message: bytes, *, part: float = 1.0, end: bool = True) -> None:
        """Queue a gRPC message, or only its first `part`."""
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        whole = part >= 1.0
        framed = framed if whole else framed[: max(1, int(len(framed) * part))]
        most = self.h2.max_outbound_frame_size
        for start in range(0, len(framed), most):
            piece = framed[start : start + most]
            self.h2.send_data(stream, piece, end_stream=end and whole and start + most >= len(framed))

    def flush(self) -> None:
        """Send all queued data. If the server has hung up, set `closed`."""
        try:
            self.socket.sendall(self.h2.data_to_send())
        except OSError:
            self.closed = True

    def raw(self, data: bytes) -> None:
        """Send bytes as they are, past h2's rules."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def read(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Read from the server for `seconds`, or until `until` is true."""
        deadline = time.monotonic() + seconds
        while not self.closed and not until() and (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 18)
            except TimeoutError:
                return
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return
            self._hear(data)

    def _hear(self, data: bytes) -> None:
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.closed = True
            return
        for event in events:
            if isinstance(event, h2.events.RemoteSettingsChanged):
                self.greeted = True
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goaway = int(event.error_code or 0)
            elif isinstance(event, h2.events.PingAckReceived):
                self.acknowledged_pings += 1
            else:
                self._hear_on_a_stream(event)
        self.flush()

    def _hear_on_a_stream(self, event: h2.events.Event) -> None:
        seen = self.streams.setdefault(getattr(event, "stream_id", None) or 0, Seen())
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                seen.headers.update((str(name), str(value)) for name, value in event.headers)
            case h2.events.DataReceived():
                seen.data += event.data
                if self._generous:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                seen.ended = True
            case h2.events.StreamReset():
                seen.reset, seen.ended = int(event.error_code), True

    def outcome(self, stream: int, seconds: float = 10.0) -> Seen:
        """The messages of a stream, after it has ended or after `seconds`."""
        seen = self.streams[stream]
        self.read(seconds, until=lambda: seen.ended)
        return seen

    def close(self) -> None:
        """Close the socket, without a GOAWAY."""
        self.socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _headers(path: str, metadata: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "flexod"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
