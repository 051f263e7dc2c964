"""The keys of flexo.toml as a table for each section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import settings_help
from markdown_text import cell, code, table
from settings_help import Section

_HEAD: Final = ("key", "default", "what it is, and what it takes")


def parts() -> Mapping[str, str]:
    """A table for each section, by the name under which pages ask for it."""
    return {f"keys of [{section.name}]": _table(section) for section in settings_help.sections()}


def _table(section: Section) -> str:
    rows = (
        (code(key.name), code(key.default), f"{cell(key.text)} *Takes {cell(key.takes)}.*")
        for key in section.keys
    )
    return table(_HEAD, rows)
