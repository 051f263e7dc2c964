"""Leaders and flexods of different releases: an upgrade, or its taking back, leaves jobs running."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from service_doubles import hello, house, slurm_job

from flexo_protos.v1 import jobs_pb2 as pb
from horovod_elastic.leader.daemon_link import DaemonLink

UNKNOWN = b"\xfa\x06\x05later"
"""Field 111 of a message, which no release of today has."""


def run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def from_leader(message: pb.FromLeader, unknown: bytes = UNKNOWN) -> pb.FromLeader:
    """The message as a newer leader would say it."""
    return pb.FromLeader.FromString(message.SerializeToString() + unknown)


def test_a_newer_leader_may_say_more_than_flexod_knows() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = h.dial()
            newer = hello(flexo_version="99.1")
            newer.hello.MergeFromString(UNKNOWN)
            await call.write(from_leader(newer))
            assert (await call.read()).WhichOneof("body") == "welcome"
            await call.write(pb.FromLeader.FromString(UNKNOWN))  # a kind of message that flexod does not know
            report = pb.FromLeader(report=pb.Report(workers=5))
            report.report.MergeFromString(UNKNOWN)
            await call.write(report)
            async with asyncio.timeout(30):
                while [said.training_workers for said in h.registry.reports()] != [5]:
                    await asyncio.sleep(0.01)

    run(story)


def test_an_older_leader_that_does_not_say_its_release_is_welcome(capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            for release in ("", "0.0.1"):
                call = h.dial()
                await call.write(hello(flexo_version=release))
                assert (await call.read()).welcome.flexod_version

    run(story)
    out = capsys.readouterr().out
    assert "release=unknown" in out
    assert "release=0.0.1" in out


def test_a_newer_flexod_may_say_more_than_a_leader_knows() -> None:
    heard: list[object] = []
    link = DaemonLink("nowhere:1", pb.Hello, heard.append, heard.append, heard.append)
    link._hear(pb.ToLeader.FromString(UNKNOWN), "nowhere:1")
    assert heard == []
    grants = pb.ToLeader(grants=pb.Grants(grants=[pb.Grant(grant_id="g1", node="n1", workers=2)]))
    grants.grants.MergeFromString(UNKNOWN)
    link._hear(grants, "nowhere:1")
    (told,) = heard
    assert isinstance(told, pb.Grants)
    assert [grant.grant_id for grant in told.grants] == ["g1"]


def test_an_older_flexod_that_says_less_is_understood() -> None:
    heard: list[object] = []
    link = DaemonLink("nowhere:1", pb.Hello, heard.append, heard.append, heard.append)
    link._hear(pb.ToLeader(welcome=pb.Welcome()), "nowhere:1")
    assert link.report_interval_s >= 1
