"""A real flexod tells a webhook that a job has grown and ended, and works on while nobody takes it."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flexo_lab import Lab

BOUND_S = 90
SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
ELASTIC = f"""#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-4
exec flexo run python {shlex.quote(str(SCRIPT))} --step-seconds 0.2 --epochs 100000
"""


class Receiver(ThreadingHTTPServer):
    """Keeps the events that are posted, once `open` is set; until then it answers nobody."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.open = threading.Event()
        self.events: list[tuple[str, int]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.open.wait()
        self.server.events += [(event["kind"], event["job_id"]) for event in said["events"]]
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.open.set()
        server.shutdown()


@pytest.mark.training
@pytest.mark.slow
def test_a_webhook_hears_of_a_job_s_growth_and_end_and_a_stuck_one_costs_nothing(
    lab: Lab, receiver: Receiver
) -> None:
    toml = lab.layout.flexo_toml
    before = toml.read_text()
    address = f"http://127.0.0.1:{receiver.server_port}/hook"
    toml.write_text(f'{before}\n[notices]\nwebhook = "{address}"\nwebhook_every_s = 0.5\n')
    lab.restart_flexod()
    try:
        job = int(lab.run(["sbatch", "--parsable", "--output=/dev/null"], stdin=ELASTIC).stdout)
        lab.run(["flexo", "wait", str(job), "--for=workers=4", "--timeout=90s"], timeout=100)
        assert receiver.events == [], "the job has grown although the receiver is stuck"
        receiver.open.set()
        lab.run(["scancel", str(job)])
        deadline = time.monotonic() + BOUND_S
        while not {("grow", job), ("end", job)} <= set(receiver.events):
            assert time.monotonic() < deadline, f"told within {BOUND_S} s: {receiver.events}"
            time.sleep(0.5)
    finally:
        receiver.open.set()
        toml.write_text(before)
        lab.restart_flexod()
