"""The parts of every section of flexod's configuration file. A room's own section stands in its room."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict

PARTITION: Final = r"^[A-Za-z0-9_.@-]+$"
"""The name of a partition, as a pattern."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values of a key, in words: printed when it has another value."""

    begins: str
    policies: Callable[[], Sequence[str]] = tuple
    """Named at the end. Asked for late, because their modules take long to import."""

    @property
    def text(self) -> str:
        """The whole of it."""
        return f"{self.begins}{', '.join(self.policies())}"


def as_path(value: object) -> object:
    """A string as a path; anything else as it is, for the check that follows."""
    return Path(value) if isinstance(value, str) and value else value


def as_tuple(value: object) -> object:
    """A list as a tuple; anything else as it is, for the check that follows."""
    return tuple(value) if isinstance(value, list) else value


def absolute(path: Path | None) -> Path | None:
    """The path. Raises ValueError where it is relative."""
    if path is not None and not path.is_absolute():
        raise ValueError("not an absolute path")
    return path


def host_and_port(value: str) -> str:
    """The address. Raises ValueError where it is no host:port."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", value)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise ValueError("no host and port")
    return value


AbsolutePath = Annotated[Path, BeforeValidator(as_path)]


class Section(BaseModel):
    """A section of the file: frozen, its keys and their docstrings as the reference shows them."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, use_attribute_docstrings=True
    )


class KindSection(Section):
    """The section of a kind of cluster."""

    timeout_s: Annotated[float, Allowed("seconds")] = 20.0
    """How long one question to the cluster may take."""
