"""Settings that need a restart of flexod are shown to those who can restart it, and to no other user."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from admin_server import serving
from busy_flexod import BusyFlexod
from command_line import Run

from flexo_cli import caller
from flexo_protos.v1 import admin_pb2 as pb

REPLY = pb.GetStatusReply(
    needs_restart=["[service] address", "[event_store] keep_days"],
    privacy=pb.Privacy(jobs=True, readers=["root", "operator"]),
)
NOTICE = "needs a restart of flexod: [service] address, [event_store] keep_days"


@pytest.fixture
def flexod(monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyFlexod]:
    service = BusyFlexod()
    with serving(service, monkeypatch):
        yield service


@pytest.mark.parametrize(
    ("uid", "user", "notice"), [(0, "root", NOTICE), (1000, "operator", NOTICE), (1001, "ada", "")]
)
def test_root_and_readers_are_told_what_needs_a_restart(
    uid: int, user: str, notice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(caller, "own_name", lambda: user)
    assert caller.restart_notice(REPLY) == notice


@pytest.mark.parametrize("command", [("status",), ("top", "--once")])
@pytest.mark.parametrize(("user", "told"), [("operator", True), ("ada", False)])
def test_the_status_and_the_top_show_the_notice_beside_what_is_wrong(
    command: tuple[str, ...],
    user: str,
    told: bool,
    flexod: BusyFlexod,
    flexo_run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(caller, "own_name", lambda: user)
    flexod.status.MergeFrom(REPLY)
    flexod.status.trouble = "slow"
    code, out, _ = flexo_run(*command)
    assert (code, NOTICE in out) == (0, told)
    assert "slow" in out


def test_of_a_flexod_that_needs_none_or_is_older_nothing_is_said() -> None:
    assert caller.restart_notice(pb.GetStatusReply(trouble="slow")) == ""
