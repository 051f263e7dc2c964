"""Commands are imported when they are called, and only then: `flexo jobs` is typed many times a day."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flexo_cli.app import COMMANDS, application, run

OTHERS = """
import sys
from flexo_cli.app import run
run(["jobs", "--help"])
of_others = {"flexo.config", "flexo_lab", "flexo_yarn.rest", "horovod_elastic.script_check"}
print(sorted(of_others & set(sys.modules)))
"""


@pytest.mark.processes
def test_a_command_imports_nothing_of_the_others() -> None:
    said = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, check=True).stdout
    assert said.endswith("\n[]\n")


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_each_command_is_found_where_the_list_says(name: str) -> None:
    application.cache_clear()
    registered = application(name)
    assert [each.name for each in (*registered.registered_commands, *registered.registered_groups)] == [name]


def test_a_misspelt_command_is_answered_with_the_nearest_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["jbos"]) == 2
    assert "jobs" in capsys.readouterr().err
