"""What Prometheus is told: of a controller that runs, of loans, and of what happened since it began."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from controller_world import World
from flexod_told import LENDING, Told
from prometheus_client import CollectorRegistry

from flexo.aggregation.master import PoolEvent
from flexo.clusters.base import ClusterUnreachable
from flexo.clusters.slurm.commands import SlurmCommands
from flexo.control.recent_errors import RecentErrors
from flexo.controller import Controller
from flexo.events import KINDS
from flexo.metrics.counters import Counters
from flexo.metrics.present import Present
from flexo.model.loans import PastLoan
from flexo.model.queue import JobState
from flexo.words import BEGINS_WITHIN_S

SOURCES = Path(__file__).parents[3] / "daemon" / "flexo"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def registry(world):
    made = CollectorRegistry()
    world.controller = Controller(
        world.settings,
        world.cluster,
        world.leaders,
        world.event_store,
        clock=world.cluster.clock,
        watch=Counters(made),
    )
    made.register(Present(world.controller, world.event_store))
    return made


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_a_job_that_grows_is_seen_in_workers_satellites_gpus_and_events(world, registry):
    world.job(workers="1-4")
    world.go(10)
    assert value(registry, "flexo_workers_base") == 1
    assert value(registry, "flexo_workers_granted") == 4 == value(registry, "flexo_workers_most")
    assert value(registry, "flexo_workers_training") == 4
    assert value(registry, "flexo_jobs", state="training") == 1
    assert value(registry, "flexo_satellites", state="training") == 1
    assert value(registry, "flexo_gpus", state="satellites") == 3
    assert value(registry, "flexo_gpus", state="other jobs") == 1
    assert value(registry, "flexo_gpus", state="idle") == 8
    assert value(registry, "flexo_leaders_attached") == 1
    assert value(registry, "flexo_events_total", kind="grow") == world.kinds().count("grow") == 1
    assert value(registry, "flexo_cycles_total", outcome="done") == 5
    assert value(registry, "flexo_cycle_duration_seconds_count") == 5
    assert value(registry, "flexo_last_cycle_time_seconds") == world.controller.status().last_cycle_at > 0


def test_what_a_turn_of_the_loop_shows_is_told_until_the_next_one(world, registry):
    world.job(workers="1-4")
    world.go(2)
    granted = [value(registry, "flexo_workers_granted") for _ in range(2)]
    world.job(2, workers="1-1", node="t2")
    assert [value(registry, "flexo_workers_granted") for _ in range(2)] == granted == [4, 4]
    world.go(2)
    assert value(registry, "flexo_workers_granted") == 5


def test_gpus_nodes_jobs_and_satellites_by_state_add_up_to_all_of_them(world, registry):
    world.job(workers="1-4")
    world.job(2, workers="1-2", node="t2").scalable = False
    world.rigid(9, 2, "t3")
    world.rigid(10, 16)
    world.cluster.base(11, state=JobState.PENDING, nodes=())
    del world.leaders.attached[world.job(12, node="t3", started_at=world.cluster.now - 3600).key]
    world.go(6)
    sums = {"flexo_gpus": 12, "flexo_nodes": 3, "flexo_jobs": 4, "flexo_slurm_jobs": len(world.cluster.queue)}
    for family in registry.collect():
        if family.name in sums:
            assert sum(sample.value for sample in family.samples) == sums.pop(family.name), family
    assert not sums
    assert value(registry, "flexo_jobs", state="pending") == 1
    assert value(registry, "flexo_jobs", state="starting") == 1
    assert value(registry, "flexo_jobs", state="no leader") == 1


def test_a_job_that_has_just_begun_is_starting_as_on_the_pages_and_a_minute_later_has_no_leader(
    world, registry
):
    del world.leaders.attached[world.job(12, started_at=world.cluster.now).key]
    world.go(BEGINS_WITHIN_S - 4)
    assert value(registry, "flexo_jobs", state="starting") == 1
    assert value(registry, "flexo_jobs", state="no leader") == 0
    world.go(6)
    assert value(registry, "flexo_jobs", state="starting") == 0
    assert value(registry, "flexo_jobs", state="no leader") == 1


def test_slurm_away_and_our_own_mistakes_are_counted_apart_and_are_trouble(world, registry):
    world.go(2)
    assert value(registry, "flexo_trouble") == 0
    world.cluster.unreachable = "connection refused"
    world.go(4)
    assert value(registry, "flexo_cycles_total", outcome="unreachable") == 2
    assert value(registry, "flexo_trouble") == 1
    world.cluster.unreachable = ""
    world.cluster.observe = None
    world.go(2)
    assert value(registry, "flexo_cycles_total", outcome="mistake") == 1


def test_a_event_store_that_cannot_be_written_is_counted_with_what_was_lost(world, registry):
    world.go(2)
    before = value(registry, "flexo_journal_write_failures_total")
    world.event_store.close()
    (world.directory / "journal.sqlite").unlink()
    (world.directory / "journal.sqlite").mkdir()
    world.job(workers="1-4")
    world.go(2)
    assert value(registry, "flexo_journal_write_failures_total") > before
    assert value(registry, "flexo_journal_events_lost_total") >= 1


def test_loans_are_told_where_servers_are_lent_and_nowhere_else():
    assert Told().value("flexo_inference_servers") is None
    told = Told(loans=LENDING)
    assert told.value("flexo_loans", state="lent") == 1 == told.value("flexo_loans", state="escalated")
    assert told.value("flexo_loans", state="called back") == 0
    assert told.value("flexo_inference_servers") == 8
    assert told.value("flexo_inference_demand_servers") == 4.25
    assert told.value("flexo_inference_peak_servers") == 5


def test_reclaims_are_counted_with_how_long_they_took_and_whether_they_were_late():
    told = Told()
    told.counters.loans_ended(
        [
            PastLoan("i1", 0.0, "", 100.0, 280.0, "demand", 112.0, 115.0, 3, 0),
            PastLoan("i2", 0.0, "", 100.0, 280.0, "demand", 290.0, 295.0, 0, 1),
            PastLoan("i3", 0.0, "", None, None, "", 50.0, 50.0, 0, 0),
        ]
    )
    assert told.value("flexo_loans_ended_total") == 3
    assert told.value("flexo_reclaims_late_total") == 1
    assert told.value("flexo_reclaim_duration_seconds_count") == 2
    assert told.value("flexo_reclaim_duration_seconds_sum") == 12 + 190
    assert told.value("flexo_reclaim_workers_scaled_in_total") == 3
    assert told.value("flexo_reclaim_bases_preempted_total") == 1


@pytest.mark.processes
def test_slurms_commands_are_counted_by_what_they_ask_and_how_they_end(tmp_path, monkeypatch):
    for name, script in {"scontrol": "exit 0", "squeue": "echo no >&2; exit 1", "sdiag": "sleep 60"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    told = Told()
    commands = SlurmCommands(None, 0.5, told.counters.command_ended)
    commands.read("scontrol", "show", "node", "-a", "-d", "-o")
    commands.act("scontrol", "update", "JobId=7", "EndTime=now+60seconds")
    for name in ("squeue", "sdiag"):
        with pytest.raises(ClusterUnreachable):
            commands.read(name)
    for command, outcome in {
        "scontrol show node": "done",
        "scontrol update": "done",
        "squeue": "failed",
        "sdiag": "no answer",
    }.items():
        counted = {
            each: told.value("flexo_slurm_commands_total", command=command, outcome=each)
            for each in ("done", "failed", "no answer")
        }
        assert counted == dict.fromkeys(counted, 0) | {outcome: 1}
        assert told.value("flexo_slurm_command_duration_seconds_count", command=command) == 1


def test_every_kind_of_event_that_flexod_writes_is_in_the_list_of_kinds():
    written: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        written |= set(re.findall(r"(?<!\w)Event\(\s*[^,\"]+,\s*\"([a-z ]+)\"", text))
        written |= set(re.findall(r"LoanEvent\(\s*\"([a-z ]+)\"", text))
    written |= set(get_args(get_type_hints(PoolEvent)["kind"]))
    written |= set(re.findall(r"\.note, \"([a-z]+)\"", (SOURCES / "service/admin_service.py").read_text()))
    assert written == set(KINDS)


def test_refusals_of_slurm_are_events_of_trouble():
    (event,) = RecentErrors("Slurm").note("Access denied", None, 1.0)
    assert event.kind in KINDS


def test_the_loop_is_not_slowed_by_who_counts(world, registry):
    """What is counted costs no look at the cluster: the controller keeps it all the same."""
    world.go(2)
    looks = len(world.cluster.looks)
    for _ in range(50):
        list(registry.collect())
    assert len(world.cluster.looks) == looks


@pytest.mark.processes
def test_training_images_need_no_prometheus_client():
    script = "import sys, horovod_elastic.launcher; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
