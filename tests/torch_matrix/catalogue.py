"""Reads scripts.toml: which public scripts are run, where they come from and what they need."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

CATALOGUE = Path(__file__).with_name("scripts.toml")


@dataclass(frozen=True, slots=True)
class Script:
    """One script. Exactly one of `archive` and `repository` is given."""

    name: str
    path: str
    sha256: str
    material: str
    archive: str = ""
    """ "NAME==VERSION" of a source archive on PyPI."""
    archive_sha256: str = ""
    repository: str = ""
    """ "OWNER/NAME" on GitHub."""
    commit: str = ""
    data: str = ""
    """Where in the source the script looks for its data; "" if nowhere there."""
    data_here: str = ""
    """Where it looks for them from the folder in which it runs: "../data"."""
    epochs: int = 0
    """How often each sample is used; 0 if samples cannot be recognised in what the model is given."""
    keeps_size: str = ""
    """A part of the reason that flexo gives, if the script cannot be elastic."""
    arguments: str = ""
    longer: str = ""
    """More arguments, with which the script trains for hours; "" if it has none."""
    environment: tuple[str, ...] = ()
    """ "NAME=VALUE" """

    @property
    def folder(self) -> str:
        """The name of the folder that has the source."""
        return self.archive.replace("==", "-") if self.archive else self.repository.replace("/", "+")


def read() -> list[Script]:
    """All scripts. Raises TypeError if an entry has a name that Script has not."""
    entries = tomllib.loads(CATALOGUE.read_text())["script"]
    return [Script(**{**each, "environment": tuple(each.get("environment", ()))}) for each in entries]
