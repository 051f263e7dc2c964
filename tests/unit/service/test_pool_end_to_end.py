"""A pool Aggregator, a leader and flexod: over real streams, from the hello to the token."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import grpc.aio
import pytest
from controller_world import ADA, FakeCluster
from prometheus_client import CollectorRegistry
from service_doubles import ATTACH, PlainAuthenticator, hello

from flexo.availability.leadership_guard import ALONE
from flexo.config import Settings, parse
from flexo.control.pooled_aggregation import PooledAggregation
from flexo.controller import Controller
from flexo.event_store.store import EventStore
from flexo.metrics.counters import Counters
from flexo.model.aggregation import PoolAggregator
from flexo.service.active import Active
from flexo.service.admin_service import AdminService, _status
from flexo.service.aggregator_registry import AggregatorConnection, AggregatorRegistry
from flexo.service.aggregator_service import AggregatorService
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, ServiceTimeouts
from flexo.service.leader_registry import LeaderRegistry
from flexo.service.server import AddressUnusable, ServiceRouter, Services, all_services, listen
from flexo_cli import job_words
from flexo_cli.as_json import status_as_json
from flexo_protos.aggregation_token import check_for
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import admin_pb2, aggregators_pb2, aggregators_pb2_grpc, jobs_pb2, jobs_pb2_grpc

POOL_ATTACH = "/flexo.v1.AggregatorService/Attach"
KEY = b"k" * 32
ENABLED = parse("[aggregation]\nenabled = true\n", "test")


class Flexod:
    """A controller with its services, behind flexod's own server. A test makes the cycles."""

    def __init__(self, folder: Path) -> None:
        self.cluster, self.leaders = FakeCluster(), LeaderRegistry()
        self.cluster.base(7, "1-8", owner=ADA)
        self.pool = AggregatorRegistry(self.leaders.wake.set)
        store = EventStore(folder / "journal.sqlite", 30)
        pooled = PooledAggregation(ENABLED.aggregation, self.pool, self.leaders.assign)
        self.controller = Controller(
            ENABLED, self.cluster, self.leaders, store, clock=self.cluster.clock, aggregation=pooled
        )
        self.controller.cycle()
        self.services = all_services(
            JobService(self.leaders, self.controller, ServiceTimeouts()),
            AdminService(self.controller, store, self.leaders, ()),
            InferenceService(None, frozenset(), self.leaders.wake.set),
            AggregatorService(self.pool, frozenset()),
        )

    async def cycle(self) -> None:
        self.cluster.now += 2.0
        await asyncio.to_thread(self.controller.cycle)
        assert self.controller.status().trouble == ""


async def port_of(services: Services) -> tuple[grpc.aio.Server, int]:
    router = ServiceRouter()
    router.activate(services, ALONE)
    for port in range(20_000 + os.getpid() % 20_000, 65_000):
        try:
            return await listen(f"127.0.0.1:{port}", PlainAuthenticator(), router), port
        except AddressUnusable:
            continue
    raise AssertionError("no port is free")


def test_a_job_that_asks_for_a_pool_hears_of_an_aggregator_with_a_token_that_it_accepts(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        flexod = Flexod(tmp_path)
        server, port = await port_of(flexod.services)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            pool = aggregators_pb2_grpc.AggregatorServiceStub(channel).Attach(
                metadata=((METADATA_KEY, f"{os.getuid()} {POOL_ATTACH}#1"),)
            )
            said = aggregators_pb2.AggregatorHello(
                host="c1", port=7000, memory_bytes=1 << 34, network_bytes_per_s=1 << 30, token_key=KEY
            )
            await pool.write(aggregators_pb2.FromAggregator(hello=said))
            assert (await pool.read()).WhichOneof("body") == "welcome"
            leader = jobs_pb2_grpc.JobServiceStub(channel).Attach(
                metadata=((METADATA_KEY, f"{ADA} {ATTACH}#2"),)
            )
            use = jobs_pb2.AggregationUse(wants_pool=True, bytes=1000, iteration_s=0.2, nodes=1)
            report = jobs_pb2.Report(workers=1, aggregation=use)
            await leader.write(
                hello(7, workers=jobs_pb2.WorkerRange(min=1, max=8), base_nodes=["t1"], report=report)
            )
            heard = [(await leader.read()).WhichOneof("body")]
            await flexod.cycle()
            while heard[-1] != "aggregators":
                message = await leader.read()
                heard.append(message.WhichOneof("body"))
            (assigned,) = message.aggregators.aggregators
            assert (assigned.host, assigned.port, assigned.share) == ("c1", 7000, 1)
            token = check_for(assigned.token, KEY, flexod.cluster.now, "7")
            assert (token.user, token.quota) == ("ada", 2 * (64 << 20))  # its one node's sum, and the result
            assert "c1:7000" in " ".join(flexod.controller.explain(7))
        await server.stop(None)

    asyncio.run(asyncio.wait_for(story(), 30))


@pytest.mark.parametrize(("settings", "pools"), [(Settings(), False), (ENABLED, True)])
def test_flexod_has_a_pool_only_if_the_configuration_enables_it(
    settings: Settings, pools: bool, tmp_path: Path
) -> None:
    store = EventStore(tmp_path / "journal.sqlite", 30)

    async def begin() -> Active:
        return Active.begin(settings, store, ALONE, Counters(CollectorRegistry()), lambda: None)

    active = asyncio.run(begin())
    assert (active.controller._aggregation is not None) is pools
    assert (active._aggregators._registry is not None) is pools


def test_the_status_has_the_pool_for_people_and_for_scripts(tmp_path: Path) -> None:
    async def story() -> admin_pb2.GetStatusReply:
        flexod = Flexod(tmp_path)
        flexod.pool.attach(
            AggregatorConnection(PoolAggregator("c1", 7000, 1 << 34, 1 << 30, KEY, release="1.2"), "peer")
        )
        await flexod.cycle()
        return _status(flexod.controller.status())

    reply = asyncio.run(story())
    assert job_words.pool(reply.pool) == "1 Aggregators attached, 0 wanted by 0 jobs"
    said = status_as_json(reply)["pool"]
    assert isinstance(said, dict)
    assert said["wanted"] == 0
    (each,) = said["aggregators"]
    assert (each["name"], each["flexo_version"], each["jobs"]) == ("c1:7000", "1.2", 0)
    assert (each["job_ids"], each["slurm_job_id"], each["node"], each["cores_used"]) == ([], None, None, 0.0)
