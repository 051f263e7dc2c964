"""What is to be seen of flexod on a real cluster: metrics, flexo top, flexo events."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexo_lab import Lab

BOUND_S = 60
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def metrics(lab: Lab) -> Iterator[str]:
    """The address of the metrics of a flexod that has just begun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    toml = lab.layout.flexo_toml
    before = toml.read_text()
    toml.write_text(f'{before}\n[metrics]\nlisten = "{address}"\n')
    lab.restart_flexod()
    yield address
    toml.write_text(before)
    lab.restart_flexod()


def read(address: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=BOUND_S) as answer:
        return answer.read().decode()


def value(text: str, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_flexod_at_work_is_seen_in_metrics_in_top_and_in_events(lab: Lab, metrics: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while value(text := read(metrics), 'flexo_cycles_total{outcome="done"}') < 1:
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    status = json.loads(lab.run(["flexo", "status", "--json"]).stdout)
    assert (
        sum(float(each) for each in re.findall(r"^flexo_gpus{.*} (\S+)$", text, re.MULTILINE))
        == status["gpus"]
    )
    assert f'flexo_policy_info{{dry_run="false",policy="{status["policy"]}"}} 1.0' in text
    assert value(text, "flexo_active") == 1
    assert value(text, "flexo_trouble") == 0
    squeue = value(text, 'flexo_slurm_commands_total{command="squeue",outcome="done"}')
    pyslurm = value(text, 'flexo_slurm_commands_total{command="pyslurm jobs",outcome="done"}')
    assert squeue + pyslurm >= 1
    assert value(text, "process_resident_memory_bytes") > 1e6

    top = json.loads(lab.run(["flexo", "top", "--json"]).stdout)
    assert sum(node["gpus"] for node in top["nodes"]) == status["gpus"]
    begun = json.loads(lab.run(["flexo", "events", "--kind", "daemon", "--last", "1", "--json"]).stdout)
    assert begun["events"][0]["text"] == "flexod begins"
    assert begun["events"][0]["number"] > 0


@pytest.mark.thorough
def test_what_a_report_of_a_problem_needs_is_collected_by_the_page_s_commands(lab: Lab) -> None:
    folder = lab.scratch / "report"
    folder.mkdir()
    page = (ROOT / "docs" / "howto" / "operations.md").read_text()
    block = re.search(r"## Report a problem\n.*?```bash\n(.*?)```", page, re.DOTALL)
    assert block is not None
    request = ["-n1", "--gpus-per-task=1", "--elastic=1-2", "--output=/dev/null", "--wrap=sleep 600"]
    job = lab.run(["sbatch", "--parsable", *request]).stdout.strip()
    for command in block[1].replace("JOB", job).splitlines():
        lab.run(["bash", "-c", command], cwd=folder, check="doctor" not in command)
    texts = {file.name: file.read_text() for file in folder.iterdir()}
    assert set(texts) == set(re.findall(r"> (\S+)$", block[1], re.MULTILINE))
    assert texts["versions.txt"].startswith("flexo ")
    assert "slurm" in texts["versions.txt"]
    assert "flexod" in texts["doctor.txt"]
    assert f"JobId={job} " in texts["job.txt"]
    for name in ("status.json", "why.json", "events.json"):
        assert json.loads(texts[name]), name
