"""flexo-web of a lab: its process, of an account without rights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from flexo_lab.flexod import start_own
from flexo_lab.layout import Layout
from flexo_lab.ports import is_listening
from flexo_lab.processes import Account, wait_until
from flexo_lab.record import Ports, Record

_START_S = 30


def url_of(ports: Ports) -> str:
    """The URL of the lab's web pages; "" if it has none."""
    return f"http://127.0.0.1:{ports.web}" if ports.web else ""


def start_web(layout: Layout, record: Record, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start flexo-web and wait until it listens. `environment` names flexod. Raises LabFailed."""
    port, log = record.ports.web, layout.logs / "flexo-web.log"
    command = [str(Path(sys.executable).parent / "flexo-web"), "--listen", f"127.0.0.1:{port}"]
    process = start_own(command, Account.named(record.spec.web_account), log, environment)
    wait_until(lambda: is_listening(port), "flexo-web to listen", _START_S, log, process)
    return process
