"""A real Prometheus reads flexod's metrics, and answers what dashboard and alerts ask of it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_process import Prometheus, running

from flexo.model.loans import PastLoan
from flexo.service.metrics_endpoint import metrics_served

ROOT = Path(__file__).parents[2]
FILES = ROOT / "daemon" / "flexo" / "metrics"
DASHBOARD = FILES / "grafana-dashboard.json"
ALERTS = FILES / "alerts.yml"
WITHIN_S = 60.0
sys.path.append(str(ROOT / "tests" / "unit" / "metrics"))

from flexod_told import LENDING, POOL, SHARING, Told  # noqa: E402


@pytest.fixture(scope="module")
def told() -> Told:
    """flexod with a shared GPU and a pool Aggregator, after a cycle, a command and a late reclaim."""
    made = Told(loans=LENDING, jobs=(SHARING,), pool=POOL)
    made.counters.cycle_ended("done", 0.1)
    made.counters.command_ended("squeue", "done", 0.05)
    made.counters.loans_ended([PastLoan("i1", 0.0, "", 100.0, 280.0, "demand", 290.0, 295.0, 0, 1)])
    return made


@pytest.fixture(scope="module")
def scraping(told: Told, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that reads them every second, from where flexod serves them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        metrics_served(f"127.0.0.1:{port}", told.registry),
        running(tmp_path_factory.mktemp("prometheus"), SimpleNamespace(port=port)) as prometheus,  # type: ignore[arg-type]
    ):
        deadline = time.monotonic() + WITHIN_S
        while not ask(prometheus, "flexo_build_info"):
            assert time.monotonic() < deadline, "nothing is scraped"
            time.sleep(0.2)
        yield prometheus


def ask(prometheus: Prometheus, expression: str) -> list[dict[str, Any]]:
    """What it answers; an error where it does not understand."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    query = urllib.parse.urlencode({"query": expression})
    with opener.open(f"{prometheus.url}/api/v1/query?{query}", timeout=30) as answer:
        told = json.load(answer)
    assert told["status"] == "success"
    return told["data"]["result"]


def expressions() -> Iterator[tuple[str, str]]:
    """As Grafana would ask them, with all instances chosen."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            asked = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1h")
            yield panel["title"], asked.replace("$instance", ".*")
    for line in ALERTS.read_text().splitlines():
        if match := re.fullmatch(r"\s+expr: (.*)", line):
            yield "alert", match[1]


def test_what_flexod_tells_is_what_prometheus_answers(scraping: Prometheus, told: Told) -> None:
    (sample,) = ask(scraping, 'sum(flexo_loans{state="lent"})')
    assert sample["value"][1] == "1"
    (sample,) = ask(scraping, "flexo_inference_demand_servers")
    assert sample["value"][1] == "4.25"
    (sample,) = ask(scraping, "flexo_reclaims_late_total")
    assert sample["value"][1] == "1"
    (sample,) = ask(scraping, "flexo_policy_info")
    assert (sample["metric"]["policy"], sample["metric"]["dry_run"]) == ("lyra", "false")


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_prometheus_understands_what_dashboard_and_alerts_ask(
    scraping: Prometheus, where: str, expression: str
) -> None:
    ask(scraping, expression)


def test_gauges_of_the_dashboard_have_an_answer_at_once(scraping: Prometheus) -> None:
    """What needs two scrapes for a rate apart."""
    for where, expression in expressions():
        if where != "alert" and "rate(" not in expression and "increase(" not in expression:
            assert ask(scraping, expression), (where, expression)


def test_promtool_finds_nothing_to_mend_in_names_and_help(told: Told) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(told.registry), capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


STORY = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'flexo_active{instance="ctl1"}', values: '1x39 0x20'}
      - {series: 'flexo_active{instance="ctl2"}', values: '0x60'}
      - {series: 'flexo_last_cycle_time_seconds{instance="ctl1"}', values: '0+60x10 600x50'}
      - {series: 'flexo_cycle_interval_seconds{instance="ctl1"}', values: '2x60'}
      - {series: 'flexo_trouble{instance="ctl1"}', values: '0x10 1x50'}
      - {series: 'flexo_reclaims_late_total{instance="ctl1"}', values: '0x30 1x30'}
      - {series: 'flexo_cycles_total{instance="ctl1",outcome="mistake"}', values: '0x60'}
    alert_rule_test:
      - {eval_time: 14m, alertname: FlexodBlind}
      - eval_time: 30m
        alertname: FlexodBlind
        exp_alerts: [{exp_labels: {severity: warning, instance: ctl1}, exp_annotations: BLIND}]
      - {eval_time: 30m, alertname: FlexodMistakes}
      - {eval_time: 30m, alertname: FlexodGone}
      - eval_time: 50m
        alertname: FlexodGone
        exp_alerts: [{exp_labels: {severity: warning}, exp_annotations: GONE}]
      - {eval_time: 29m, alertname: FlexoReclaimLate}
      - eval_time: 35m
        alertname: FlexoReclaimLate
        exp_alerts: [{exp_labels: {severity: warning, instance: ctl1}, exp_annotations: LATE}]
"""


def test_promtool_finds_the_rules_in_order_and_they_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path / "alerts.yml")
    checked = subprocess.run(
        ["promtool", "check", "rules", "alerts.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    blind = {
        "summary": "flexod has not seen the cluster for 20m 0s",
        "description": "slurmctld does not answer it, or flexod hangs; flexo status says which.",
    }
    late = {
        "summary": "Inference servers came back after their deadline",
        "description": "flexo loans --last 20 says which,"
        " and flexo events --kind escalate what was done about it.",
    }
    gone = {
        "summary": "Prometheus reads no flexod that acts",
        "description": "Jobs keep what they have; nothing grows,"
        " and leases run out once flexod is away for longer than one.",
    }
    story = STORY
    for name, said in {"BLIND": blind, "LATE": late, "GONE": gone}.items():
        story = story.replace(name, json.dumps(said))
    (tmp_path / "story.yml").write_text(story)
    tested = subprocess.run(
        ["promtool", "test", "rules", "story.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
