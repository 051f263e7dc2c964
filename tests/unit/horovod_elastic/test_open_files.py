"""The limits of open files of a job's servers, and of the commands that they run."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

STORY = """
import resource, subprocess, sys
from horovod_elastic import open_files
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
before = open_files.connections()
unchanged = open_files.with_first_limit(["echo", "a b"])
open_files.raise_limit()
open_files.raise_limit()
now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
script = "import resource, sys; print(*resource.getrlimit(resource.RLIMIT_NOFILE), *sys.argv[1:])"
ask = [sys.executable, "-c", script, "a b"]
said = subprocess.run(open_files.with_first_limit(ask), capture_output=True, text=True, check=True).stdout
print(before, unchanged == ["echo", "a b"], now == hard, open_files.connections() > before, said.strip())
"""


@pytest.mark.processes
def test_a_server_takes_more_connections_and_its_commands_have_the_limit_that_there_was() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    done = subprocess.run(
        [sys.executable, "-c", STORY], preexec_fn=few_files, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == f"128 True True True 256 {hard} a b", done.stderr
