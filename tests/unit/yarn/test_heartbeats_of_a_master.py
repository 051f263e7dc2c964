"""Heartbeats of an ApplicationMaster when answers are lost, by the rules of YARN's own service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from google.protobuf.message import Message

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_yarn.application_master import ApplicationMaster, Ask
from flexo_yarn.ipc import client
from flexo_yarn.ipc.errors import RemoteError, Unreachable
from flexo_yarn.records import resource

EXCEPTIONS: Final = "org.apache.hadoop.yarn.exceptions."


class Service:
    """The ResourceManager's side: registration, numbers of answers, and answers that are lost."""

    is_open = True

    def __init__(self) -> None:
        self.registered = False
        self.last = pb.AllocateResponse(response_id=0)
        self.loses: set[str] = set()
        """Methods that are carried out without an answer, once each."""
        self.asked: set[int] = set()
        self.released: set[int] = set()
        self.token: Token | None = None

    def close(self) -> None: ...

    def call(self, method: str, request: Message, answer: type[Message]) -> Message:
        found = self.allocate(request) if isinstance(request, pb.AllocateRequest) else self.register()
        if method in self.loses:
            self.loses.remove(method)
            raise Unreachable("timed out") from TimeoutError()
        return found

    def register(self) -> Message:
        if self.registered:
            raise RemoteError("", f"{EXCEPTIONS}InvalidApplicationMasterRequestException", "registered")
        self.registered, self.last = True, pb.AllocateResponse(response_id=0)
        return pb.RegisterApplicationMasterResponse()

    def allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        if not self.registered:
            raise RemoteError("", f"{EXCEPTIONS}ApplicationMasterNotRegisteredException", "restarted")
        if request.response_id + 1 == self.last.response_id:
            return self.last
        if request.response_id != self.last.response_id:
            raise RemoteError("", f"{EXCEPTIONS}InvalidApplicationMasterRequestException", "response id")
        self.asked |= {each.priority.priority for each in request.ask}
        self.released |= {each.id for each in request.release}
        self.last = pb.AllocateResponse(response_id=self.last.response_id + 1, am_rm_token=self.token)
        return self.last


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setattr(client, "Connection", lambda *words, **options: made)
    return made


@pytest.fixture
def master(service: Service) -> ApplicationMaster:
    made = ApplicationMaster((("rm", 8030),), Token())
    made.register()
    for _ in range(3):
        made.heartbeat()
    return made


def lost(call: Callable[[], object]) -> None:
    with pytest.raises(Unreachable):
        call()


def test_what_is_new_while_an_answer_is_lost_reaches_yarn_with_the_next_heartbeat(
    service: Service, master: ApplicationMaster
) -> None:
    service.loses = {"allocate"}
    lost(master.heartbeat)
    master.release([pb.ContainerId(id=42)])
    master.ask(Ask(7, resource(64, 1, 1)))
    master.heartbeat()
    master.heartbeat()
    assert (service.asked, service.released) == ({7}, {42})


def test_what_was_new_in_a_heartbeat_that_a_restarted_yarn_refuses_is_not_lost(
    service: Service, master: ApplicationMaster
) -> None:
    master.ask(Ask(7, resource(64, 1, 1)))
    master.release([pb.ContainerId(id=42)])
    service.registered = False
    assert master.heartbeat().resynchronized
    master.heartbeat()
    assert (service.asked, service.released) == ({7}, {42})


def test_after_a_restart_whose_answer_to_the_registration_is_lost_heartbeats_go_on(
    service: Service, master: ApplicationMaster
) -> None:
    service.registered, service.loses = False, {"registerApplicationMaster"}
    lost(master.heartbeat)
    assert master.heartbeat().resynchronized
    assert not master.heartbeat().resynchronized


def test_the_token_that_yarn_sends_is_the_present_one(service: Service, master: ApplicationMaster) -> None:
    service.token = Token(identifier=b"of the next day")
    master.heartbeat()
    assert master.token == service.token
