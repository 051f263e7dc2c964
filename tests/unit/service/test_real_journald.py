"""systemd's own journald takes flexod's entries: one of the test, in a folder system of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from says import says

JOURNALD = Path("/lib/systemd/systemd-journald")
STORY = """
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/systemd
printf '[Journal]\\nStorage=volatile\\nAudit=no\\nReadKMsg=no\\nForwardToWall=no\\n' \\
  > /etc/systemd/journald.conf
mkdir -p /run/systemd/journal /run/log/journal
{journald} &
trap "kill $!; wait" EXIT
for tried in $(seq 600); do [ -S /run/systemd/journal/socket ] && break; sleep 0.05; done
{python} -c {program}
journalctl -D /run/log/journal --sync 2>/dev/null || true
for tried in $(seq 600); do
  journalctl -D /run/log/journal -o json -a --no-pager FLEXO_JOB_ID=17 > {found} || true
  [ "$(wc -l < {found})" = 2 ] && break; sleep 0.05
done
"""
PROGRAM = """
import structlog
from flexo.config import LogSettings
from flexo.service import logs
logs.set_up(LogSettings(format="journal"))
log = structlog.get_logger()
log.info("grow", job="17.r1", nodes=["n1", "n2"], text="grow by 2 workers on n1, n2: they are idle")
log.info("lend", text="another")
log.info("shrink", job="17", text="y" * 400_000)
"""


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process a folder system of its own")
@pytest.mark.skipif(
    not JOURNALD.exists() or shutil.which("unshare") is None, reason="systemd-journald is not installed"
)
def test_journald_finds_entries_by_their_fields_and_keeps_long_ones_whole(tmp_path: Path) -> None:
    found = tmp_path / "found"
    words = {"journald": JOURNALD, "python": sys.executable, "program": PROGRAM, "found": found}
    story = STORY.format(**{name: shlex.quote(str(word)) for name, word in words.items()})
    done = subprocess.run(["unshare", "-m", "bash", "-c", story], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in found.read_text().splitlines())
    assert says(first["MESSAGE"], "grow job 17.r1", "2 workers", "n1, n2")
    assert first["FLEXO_NODE"] == ["n1", "n2"]
    assert (first["PRIORITY"], first["SYSLOG_IDENTIFIER"], first["FLEXO_KIND"]) == ("6", "flexod", "grow")
    assert len(second["MESSAGE"]) == len("shrink job 17: ") + 400_000
