"""The table of metrics, the dashboard and the alerts name what there is, all of it, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from flexod_told import LENDING, POOL, SHARING, Told

from flexo.events import KINDS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
METRICS, KINDS_PAGE = DOCS / "reference" / "metrics.md", DOCS / "reference" / "events.md"
ALERTS_PAGE = DOCS / "howto" / "monitoring.md"
DASHBOARD = ROOT / "daemon" / "flexo" / "metrics" / "grafana-dashboard.json"
ALERTS = ROOT / "daemon" / "flexo" / "metrics" / "alerts.yml"
WIDTH = 24


@pytest.fixture(scope="module")
def told() -> Told:
    made = Told(loans=LENDING, jobs=(SHARING,), pool=POOL)
    made.counters.command_ended("squeue", "done", 0.1)
    return made


@pytest.fixture(scope="module")
def samples(told: Told) -> dict[str, list[dict[str, str]]]:
    """The labels of each sample, by its name."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in told.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def panels() -> list[dict]:
    return json.loads(DASHBOARD.read_text())["panels"]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for line in ALERTS.read_text().splitlines():
        if match := re.fullmatch(r"\s+expr: (.*)", line):
            yield "alert", match[1]


def rows(text: str, head: str) -> list[list[str]]:
    """Of the table below `head`."""
    lines = text.partition(head)[2].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_metric_with_its_type_labels_and_meaning(told):
    wanted = set()
    for family in told.registry.collect():
        labels = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        kind = "gauge" if family.type == "info" else family.type
        said = ", ".join(f"`{label}`" for label in labels)
        wanted.add((f"`{name}`", kind, said, family.documentation.removesuffix(".")))
    shown = {tuple(row) for row in rows(METRICS.read_text(), "| metric | type | labels | what it is |")}
    assert shown == wanted


def test_the_page_has_every_kind_of_event():
    shown = rows(KINDS_PAGE.read_text(), "| kind | what it says |\n"[:-1])
    assert {kind.strip("`"): text for kind, text in shown} == KINDS


def test_the_pages_have_every_state_and_every_alert(samples):
    for name, states in rows(METRICS.read_text(), "| metric | states |"):
        there = {labels["state"] for labels in samples[name.strip("`")]}
        assert set(re.findall(r"`([a-z ]+)`", states)) == there
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    assert [row[0].strip("`") for row in rows(ALERTS_PAGE.read_text(), "| alert | what you do |")] == alerts


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_an_expression_names_metrics_and_label_values_that_there_are(samples, where, expression):
    names = re.findall(r"\b(?:flexo|process)_\w+", expression)
    assert names
    for name in names:
        assert name in samples, where
    for name, selector in re.findall(r"\b((?:flexo|process)_\w+)\{([^}]*)\}", expression):
        for label, operator, values in re.findall(r"(\w+)(=~|!=|=)\"([^\"]*)\"", selector):
            if label == "instance":
                continue
            there = {labels[label] for labels in samples[name]}
            assert set(values.split("|") if operator == "=~" else [values]) <= there, (where, label)


def test_every_metric_of_flexos_own_is_on_the_dashboard_or_in_an_alert_or_said_to_be_for_reading(samples):
    used = set(re.findall(r"\bflexo_\w+", " ".join(expression for _, expression in expressions())))
    whole = {name.removesuffix(end) for name in used for end in ("_bucket", "_sum", "_count")} | used
    for_reading = {
        "flexo_cluster_info",
        "flexo_journal_events_lost_total",
        "flexo_last_read_seconds",
        "flexo_leaders_attached",
        "flexo_loans_ended_total",
        "flexo_nodes",
        "flexo_pool_aggregator_buffer_bytes",
        "flexo_pool_aggregator_cpu_seconds_total",
        "flexo_pool_aggregator_jobs",
        "flexo_pool_aggregators",
        "flexo_pool_aggregators_wanted",
        "flexo_pool_reverts_total",
        "flexo_reclaim_bases_preempted_total",
        "flexo_reclaim_workers_scaled_in_total",
        "flexo_slow_gpus",
        "flexo_slurm_jobs",
    }
    own = {name for name in samples if name.startswith("flexo_")}
    left = {name for name in own - whole if re.sub(r"_(bucket|sum|count)$", "", name) not in whole}
    assert left == for_reading


def test_the_dashboard_is_one_that_grafana_takes():
    board = json.loads(DASHBOARD.read_text())
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= board.keys()
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "instance"]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
        assert panel["description"].endswith(".")
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
    for one, other in combinations((panel["gridPos"] for panel in board["panels"]), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
