"""gRPC options with which an end of a connection detects that its peer has vanished.

They are for channels and servers alike. A host that loses its power or its network closes no connection. Only
unanswered pings show that it is gone.
"""

from __future__ import annotations

Options = tuple[tuple[str, int], ...]


def noticing(quiet_s: float, answer_s: float) -> Options:
    """Options: ping the other end after `quiet_s` seconds of silence, and give it up `answer_s` later.

    gRPC's two keepalive options are not enough. A ping has a timeout of its own, one minute. Pings become
    rare on a stream without messages (gRPC core, keepalive.md and chttp2_transport.cc; tried with grpcio
    1.85).
    """
    answer_ms = round(answer_s * 1000)
    return (
        ("grpc.keepalive_time_ms", round(quiet_s * 1000)),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )


def bearing_pings(every_s: float) -> Options:
    """Options of a server: accept pings every `every_s` seconds without closing the connection
    (too_many_pings).

    Without them, three pings within five minutes are too many while the server sends nothing. gRPC core calls
    the option GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, but ignores an option spelled like that.
    """
    return (("grpc.http2.min_ping_interval_without_data_ms", round(every_s * 1000)),)
