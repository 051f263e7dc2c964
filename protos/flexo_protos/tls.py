"""TLS for flexod's callers: the authority of flexod's certificate, and the reason when TLS fails.

A caller uses TLS if $FLEXO_TLS_CA names a file with the authority's certificates, or if `[tls] ca` in
$FLEXO_CONFIG or /etc/flexo/flexo.toml does. The variable comes first; set but empty, it turns TLS off.

Jobs and the flexo command share this module, so that both encrypt under the same conditions. gRPC does not
tell the reason of a failed handshake, or not clearly. So this module dials once more with Python's own ssl.
"""

from __future__ import annotations

import os
import socket
import ssl
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

VARIABLE = "FLEXO_TLS_CA"
CONFIG = "/etc/flexo/flexo.toml"
TRIES_FOR_S = 3.0
"""Longest time for the dial that finds out why TLS fails."""


class AuthorityUnusable(Exception):
    """The authority's certificates cannot be read; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The signer of flexod's certificate."""

    file: Path
    """File with the authority's certificates, in PEM."""
    source: str
    """The setting that names the file, for messages."""


def authority(environment: Mapping[str, str] = os.environ) -> Authority | None:
    """The configured authority; None: flexod is called without TLS. Raises AuthorityUnusable."""
    if VARIABLE in environment:
        file = environment[VARIABLE]
        return Authority(Path(file), f"${VARIABLE}") if file else None
    path = Path(environment.get("FLEXO_CONFIG") or CONFIG)
    try:
        with path.open("rb") as toml:
            section = tomllib.load(toml).get("tls")
    except (OSError, ValueError):  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        return None
    named = section.get("ca") if isinstance(section, dict) else None
    if named is None:
        return None
    if not isinstance(named, str) or not named.startswith("/"):
        raise AuthorityUnusable(f"[tls] ca in {path} is {named!r}: it takes the absolute path of a file")
    return Authority(Path(named), f"[tls] ca in {path}")


def channel(
    target: str, options: Sequence[tuple[str, object]], environment: Mapping[str, str] = os.environ
) -> grpc.Channel:
    """A channel to flexod at `target` (host:port), as the configuration says. Raises AuthorityUnusable."""
    signed_by = authority(environment)
    if signed_by is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(_read(signed_by)), options=options)


def what_is_wrong(target: str, environment: Mapping[str, str] = os.environ) -> str:
    """Why TLS to `target` (host:port) fails, in a sentence; "" if TLS is not the cause.

    Call it after a failed call: it dials once more.
    """
    try:
        signed_by = authority(environment)
        context = _trusting(signed_by)
    except AuthorityUnusable as error:
        return str(error)
    host, _, port = target.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal():
        return ""
    try:
        with (
            socket.create_connection((host, int(port)), TRIES_FOR_S) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return "" if signed_by else f"it speaks TLS, and neither [tls] ca nor ${VARIABLE} is set here"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not believed: {error.verify_message} ({_said_by(signed_by)})"
    except ssl.SSLError as error:
        in_the_clear = signed_by is not None and error.reason == "WRONG_VERSION_NUMBER"
        return f"it does not speak TLS, and {_said_by(signed_by)} wants it to" if in_the_clear else ""
    except (OSError, ValueError):  # no server or no host is there, so TLS is not the cause
        return ""


def _trusting(signed_by: Authority | None) -> ssl.SSLContext:
    """A client's context. Without an authority it accepts any certificate, and serves for this check only."""
    if signed_by is not None:
        context = ssl.create_default_context(cadata=_read(signed_by).decode("ascii"))
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _read(signed_by: Authority) -> bytes:
    """The certificates in the authority's file. Raises AuthorityUnusable if it has none, or is unreadable."""
    try:
        text = signed_by.file.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise AuthorityUnusable(f"{signed_by.file} ({signed_by.source}) cannot be read: {why}") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        why = f"{signed_by.file} ({signed_by.source}) holds no certificates in PEM"
        raise AuthorityUnusable(why) from error
    return text


def _said_by(signed_by: Authority | None) -> str:
    return f"{signed_by.source}: {signed_by.file}" if signed_by else "nobody"
