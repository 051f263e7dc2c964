"""The flexo command where there are several flexods: whoever is active is asked, and all are told of."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from admin_server import serving
from command_line import Run
from says import says

from flexo_cli import connection
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc


class One(admin_pb2_grpc.AdminServiceServicer):
    """A flexod that is active, or stands by."""

    def __init__(self, active: bool) -> None:
        self.active = active
        self.holder = ""
        self.hosts: list[str] = []
        self.address = ""

    def GetStatus(  # noqa: N802
        self, request: admin_pb2.GetStatusRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetStatusReply:
        about = admin_pb2.Availability(
            address=self.address, active=self.active, holder=self.holder, epoch=7, hosts=self.hosts,
            since_at=time.time() - 30,
        )  # fmt: skip
        return admin_pb2.GetStatusReply(flexod_version="1", cluster="c", availability=about)

    def ListJobs(  # noqa: N802
        self, request: admin_pb2.ListJobsRequest, context: grpc.ServicerContext
    ) -> admin_pb2.ListJobsReply:
        if not self.active:
            context.abort(grpc.StatusCode.UNAVAILABLE, "stands by")
        return admin_pb2.ListJobsReply()


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[One, One]]:
    """The first stands by, the second is active."""
    first, second = One(active=False), One(active=True)
    with ExitStack() as stack:
        hosts = [stack.enter_context(serving(each, monkeypatch)) for each in (first, second)]
        for each, host in zip((first, second), hosts, strict=True):
            each.address, each.hosts, each.holder = host, hosts, hosts[1]
        monkeypatch.setenv("FLEXO_DAEMON", ",".join(hosts))
        yield first, second


def test_the_active_one_is_asked_and_the_status_tells_of_all(both: tuple[One, One], flexo_run: Run) -> None:
    first, second = both
    assert flexo_run("jobs") == (0, "no elastic jobs\n", "")
    _, out, _ = flexo_run("status")
    assert f"{first.address} stands by\n" in out
    assert says(out, f"{second.address} is active")
    assert "epoch 7, for 3" in out
    availability = json.loads(flexo_run("status", "--json")[1])["availability"]
    assert (availability["active"], availability["epoch"]) == (second.address, 7)
    assert [(each["address"], each["active"], each["answers"]) for each in availability["flexods"]] == [
        (first.address, False, True),
        (second.address, True, True),
    ]


def test_one_that_does_not_answer_is_passed_over_and_told_of(both: tuple[One, One], flexo_run: Run) -> None:
    first, second = both
    first.hosts = second.hosts = ["127.0.0.1:1", second.address]
    code, out, _ = flexo_run("jobs", "--daemon", f"127.0.0.1:1,{second.address}")
    assert (code, out) == (0, "no elastic jobs\n")
    status = flexo_run("status")[1]
    assert "does not answer at 127.0.0.1:1 " in status
    assert status.count("does not answer") == status.count("127.0.0.1:1 ") == 1


@pytest.mark.usefixtures("both")
def test_where_none_answers_each_is_named_and_what_to_do_is_said_once(flexo_run: Run) -> None:
    code, _, err = flexo_run("jobs", "--daemon", "127.0.0.1:1,127.0.0.2:1")
    assert code == 3
    assert err.count("127.0.0.1:1 ") == err.count("127.0.0.2:1 ") == err.count("--daemon or") == 1


def test_where_none_is_active_every_one_is_named(both: tuple[One, One], flexo_run: Run) -> None:
    first, second = both
    second.active = False
    code, _, err = flexo_run("jobs")
    assert code == 3
    assert says(err, "no flexod", f"{first.address} stands by", f"flexod at {second.address}")


def test_one_that_stands_by_and_is_asked_alone_names_the_active_one(
    both: tuple[One, One], flexo_run: Run
) -> None:
    first, second = both
    code, _, err = flexo_run("status", "--daemon", first.address)
    assert code == 3
    assert says(err, f"{first.address} stands by", f"{second.address} is active")


def test_hosts_in_the_configuration_come_before_the_single_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FLEXO_DAEMON", raising=False)
    file = tmp_path / "flexo.toml"
    monkeypatch.setenv("FLEXO_CONFIG", str(file))
    file.write_text('[service]\naddress = "a:1"\n[high_availability]\nhosts = ["b:2", "c:3"]\n')
    assert connection.find_address(None).target == "b:2,c:3"
    file.write_text('[high_availability]\nhosts = "b:2"\n')
    with pytest.raises(connection.Unreachable, match=r"\[high_availability\] hosts"):
        connection.find_address(None)
