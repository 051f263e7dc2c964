"""DIGEST-MD5: the example of RFC 2831, and messages that were changed, repeated or left out."""

from __future__ import annotations

import pytest

from flexo_yarn.ipc.digest_md5 import DigestMd5, read_challenge, signed
from flexo_yarn.ipc.protection import AUTH, CONFIDENTIALITY, INTEGRITY, Protection

RFC = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'


def test_the_example_of_the_rfc_is_proved_to_the_server_and_by_it() -> None:
    proof = DigestMd5(
        read_challenge(RFC), "chris", "secret", "imap/elwood.innosoft.com", cnonce="OA6MHXh6VqTrRk"
    )
    assert b"response=d388dad90d4bbd760a152321f2143af7," in proof.response()
    assert proof.is_proved_by(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")
    assert not proof.is_proved_by(b"rspauth=ea40f60335c427b5527b84dbabcdfffe")
    assert proof.protection() is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b'realm="r",qop="auth"', "nonce"),
        (b'nonce="n",qop="auth-more"', "auth-more"),
        (b'nonce="n",qop="auth-conf",cipher="3des,des"', "3des, des"),
    ],
)
def test_a_challenge_that_this_client_cannot_answer_is_refused(text: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        read_challenge(text)


def test_of_several_qualities_the_first_is_taken() -> None:
    assert read_challenge(b'nonce="n",qop="auth-int,auth"').quality == INTEGRITY
    assert read_challenge(b'nonce="n"').quality == AUTH


def both_ends(quality: str) -> tuple[Protection, Protection]:
    """The client's and the server's end of one connection."""
    confidential = quality == CONFIDENTIALITY
    return signed(b"a1", confidential=confidential), signed(b"a1", confidential=confidential, client=False)


@pytest.mark.parametrize("quality", [INTEGRITY, CONFIDENTIALITY])
def test_what_one_end_protects_the_other_reads_in_order(quality: str) -> None:
    client, server = both_ends(quality)
    for message in (b"", b"one", b"two" * 1000):
        assert client.unwrap(server.wrap(message)) == message
        assert server.unwrap(client.wrap(message)) == message
    assert (b"secret" in client.wrap(b"secret")) is (quality == INTEGRITY)


@pytest.mark.parametrize("quality", [INTEGRITY, CONFIDENTIALITY])
def test_a_message_that_was_changed_repeated_or_left_out_is_refused(quality: str) -> None:
    client, server = both_ends(quality)
    changed = bytearray(server.wrap(b"message"))
    changed[0] ^= 1
    with pytest.raises(ValueError, match="changed"):
        client.unwrap(bytes(changed))

    client, server = both_ends(quality)
    first = server.wrap(b"message")
    client.unwrap(first)
    with pytest.raises(ValueError, match="order"):
        client.unwrap(first)

    client, server = both_ends(quality)
    server.wrap(b"left out")
    with pytest.raises(ValueError, match="order"):
        client.unwrap(server.wrap(b"message"))
