"""Slurm's sack as a proof of who calls: for which call, how long, once, by one algorithm and one key."""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sack_double import CREATE, GID, KEY, UID, Kiosk, encoded, kiosk, signature, token

from flexo_protos.credentials import (
    LIFETIME_S,
    SCHEME_VARIABLE,
    SLURM,
    Caller,
    Munge,
    NotAuthentic,
    new_authenticator,
    scheme_of_process,
)
from flexo_protos.sack import SOCKET_VARIABLE, Sack
from flexo_protos.used_once import UsedOnce

METHOD = "/flexo.v1.Service/Method"
NUMBER = "0123456789abcdef" * 2
PAYLOAD = f"flexo {NUMBER} {METHOD}".encode()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Kiosk]:
    with kiosk(tmp_path) as made:
        yield made


@pytest.fixture
def sack(served: Kiosk, tmp_path: Path) -> Sack:
    return Sack(str(tmp_path / "sack"), used=UsedOnce())


def refused(sack: Sack, credential: str, method: str = METHOD) -> str:
    with pytest.raises(NotAuthentic) as caught:
        sack.verify(credential, method)
    return str(caught.value)


def test_a_caller_is_whom_the_kiosk_names_once_and_for_the_method_that_was_meant(sack: Sack) -> None:
    made = sack.credential(METHOD)
    assert METHOD + "x" in refused(sack, made, METHOD + "x")
    assert sack.verify(made, METHOD) == Caller(UID, GID)
    assert "used before" in refused(sack, made)


def test_two_credentials_of_one_second_are_both_good(sack: Sack) -> None:
    first, second = sack.credential(METHOD), sack.credential(METHOD)
    assert first != second
    assert sack.verify(first, METHOD) == sack.verify(second, METHOD)


def test_a_signature_that_is_spelled_otherwise_is_the_same_credential(sack: Sack) -> None:
    made = token(PAYLOAD)
    assert sack.verify(made, METHOD)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = letters.index(made[-1])
    others = [made[:-1] + letters[last ^ bits] for bits in (1, 2, 3)]  # the two bits that mean nothing
    decoded = {base64.urlsafe_b64decode(each.rpartition(".")[2] + "=") for each in (made, *others)}
    assert len(decoded) == 1
    assert all("used before" in refused(sack, each) for each in others)


@pytest.mark.parametrize("alg", ["none", "None", "RS256", "HS512", "hs256", ""])
def test_a_token_of_another_algorithm_is_refused_before_the_kiosk_is_asked(
    sack: Sack, served: Kiosk, alg: str
) -> None:
    assert "HS256" in refused(sack, token(PAYLOAD, alg=alg))
    assert served.questions == []


def test_a_token_whose_header_alone_was_changed_to_no_algorithm_is_refused(sack: Sack) -> None:
    _, claims, said = token(PAYLOAD).split(".")
    for last in (said, ""):
        assert refused(sack, f"{encoded(json.dumps({'alg': 'none'}).encode())}.{claims}.{last}")


def test_a_token_of_another_key_is_refused(sack: Sack) -> None:
    assert "key" in refused(sack, token(PAYLOAD, b"another cluster's key of 32 byte"))


def test_no_claim_can_be_changed(sack: Sack) -> None:
    header, claims, said = token(PAYLOAD).split(".")
    changed = {**json.loads(base64.urlsafe_b64decode(claims + "==")), "uid": 0}
    assert "refused" in refused(sack, f"{header}.{encoded(json.dumps(changed).encode())}.{said}")


def test_the_kiosks_word_on_the_end_counts(sack: Sack) -> None:
    now = int(time.time())
    assert "refused" in refused(sack, token(PAYLOAD, iat=now - 50, exp=now - 10))


@pytest.mark.parametrize("off_s", [-LIFETIME_S - 5, LIFETIME_S + 5, 10**9])
def test_a_token_of_another_time_is_refused_whatever_its_end_is(sack: Sack, off_s: int) -> None:
    now = int(time.time())
    assert "minute" in refused(sack, token(PAYLOAD, iat=now + off_s, exp=now + 10**9))


@pytest.mark.parametrize("off_s", [-30, 30])
def test_clocks_may_differ_by_half_a_minute(sack: Sack, off_s: int) -> None:
    now = int(time.time())
    assert sack.verify(token(PAYLOAD, iat=now + off_s, exp=now + off_s + 60), METHOD)


def test_a_token_is_remembered_until_it_is_refused_for_its_time(served: Kiosk, tmp_path: Path) -> None:
    now, used = [time.time()], UsedOnce()
    sack = Sack(str(tmp_path / "sack"), clock=lambda: now[0], used=used)
    made = token(PAYLOAD, iat=int(now[0]), exp=int(now[0]) + 10**6)
    sack.verify(made, METHOD)
    for _ in range(20):
        now[0] += 5
        assert refused(sack, made)
    sack.verify(token(PAYLOAD.replace(b"0", b"1"), iat=int(now[0]), exp=int(now[0]) + 60), METHOD)
    assert len(used) == 1


@pytest.mark.parametrize("context", ["auth", "cred", "token", None])
def test_a_token_that_slurms_daemons_made_for_themselves_is_refused(sack: Sack, context: str | None) -> None:
    assert "sack" in refused(sack, token(PAYLOAD, context=context))


@pytest.mark.parametrize(
    "payload",
    [None, b"", b"\x01" + bytes(32), b"other 1 /m", b"flexo /m", b"flexo 1 /m", PAYLOAD[1:]],
)
def test_a_token_that_was_made_for_another_program_is_refused(sack: Sack, payload: bytes | None) -> None:
    assert "another program" in refused(sack, token(payload))


@pytest.mark.parametrize(
    "changes",
    [{"uid": None}, {"uid": "0"}, {"uid": -1}, {"uid": 1 << 32}, {"uid": True}, {"gid": None}, {"iat": None},
     {"iat": "1"}, {"iat": 1.5}, {"uid": 0xFFFFFFFF}],
)  # fmt: skip
def test_a_token_without_a_user_or_a_time_is_refused(sack: Sack, changes: dict[str, object]) -> None:
    assert "names no user" in refused(sack, token(PAYLOAD, **changes))


@pytest.mark.parametrize(
    "text",
    ["", "x", "a.b", "a.b.c", "MUNGE:AwQFAAD:", "secret " + "00" * 32, "a.b.c.d", "\xe9.b.c", "x" * 20_000,
     f"{encoded(b'[]')}.{encoded(b'[]')}.x", f"{encoded(b'[' * 9000)}.b.c", "a.b.c\n"],
)  # fmt: skip
def test_what_is_no_token_is_refused_before_the_kiosk_is_asked(sack: Sack, served: Kiosk, text: str) -> None:
    assert refused(sack, text)
    assert served.questions == []


def test_the_kiosk_is_asked_in_slurms_own_words(sack: Sack, served: Kiosk) -> None:
    made = sack.credential(METHOD)
    sack.verify(made, METHOD)
    create, verify = served.questions
    version, length, question, anybody, size = struct.unpack("!HIIII", create[:18])
    assert (version >> 8, length, question) == (41, len(create) - 2, CREATE)
    assert (anybody, size, create[18:24]) == (0xFFFFFFFF, len(create) - 18, b"flexo ")
    assert verify[10:] == struct.pack("!I", len(made) + 1) + made.encode() + b"\0"


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\0", b"\0\0\0\2x\0", b"\0" * 40_000])
def test_a_kiosk_that_gives_no_token_gives_no_credential(sack: Sack, served: Kiosk, answer: bytes) -> None:
    served.answer = answer
    with pytest.raises(NotAuthentic):
        sack.credential(METHOD)


@pytest.mark.parametrize("answer", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\0\0"])
def test_only_a_plain_yes_of_the_kiosk_is_one(sack: Sack, served: Kiosk, answer: bytes) -> None:
    served.answer = answer
    assert "refused" in refused(sack, token(PAYLOAD))


def test_without_a_kiosk_the_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotAuthentic, match=r"none.*No such file"):
        Sack(str(tmp_path / "none")).credential(METHOD)
    with pytest.raises(NotAuthentic, match=r"/run/slurm/sack\.socket.*/run/slurmctld/sack\.socket"):
        Sack().credential(METHOD)


def test_slurms_own_variable_names_the_socket(
    served: Kiosk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "sack"))
    assert new_authenticator(SLURM).credential(METHOD).count(".") == 2


def test_the_scheme_is_the_environments_else_the_configured_one(tmp_path: Path) -> None:
    toml = tmp_path / "flexo.toml"
    toml.write_text('[service]\nauthentication = "slurm"\n')
    assert scheme_of_process({"FLEXO_CONFIG": str(toml)}) == SLURM
    assert scheme_of_process({"FLEXO_CONFIG": str(toml), SCHEME_VARIABLE: "munge"}) == "munge"
    for text in ("", "[service]\n", "service = 1\n", "no toml"):
        toml.write_text(text)
        assert scheme_of_process({"FLEXO_CONFIG": str(toml)}) == "munge"


def test_every_part_of_flexo_gets_it_where_the_configuration_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(new_authenticator(), Munge)
    toml = tmp_path / "flexo.toml"
    toml.write_text('[service]\nauthentication = "slurm"\n')
    monkeypatch.setenv("FLEXO_CONFIG", str(toml))
    assert isinstance(new_authenticator(), Sack)


def test_the_double_signs_as_an_independent_library_does() -> None:
    signed = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpYXQiOjEsInVpZCI6NX0"
    assert signature(signed, KEY) == "lVQYqlnf9E8W-j26dQjcuoERoMg2bnT6eysA-4yuVTI"  # of PyJWT 2.6.0
