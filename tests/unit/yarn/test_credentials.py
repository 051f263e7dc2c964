"""Credentials files: what is written is read, and what is no such file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn import credentials
from flexo_yarn.credentials import AM_RM_KIND, Credentials

texts = st.text(max_size=300)
secret_bytes = st.binary(max_size=70000)
tokens = st.builds(Token, identifier=secret_bytes, password=st.binary(), kind=texts, service=texts)


@given(st.dictionaries(texts, tokens, max_size=3), st.dictionaries(texts, st.binary(max_size=300)))
def test_what_is_written_is_read(tokens: dict[str, Token], secrets: dict[str, bytes]) -> None:
    written = Credentials(tokens, secrets)
    assert credentials.from_bytes(written.to_bytes()) == written


def test_a_file_of_hadoop_is_read(tmp_path: Path) -> None:
    """Two bytes of a length, as Hadoop writes numbers above 127 (WritableUtils.writeVInt)."""
    path = tmp_path / "container_tokens"
    identifier = b"i" * 200
    path.write_bytes(
        b"HDTS\0" + b"\x01" + b"\x05alias" + b"\x8f\xc8" + identifier + b"\x02pw\x04kind\x00" + b"\x00"
    )
    token = credentials.read(path).of_kind("kind")
    assert token == Token(identifier=identifier, password=b"pw", kind="kind", service="")


@pytest.mark.parametrize(
    "content", [b"", b"HDTS", b"HDTS\x01\x00\x00", b"PK\x03\x04 zip", b"HDTS\0\x7f", b"HDTS\0\x01\x05al"]
)
def test_what_is_no_credentials_file_is_refused_by_its_path(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "container_tokens"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="container_tokens"):
        credentials.read(path)


def test_a_container_is_not_given_its_application_masters_token() -> None:
    own = Token(identifier=b"1", password=b"p", kind=AM_RM_KIND, service="")
    other = Token(identifier=b"2", password=b"p", kind="HDFS_DELEGATION_TOKEN", service="nn:8020")
    given_on = Credentials({"": own, "nn": other}, {"key": b"s"}).without(AM_RM_KIND)
    assert given_on == Credentials({"nn": other}, {"key": b"s"})
