"""The commands of `flexo` for sites: the doctor, planning, and labs."""

from __future__ import annotations

from typing import Final

from flexo_cli.help_pages import Section
from flexo_cli.listed import Listed
from flexo_cli.site.json_command import JsonCommand

COMMANDS: Final[tuple[Listed, ...]] = (
    Listed("doctor", "flexo_cli.site.doctor", Section.ADMINISTRATION),
    Listed("whatif", "flexo_cli.site.whatif", Section.PLANNING, looks=JsonCommand),
    Listed("simulate", "flexo_cli.site.simulate", Section.PLANNING, looks=JsonCommand),
    Listed("forecast", "flexo_cli.site.forecast", Section.PLANNING),
    Listed("lab", "flexo_cli.site.lab", Section.LAB, attribute="app"),
)
OF_YARN: Final[tuple[Listed, ...]] = (Listed("doctor", "flexo_cli.site.yarn_doctor"),)
"""Commands of `flexo yarn`."""
