"""The token of a flex application with Kerberos: what its container sends, and what strangers send."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn import credentials
from flexo_yarn.credentials import AM_RM_KIND, Credentials
from horovod_elastic.platforms.yarn.flex_token import TokenReceiver

OWN, OTHER = (pb.ApplicationId(cluster_timestamp=1_700_000_000_000, id=number) for number in (7, 8))


def token_of(application: pb.ApplicationId) -> Token:
    attempt = pb.ApplicationAttemptId(application_id=application, attempt_id=1)
    identifier = pb.AmRmTokenIdentifier(attempt_id=attempt).SerializeToString()
    return Token(identifier=identifier, password=b"secret", kind=AM_RM_KIND, service="")


def sent(*tokens: Token) -> bytes:
    return Credentials({str(number): each for number, each in enumerate(tokens)}).to_bytes()


@pytest.fixture
def receiver() -> Iterator[TokenReceiver]:
    found = TokenReceiver("127.0.0.1")
    yield found
    found.close()


def words_of(receiver: TokenReceiver) -> dict[str, str]:
    """The variables of the container."""
    return {each.key: each.value for each in receiver.launch().environment}


def address_in(receiver: TokenReceiver) -> tuple[str, int]:
    (command,) = receiver.launch().command
    match = re.search(r"/dev/tcp/([\d.]+)/(\d+)", command)
    assert match is not None
    return match[1], int(match[2])


def send(receiver: TokenReceiver, *contents: bytes, hello: bool = True) -> None:
    """Send these one after the other, each on a connection of its own, as the container does."""

    def send_all() -> None:
        words = words_of(receiver)
        for each in contents:
            with socket.create_connection(address_in(receiver)) as connection:
                if hello:
                    connection.sendall(f"{words['FLEXO_TOKEN_HELLO']}\n".encode())
                    assert connection.makefile().readline().strip() == words["FLEXO_TOKEN_PROOF"]
                connection.sendall(each)

    threading.Thread(target=send_all, daemon=True).start()


def test_the_token_of_the_application_comes_and_nothing_else_counts(receiver: TokenReceiver) -> None:
    strange = [
        b"",
        b"hello",
        sent(token_of(OTHER)),
        sent(Token(identifier=b"\xff", password=b"", kind=AM_RM_KIND, service="")),
    ]
    send(receiver, *strange, sent(token_of(OWN)))
    assert receiver.token(OWN, 10.0) == token_of(OWN)


def test_without_the_token_the_wait_ends(receiver: TokenReceiver) -> None:
    send(receiver, sent(token_of(OTHER)))
    assert receiver.token(OWN, 0.3) is None


def test_nobody_hears_anything_who_does_not_know_the_first_password(receiver: TokenReceiver) -> None:
    send(receiver, b"0" * 65, sent(token_of(OWN)), hello=False)
    assert receiver.token(OWN, 0.5) is None


def run(receiver: TokenReceiver, folder: Path) -> subprocess.Popen[bytes]:
    """The container's command, as the NodeManager runs it: in double quotes, within another shell."""
    path = folder / "tokens"
    path.write_bytes(sent(token_of(OWN)))
    (command,) = receiver.launch().command
    script = f'exec /bin/bash -c "{command.replace("<LOG_DIR>", str(folder))}"'
    environment = {**os.environ, **words_of(receiver), credentials.VARIABLE: str(path)}
    return subprocess.Popen(["bash", "-c", script], env=environment, start_new_session=True)


@pytest.mark.processes
def test_what_the_container_runs_sends_its_credentials_and_stays(
    receiver: TokenReceiver, tmp_path: Path
) -> None:
    process = run(receiver, tmp_path)
    try:
        assert receiver.token(OWN, 10.0) == token_of(OWN)
        with pytest.raises(subprocess.TimeoutExpired):  # YARN would end the application with it
            process.wait(0.5)
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.processes
def test_who_has_got_the_port_of_an_applicationmaster_that_has_ended_does_not_hear_the_token(
    receiver: TokenReceiver, tmp_path: Path
) -> None:
    address, words = address_in(receiver), words_of(receiver)
    receiver.close()
    with socket.create_server(address) as stranger:
        process = run(receiver, tmp_path)
        try:
            for answer in (b"", b"guessed\n", f"{words['FLEXO_TOKEN_HELLO']}\n".encode()):
                connection, _ = stranger.accept()
                with connection, connection.makefile("rb") as heard:
                    assert heard.readline().decode().strip() == words["FLEXO_TOKEN_HELLO"]
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    assert heard.read() == b""
        finally:
            os.killpg(process.pid, 9)
            process.wait()
