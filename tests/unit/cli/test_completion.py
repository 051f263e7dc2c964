"""Completion in shells: the scripts, and what flexo answers them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flexo_cli import app, completion

BIN = Path(sys.executable).parent


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script_that_it_finds_no_fault_with(
    capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert app.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert completion.VARIABLE in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_another_shell_is_a_usage_error_that_names_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.run(["completion", "tcsh"]) == 2
    assert "zsh" in capsys.readouterr().err


@pytest.mark.thorough
def test_bash_completes_commands_and_options() -> None:
    asked = """
        source <(flexo completion bash)
        complete_here() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _flexo_completion flexo
            echo "${COMPREPLY[*]}"
        }
        IFS=' '
        complete_here flexo sca
        complete_here flexo lab d
        complete_here flexo doctor --j
    """
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["scale", "down", "--json"]
