"""The flexo command, run as people type it, in this process."""

from __future__ import annotations

import pytest
from command_line import Run

from flexo_cli import app


@pytest.fixture
def flexo_run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line; exit code, output, error output."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = app.run([*map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
