"""Hadoop's credentials file: tokens and secrets that travel with a container (Credentials.java, version 0).

The NodeManager writes the file for each container and names it in HADOOP_TOKEN_FILE_LOCATION.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flexo_protos.hadoop.ipc_pb2 import Token

VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
"""The environment variable with the path of a container's credentials file."""
AM_RM_KIND = "YARN_AM_RM_TOKEN"
"""The kind of the token with which an ApplicationMaster calls the ResourceManager."""
RM_KIND = "RM_DELEGATION_TOKEN"
"""The kind of the token with which a user's processes without tickets do so, where there is Kerberos."""
_MAGIC, _VERSION = b"HDTS", 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Tokens by alias, and secrets by name."""

    tokens: Mapping[str, Token] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict)

    def of_kind(self, kind: str) -> Token | None:
        """The first token of this kind."""
        return next((token for token in self.tokens.values() if token.kind == kind), None)

    def without(self, kind: str) -> Credentials:
        """The same without tokens of this kind."""
        kept = {alias: token for alias, token in self.tokens.items() if token.kind != kind}
        return Credentials(kept, self.secrets)

    def to_bytes(self) -> bytes:
        """The file's content."""
        parts = [_MAGIC, bytes([_VERSION]), _number(len(self.tokens))]
        for alias, token in self.tokens.items():
            parts += [_text(alias), _bytes(token.identifier), _bytes(token.password)]
            parts += [_text(token.kind), _text(token.service)]
        parts.append(_number(len(self.secrets)))
        for name, secret in self.secrets.items():
            parts += [_text(name), _bytes(secret)]
        return b"".join(parts)


def read(path: Path) -> Credentials:
    """The credentials in a file. Raises OSError, and ValueError if it is no credentials file."""
    try:
        return from_bytes(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def from_bytes(content: bytes) -> Credentials:
    """The credentials in a file's content. Raises ValueError."""
    if content[: len(_MAGIC)] != _MAGIC or len(content) < 6:
        raise ValueError("not a credentials file of Hadoop")
    if content[len(_MAGIC)] != _VERSION:
        raise ValueError(f"a credentials file of version {content[len(_MAGIC)]}; allowed: {_VERSION}")
    reader = _Reader(content, len(_MAGIC) + 1)
    tokens = {}
    for _ in range(reader.number()):
        alias = reader.text()
        tokens[alias] = Token(
            identifier=reader.value(), password=reader.value(), kind=reader.text(), service=reader.text()
        )
    return Credentials(tokens, {reader.text(): reader.value() for _ in range(reader.number())})


class _Reader:
    """Reads Hadoop's variable-length numbers and what stands after its length (WritableUtils.java)."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at

    def number(self) -> int:
        first = int.from_bytes(self._take(1), "big", signed=True)
        if first >= -112:
            return first
        negative = first < -120
        value = int.from_bytes(self._take(-first - (120 if negative else 112)), "big")
        return ~value if negative else value

    def value(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        return self.value().decode()

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._content):
            raise ValueError("the file ends too early")
        taken, self._at = self._content[self._at : end], end
        return taken


def _number(value: int) -> bytes:
    """A number of 0 or more in Hadoop's variable length."""
    if value <= 127:
        return bytes([value])
    size = (value.bit_length() + 7) // 8
    return (-112 - size).to_bytes(1, "big", signed=True) + value.to_bytes(size, "big")


def _bytes(value: bytes) -> bytes:
    return _number(len(value)) + value


def _text(value: str) -> bytes:
    return _bytes(value.encode())
