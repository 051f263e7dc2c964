"""Commands and variables reach a container's program as they are, through the NodeManager's launch script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flexo_yarn.launch import command_line, environment

WORDS = [
    *["plain", "two words", "it's", 'say "x"', "$HOME", "`id`", "a\\b", "", "*", "a;b", "ä\nb"],
    *['{"a": {"b": {"c": 1}}}', "{{HOME}}", "}}}'}}", "a<CPS>b", "<LOG_DIR>/x", "<<CPS>>"],
]


def replaced(text: str, logs: Path) -> str:
    """What ContainerLaunch.expandEnvironment of Hadoop 3.5 makes of it."""
    for old, new in (("<LOG_DIR>", str(logs)), ("<CPS>", ":"), ("{{", "$"), ("}}", "")):
        text = text.replace(old, new)
    return text


@pytest.mark.processes
def test_every_word_reaches_the_program_as_it_is(tmp_path: Path) -> None:
    line = replaced(command_line(["printf", "%s\\0", *WORDS]), tmp_path)
    script = tmp_path / "launch_container.sh"
    script.write_text(f'exec /bin/bash -c "{line}"\n')
    subprocess.run(["/bin/bash", str(script)], check=True)
    assert (tmp_path / "stdout").read_text().split("\0")[:-1] == WORDS
    assert (tmp_path / "stderr").read_text() == ""


@pytest.mark.processes
def test_every_variable_reaches_the_program_as_it_is(tmp_path: Path) -> None:
    variables = {f"V{number}": word for number, word in enumerate(WORDS)}
    script = tmp_path / "launch_container.sh"
    exports = [f'export {each.key}="{replaced(each.value, tmp_path)}"' for each in environment(variables)]
    script.write_text("\n".join([*exports, "exec env -0", ""]))
    told = subprocess.run(["/bin/bash", str(script)], check=True, capture_output=True, text=True).stdout
    assert variables.items() <= dict(each.split("=", 1) for each in told.split("\0") if each).items()
