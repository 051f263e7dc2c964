"""Pages show what commands print: a block below the mark `executed` is run, and prints what it shows."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner
from written_pages import PAGES, ROOT, text_of

from flexo_cli.app import application
from flexo_cli.site.simulation import progress

_BLOCK = re.compile(r"<!-- executed -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ flexo (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def executed() -> Iterator[tuple[str, str, str]]:
    """The page, the arguments of `flexo`, and the output that the page shows."""
    for page in PAGES:
        for block in _BLOCK.findall(text_of(page)):
            for arguments, output in _COMMAND.findall(block):
                yield page, arguments, output


@pytest.mark.parametrize(("page", "arguments", "output"), list(executed()), ids=str)
def test_a_command_prints_what_its_page_shows(
    page: str, arguments: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)  # the repository's examples are there, and reports are written there
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", str(tmp_path))  # the page's reader has no Slurm on his machine
    for name in ("FLEXO_CONFIG", "FLEXO_DAEMON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "EVERY_S", math.inf)  # a slow machine says more than the page
    told = CliRunner().invoke(application(), shlex.split(arguments)).output
    assert [line.rstrip() for line in told.splitlines()] == output.splitlines()
    for report in tmp_path.glob("*.html"):  # a page links to it
        assert report.read_text() == (ROOT / "examples" / "site" / report.name).read_text()


def test_the_administrators_tutorial_shows_commands_that_are_executed() -> None:
    commands = {arguments.split()[0] for page, arguments, _ in executed() if "administrator" in page}
    assert commands >= {"whatif", "doctor"}
