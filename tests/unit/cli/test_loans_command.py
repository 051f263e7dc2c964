"""`flexo loans` against an in-process AdminService: what people and scripts are shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from admin_server import serving
from says import says

from flexo_cli import app
from flexo_protos.v1 import admin_pb2 as pb
from flexo_protos.v1 import admin_pb2_grpc

NOW = time.time()


def reply(past: int) -> pb.ListLoansReply:
    return pb.ListLoansReply(
        lending=True,
        inference_partition="infer",
        partition="borrowed",
        view=pb.LendingView(
            at=NOW,
            servers=8,
            demand=4.25,
            peak=5.0,
            source="partition infer",
            why="inference needs 4.3",
            lent=1,
            coming_back=1,
        ),
        loans=[
            pb.LoanView(node="i1", since_at=NOW - 60, why="spare", state="lent", satellite_workers=4),
            pb.LoanView(
                node="i2",
                since_at=NOW - 600,
                why="spare",
                state="called back",
                called_back_at=NOW - 10,
                deadline_at=NOW + 3.5 * 86_400,
                why_back="a big model",
                bases=[60],
                bases_preempted=1,
                servers_emptied_beside=2,
            ),
        ],
        left_alone=[pb.LeftAloneView(node="i7", until_at=NOW + 1000)],
        past=[
            pb.PastLoanView(
                node="i3",
                since_at=NOW - 9000,
                called_back_at=NOW - 5000,
                deadline_at=NOW - 4820,
                why_back="demand",
                empty_at=NOW - 4988,
                ended_at=NOW - 4980,
                workers_scaled_in=3,
            ),
            pb.PastLoanView(
                node="i4",
                since_at=NOW - 9000,
                called_back_at=NOW - 5000,
                deadline_at=NOW - 4990,
                empty_at=NOW - 4900,
                ended_at=NOW - 4900,
                bases_preempted=1,
                servers_emptied_beside=3,
            ),
        ][:past],
    )


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """Lends, or does not."""

    def __init__(self) -> None:
        self.lends = True
        self.missing = False

    def ListLoans(self, request, context):  # noqa: N802
        if not self.lends:
            return pb.ListLoansReply(lending=False)
        answer = reply(request.past)
        if self.missing:
            answer.view.ClearField("demand")
            answer.view.ClearField("peak")
            answer.view.trouble = "demand is not known, so nothing more is lent: stale"
        return answer

    def GetStatus(self, request, context):  # noqa: N802
        return pb.GetStatusReply(lending=reply(0).view if self.lends else None)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Admin, str]]:
    service = Admin()
    with serving(service, monkeypatch) as address:
        yield service, address


@pytest.fixture
def run(admin, capsys) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        assert app.run([*arguments, "--daemon", admin[1]]) == 0
        return capsys.readouterr().out

    return call


def test_loans_are_shown_with_their_state_and_when_they_are_back(run):
    lines = run("loans").splitlines()
    assert says(lines[0], "lent by", "partition infer", "to partition borrowed")
    assert says(lines[1], "1 of 8", "1 coming back", "4.2 needed", "5.0 expected")
    rows = [line for line in lines if line.startswith("i")]
    assert "lent" in rows[0]
    assert "spare" in rows[0]
    assert "called back" in rows[1]
    assert "in 3.5 d" in rows[1]
    assert "60" in rows[1]
    assert "a big model; cost so far: 1 base preempted, 2 servers emptied beside" in rows[1]
    assert any("i7 until" in line and "by hand" in line for line in lines)


def test_past_loans_say_how_long_they_took_and_whether_the_deadline_was_kept(run):
    assert "i3" not in run("loans")
    rows = [line for line in run("loans", "--all").splitlines() if line.startswith(("i3", "i4"))]
    assert "12 s" in rows[0]
    assert "kept" in rows[0]
    assert "90 s late" in rows[1]
    assert rows[1].split()[-3:] == ["0", "1", "3"]
    assert len([line for line in run("loans", "--last", "1").splitlines() if line.startswith("i4")]) == 0


def test_json_has_stable_keys(run):
    shown = json.loads(run("loans", "--json", "--all"))
    assert {"lending", "lent", "coming_back", "servers", "demand", "peak", "trouble", "loans", "past"} <= set(
        shown
    )
    assert shown["loans"][0]["deadline_at"] is None
    assert shown["loans"][1]["bases"] == [60]
    assert shown["past"][1]["bases_preempted"] == 1
    assert [loan["servers_emptied_beside"] for loan in (*shown["loans"], *shown["past"])] == [0, 2, 0, 3]
    assert shown["left_alone"] == [{"node": "i7", "until_at": NOW + 1000}]


def test_demand_that_is_missing_is_not_shown_as_a_number(run, admin):
    admin[0].missing = True
    text = run("loans")
    assert "demand not known" in text
    assert "nothing more is lent: stale" in text
    assert json.loads(run("loans", "--json"))["demand"] is None


def test_a_flexod_that_lends_nothing_says_what_that_needs(run, admin):
    admin[0].lends = False
    assert "enabled = true in [loaning]" in run("loans")
    assert json.loads(run("status", "--json"))["lending"] is None


def test_the_status_has_a_line_of_it(run):
    assert says(run("status"), "1 of 8", "on loan")
    assert json.loads(run("status", "--json"))["lending"]["lent"] == 1
