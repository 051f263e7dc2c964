"""Brings the token of a flex application to the job's ApplicationMaster, where there is Kerberos.

Without Kerberos the flex application is unmanaged, and the ResourceManager gives its token to its user. With
Kerberos it compares the user's short name with the whole principal, and gives it to nobody (Hadoop 3.5.0).
Then the flex application has a container of its own, as every managed one has. YARN puts the token there; a
shell sends it here and sleeps. The container ends with the application.

Each side has two passwords, made for this one time. The container says the first and hears the second before
it sends the token: whoever has got the port of an ApplicationMaster that has ended knows neither. A token
that comes must name the application, for somebody else's would lead this job's satellites to them.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn import credentials
from flexo_yarn.credentials import AM_RM_KIND
from flexo_yarn.launch import command_line, environment
from flexo_yarn.records import resource

CONTAINER: Final = resource(64, 1, 0)
"""What that container takes; YARN makes its smallest container of it."""
_LARGEST = 64 << 10
_CALLER_S = 5.0
_HELLO, _PROOF = "FLEXO_TOKEN_HELLO", "FLEXO_TOKEN_PROOF"
"""Variables of the container: what it says, and what it must hear."""
_SCRIPT: Final = """\
until (
    exec 3<>/dev/tcp/{host}/{port} && echo "$FLEXO_TOKEN_HELLO" >&3 && read -r -t 10 said <&3 &&
        [ "$said" = "$FLEXO_TOKEN_PROOF" ] && cat "$HADOOP_TOKEN_FILE_LOCATION" >&3
); do sleep 1; done
sleep infinity
"""


class TokenReceiver:
    """Listens at `address` for the token of one application. Close it."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._server = socket.create_server((address, 0), family=family)
        self._address: tuple[str, int] = self._server.getsockname()[:2]
        self._hello, self._proof = secrets.token_hex(32), secrets.token_hex(32)

    def launch(self) -> pb.ContainerLaunchContext:
        """What the application's own container runs: bash, which every NodeManager needs itself."""
        host, port = self._address
        script = _SCRIPT.format(host=host, port=port)
        words = {_HELLO: self._hello, _PROOF: self._proof}
        return pb.ContainerLaunchContext(
            command=[command_line(["bash", "-c", script])],
            environment=environment(words),
        )

    def token(self, application: pb.ApplicationId, within_s: float) -> Token | None:
        """The token of this application, if it comes within this time. Whatever else comes is ignored."""
        deadline = time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._server.settimeout(left_s)
            with suppress(OSError, ValueError):
                token = credentials.from_bytes(self._received()).of_kind(AM_RM_KIND)
                if token is not None and application_of(token) == application:
                    return token
        return None

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _received(self) -> bytes:
        """What the next caller sends. Raises OSError, also for one that is slow, and ValueError."""
        connection, _ = self._server.accept()
        deadline = time.monotonic() + _CALLER_S
        with connection:
            hello = _read(connection, len(self._hello) + 1, deadline)
            if not hmac.compare_digest(hello, f"{self._hello}\n".encode()):
                raise ValueError("not the application's container")
            connection.sendall(f"{self._proof}\n".encode())
            return _read(connection, _LARGEST, deadline)


def _read(connection: socket.socket, most: int, deadline: float) -> bytes:
    """What comes until the caller closes the connection, up to `most` bytes. Raises OSError."""
    received = bytearray()
    while len(received) < most:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        if not (part := connection.recv(most - len(received))):
            break
        received += part
    return bytes(received)


def application_of(token: Token) -> pb.ApplicationId:
    """The application whose ApplicationMaster has this token. Raises ValueError."""
    try:
        return pb.AmRmTokenIdentifier.FromString(token.identifier).attempt_id.application_id
    except DecodeError as error:
        raise ValueError("no token of an ApplicationMaster") from error
