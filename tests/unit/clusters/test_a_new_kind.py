"""The example of docs/howto/write-a-cluster.md: a kind in one module, under the controller's cycle."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from controller_world import SIGNER, FakeLeaders
from flat_records import change_job, make_job

from flexo import config
from flexo.clusters import registry
from flexo.clusters.base import Allocates, Site
from flexo.config import Settings
from flexo.control.leaders import Orders
from flexo.control.views import Unheeded
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.model.elastic import LeaderReport, SatelliteReport, SatelliteState
from flexo.model.queue import ElasticRequest, JobState, Principal, QueuedJob, SatelliteTag, WaitReason
from flexo.model.ranges import Range
from flexo.policies import registry as policies
from flexo_protos.resources import Resources

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "write-a-cluster.md"
ADA = Principal("ada@EXAMPLE.ORG")
LIMIT_S = 300
OF_FIXED_SIZE = {"fifo", "backfill", "srtf", "tiresias", "tiresias-pollux", "antman"}
"""Policies under which a job has what it asked for, and no more."""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page's module, registered as the page says."""
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    module = types.ModuleType("toy_cluster")
    monkeypatch.setitem(sys.modules, "toy_cluster", module)
    exec(compile(example, str(PAGE), "exec"), module.__dict__)
    kind = registry.Kind("toy_cluster:ToySettings", "toy_cluster:connect")
    monkeypatch.setitem(registry.KINDS, "toy", kind)
    return module


class Ada:
    """A base of one worker on n1, and its leader, who submits what it is told at once."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.submitted = 0
        self.base = self.job(1, "application_17_0001", gpus=1, elastic=ElasticRequest(Range(1, 8)))
        cluster.start(self.base, "n1")

    def job(self, number: int, identifier: str, **changes: object) -> QueuedJob:
        plain = make_job(
            job_id=number,
            owner=ADA,
            user="ada",
            partitions=("train",),
            state=JobState.PENDING,
            wait=WaitReason.RESOURCES,
            reason="",
            priority=1,
            submitted_at=self.cluster.now(),
            started_at=None,
            time_limit_s=None,
            nodes=(),
            num_nodes=1,
            cpus=1,
            gpus=1,
            memory_mib=0,
            identifier=identifier,
        )
        return change_job(plain, **changes)  # type: ignore[arg-type]

    def hear(self, orders: Orders) -> None:
        mine = {job.satellite.grant_id for job in self.cluster.queue.values() if job.satellite}
        told = {grant.grant_id for grant in orders.grants}
        for job in list(self.cluster.queue.values()):
            if job.satellite and job.satellite.grant_id not in told:
                self.cluster.cancel(job.identifier)
        for grant in orders.grants:
            if grant.grant_id not in mine:
                self.submitted += 1
                satellite = self.job(
                    1000 + self.submitted,
                    f"container_17_0001_{self.submitted:06}",
                    partitions=(grant.partition,),
                    gpus=grant.workers,
                    cpus=grant.workers,
                    time_limit_s=LIMIT_S,
                    satellite=SatelliteTag(self.base.key, grant.grant_id, grant.workers),
                )
                self.cluster.start(satellite, grant.node)

    def report(self) -> LeaderReport:
        satellites = tuple(
            SatelliteReport(
                job.job_id,
                job.satellite.grant_id,
                *job.nodes,
                job.satellite.workers,
                SatelliteState.TRAINING,
            )
            for job in self.cluster.queue.values()
            if job.satellite
        )
        return LeaderReport(
            key=self.base.key,
            owner=ADA,
            workers=Range(1, 8),
            shape=Resources(1, 1),
            base_nodes=("n1",),
            training_workers=1 + sum(each.workers for each in satellites),
            generation=1,
            batches_committed=1,
            scalable=True,
            satellites=satellites,
        )


class Toys:
    """A flexod on the page's cluster, on a clock that the test moves."""

    def __init__(self, folder: Path, policy: str) -> None:
        text = (
            f'[cluster]\nkind = "toy"\n[toy]\nnodes = 2\n[controller]\npolicy = "{policy}"\nlease_s = 300\n'
        )
        self.settings: Settings = config.parse(text, "flexo.toml")
        self.cluster: Any = registry.connect(self.settings.cluster.kind, self.settings.of_cluster, Site())
        self.at = 10_000.0
        self.cluster.now = lambda: self.at
        self.ada = Ada(self.cluster)
        self.leaders = FakeLeaders()
        self.leaders.attached[self.ada.base.key] = self.ada  # type: ignore[assignment]
        self.folder = folder
        self.restart()

    def restart(self) -> None:
        self.event_store = EventStore(self.folder / "journal.sqlite", 30)
        self.controller = Controller(
            self.settings, self.cluster, self.leaders, self.event_store, clock=lambda: self.at, signer=SIGNER
        )

    def go(self, seconds: float) -> None:
        for _ in range(int(seconds / 10)):
            self.at += 10.0
            self.controller.cycle()

    @property
    def satellites(self) -> list[QueuedJob]:
        return [job for job in self.cluster.queue.values() if job.satellite]


@pytest.mark.parametrize("policy", policies.names())
def test_a_job_grows_and_its_time_limits_are_extended_under_every_policy(
    toy: Any, tmp_path: Path, policy: str
) -> None:
    toys = Toys(tmp_path, policy)
    toys.go(600.0)
    assert not toys.controller.status().trouble
    grown = sum(job.resources.gpus for job in toys.satellites)
    assert (grown > 0) == (policy not in OF_FIXED_SIZE)
    assert grown <= 7
    assert all(job.time_limit_s > LIMIT_S for job in toys.satellites)


def test_its_owners_have_names_and_a_flexod_that_is_started_again_knows_their_grants(
    toy: Any, tmp_path: Path
) -> None:
    toys = Toys(tmp_path, "lyra")
    toys.go(60.0)
    granted = {each.grant_id for each in toys.event_store.grants() if each.owner == ADA}
    assert granted
    toys.restart()
    assert {each.grant_id for each in toys.event_store.grants()} == granted
    toys.go(300.0)
    assert {job.satellite.grant_id for job in toys.satellites if job.satellite} == granted
    assert not toys.controller.status().trouble


def test_what_the_kind_cannot_do_is_said_and_ends_nothing(toy: Any, tmp_path: Path) -> None:
    toys = Toys(tmp_path, "lyra")
    assert not isinstance(toys.cluster, Allocates)
    toys.settings = toys.settings.model_copy(
        update={"controller": toys.settings.controller.model_copy(update={"order": "policy"})}
    )
    toys.controller.reconfigure(toys.settings, "order = policy", Unheeded())
    waiting = toys.ada.job(7, "application_17_0007", gpus=8, owner=Principal("bob@EXAMPLE.ORG"), user="bob")
    toys.cluster.queue[waiting.identifier] = waiting
    toys.go(60.0)
    assert "Toy" in toys.controller.status().trouble


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(config.ConfigError, match=r"flexo.toml:2: .*kind.*slurm"):
        config.parse('[cluster]\nkind = "slrum"\n', "flexo.toml")
