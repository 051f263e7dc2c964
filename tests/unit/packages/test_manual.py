"""The manual pages: one for each command, made of its own help, and roff that formats without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import manual
import pytest
import typer

from flexo.config import Settings
from flexo_cli.app import application
from flexo_cli.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def pages() -> dict[str, manual.Page]:
    return {page.name: page for page in [*manual.pages(), *manual.plugin_pages()]}


def test_every_command_flexod_and_its_configuration_have_a_page(pages: dict[str, manual.Page]) -> None:
    group = typer.main.get_command(application())
    assert isinstance(group, typer.core.TyperGroup)
    shown = {f"flexo-{name}" for name, command in group.commands.items() if not command.hidden}
    own = {page.name for page in manual.pages()}
    assert own == {"flexo", "flexod", "flexo.toml", *shown}
    assert pages["flexod"].path == Path("man8/flexod.8")


def test_a_page_has_the_options_exit_codes_and_variables_of_its_command(
    pages: dict[str, manual.Page],
) -> None:
    text = pages["flexo-scale"].text
    assert r"\fB\-\-node NODE\fR" in text
    assert "\\fBJOB\\fR\n" in text
    for code in ExitCode:
        assert f"\\fB{code.value}\\fR\n{code.meaning.replace('-', chr(92) + '-')}" in text
    assert "FLEXO_DAEMON" in text


def test_a_group_s_page_has_its_commands_and_a_delegate_s_what_it_says_itself(
    pages: dict[str, manual.Page],
) -> None:
    assert ".SH FLEXO LAB UP" in pages["flexo-lab"].text
    assert "#SBATCH" in pages["flexo-run"].text
    assert r"\-\-check\-config" in pages["flexod"].text


def test_the_page_of_the_configuration_has_every_key_with_its_default_and_what_it_takes(
    pages: dict[str, manual.Page],
) -> None:
    text = pages["flexo.toml"].text
    for section, field in Settings.model_fields.items():
        part = text.split(f".SH [{section}]")[1].split("\n.SH ")[0]
        for key in field.annotation.model_fields:
            assert f"\\fB{key}\\fR = " in part
    assert "\\fBtime_limit_s\\fR = 300\n" in text
    assert "seconds, from 60 to 86400" in text


def test_the_page_of_the_helper_that_runs_under_sudo_has_its_one_command_its_exit_codes_and_its_keys(
    pages: dict[str, manual.Page],
) -> None:
    page = pages["flexo-partition"]
    assert page.path == Path("man8/flexo-partition.8")
    assert r"\fBflexo\-partition\fR set PARTITION NODE[,NODE...]" in page.text
    codes = page.text.split(".SH EXIT STATUS\n")[1].split(".SH ")[0]
    assert re.findall(r"^\\fB(.*)\\fR$", codes, re.MULTILINE) == ["0", "1", "2"]
    files = page.text.split(".SH FILES\n")[1].split(".SH ")[0]
    assert files.startswith(".SS /etc/flexo/partition.conf\n")
    example = (ROOT / "slurm_plugin" / "partition.conf.example").read_text()
    keys = re.findall(r"^(?:# )?(\w+) = ", example, re.MULTILINE)
    assert len(keys) == 4
    for key in keys:
        assert re.search(rf"^\\fB{key}\b", files, re.MULTILINE), key


def test_a_line_of_help_that_looks_like_a_command_of_roff_is_text() -> None:
    assert manual._roff(".so /etc/passwd\n'x \\n-1") == "\\&.so /etc/passwd\n\\&'x \\en\\-1"


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_formats_every_page_without_a_warning(pages: dict[str, manual.Page]) -> None:
    text = "".join(page.text for page in pages.values())
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8"], input=text, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "flexo-doctor - Is this cluster set up for flexo?" in done.stdout
