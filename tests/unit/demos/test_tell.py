"""What is printed where there is no terminal, and where nobody listens any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flexo_demos.elastic.report import CheckedSentence
from flexo_demos.elastic.tell import Teller

pytestmark = pytest.mark.thorough


def test_without_a_terminal_it_prints_plain_lines_with_times(capsys: pytest.CaptureFixture[str]) -> None:
    with Teller() as teller:
        teller.now("something that only a terminal shows")
        teller.say("job 1 starts", "green")
        teller.table([("rigid job waited", "3.2 s")])
        teller.judge(
            [CheckedSentence("All is well.", True), CheckedSentence("[bold]All[/bold] is lost.", False)]
        )
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        " 0:00  job 1 starts",
        "",
        "rigid job waited   3.2 s",
        "",
        "✓ All is well.",
        "✗ [bold]All[/bold] is lost.",
    ]


def test_it_goes_on_in_silence_when_nobody_listens_any_more() -> None:
    speaker = (
        "import sys, time\n"
        "from flexo_demos.elastic.tell import Teller\n"
        "with Teller() as teller:\n"
        "    for number in range(200):\n"
        "        teller.say('x' * 1000)\n"
        "        time.sleep(0.002)\n"
        "sys.exit(7)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", speaker], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (7, b"")
