"""The keys of flexo.toml as data, for the manual page flexo.toml(5) and the reference on the site.

The data comes from `flexo.config`: sections and keys in their order there, their defaults and docstrings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flexo.config import Settings, allowed, section


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section."""

    name: str
    default: str
    """Default, written as TOML; "unset" for None, which TOML cannot express."""
    takes: str
    """The allowed values, in the words of the error message."""
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the file."""

    name: str
    text: str
    keys: tuple[Key, ...]


def sections() -> tuple[Section, ...]:
    """All sections of flexo.toml."""
    return tuple(_section(name) for name in Settings.model_fields)


def _section(name: str) -> Section:
    model = section(name)
    _, _, text = (model.__doc__ or "").partition(": ")
    keys = (
        Key(key, toml(field.default), allowed(name, key), " ".join((field.description or "").split()))
        for key, field in model.model_fields.items()
    )
    return Section(name, text[:1].upper() + text[1:], tuple(keys))


def toml(value: object) -> str:
    """`value`, written as TOML; "unset" for None."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {toml(each)}' for key, each in value.items())} }}" if value else "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return f"{value:g}"
