"""Commands of containers: words reach the program as they are, through the shell of the launch script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flexo_yarn.launch import LOG_FOLDER, command_line

WORDS = ["plain", "two words", "it's", 'say "x"', "$HOME", "`id`", "a\\b", "", "*", "a;b", "ä\nb"]


@pytest.mark.processes
def test_every_word_reaches_the_program_as_it_is(tmp_path: Path) -> None:
    line = command_line(["printf", "%s\\0", *WORDS]).replace(LOG_FOLDER, str(tmp_path))
    script = tmp_path / "launch_container.sh"
    script.write_text(f'exec /bin/bash -c "{line}"\n')
    subprocess.run(["/bin/bash", str(script)], check=True)
    assert (tmp_path / "stdout").read_text().split("\0")[:-1] == WORDS
    assert (tmp_path / "stderr").read_text() == ""
