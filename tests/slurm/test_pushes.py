"""An inference cluster's scheduler and a real flexod with real MUNGE: pushes, call backs, what it watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from conftest import LabFactory

from flexo_lab import Lab
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import inference_pb2 as pb
from flexo_protos.v1 import inference_pb2_grpc

SCHEDULER, STRANGER = "games", "nobody"
BOUND_S = 90
PUSHED = f'source = "push"\ninference_users = ["{SCHEDULER}"]\nstale_s = 12.0\nheadroom_servers = 0.0\n'


@pytest.fixture(scope="module")
def pushed_lab(make_lab: LabFactory) -> Iterator[Lab]:
    """Three inference servers; flexod takes demand from SCHEDULER alone."""
    lab = make_lab(nodes=1, gpus_per_node=1, infer_nodes=3, loans=True, flexod=False)
    settings = lab.layout.flexo_toml
    settings.write_text(settings.read_text() + PUSHED)
    lab.start_flexod()
    yield lab
    lab.down()


class Scheduler:
    """Calls flexod as one user of the lab."""

    def __init__(self, lab: Lab, user: str = SCHEDULER) -> None:
        self.lab, self.user = lab, user
        self.channel = grpc.insecure_channel(lab.daemon_address)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)

    def proof(self, method: str) -> tuple[tuple[str, str], ...]:
        """A credential that the user makes with MUNGE's own command."""
        said = f"--string=flexo /flexo.v1.InferenceService/{method}"
        command = ["munge", f"--socket={self.lab.layout.munge_socket}", said]
        made = self.lab.run(["runuser", "-u", self.user, "--", *command]).stdout.strip()
        return ((METADATA_KEY, made),)

    def push(self, servers: float) -> pb.PushDemandReply:
        request = pb.PushDemandRequest(servers=servers, at=time.time())
        return self.stub.PushDemand(request, metadata=self.proof("PushDemand"), timeout=20)

    def call_back(self, call_id: str, servers: int) -> pb.CallBackReply:
        now = time.time()
        request = pb.CallBackRequest(
            call_id=call_id, asked_at=now, deadline_at=now + 60, servers=servers, why="a launch"
        )
        return self.stub.CallBack(request, metadata=self.proof("CallBack"), timeout=20)

    def sees(self, wanted: Callable[[pb.WatchReply], bool], *, needs: float | None = None) -> pb.WatchReply:
        """The first state that is `wanted`; meanwhile it pushes that it needs so many servers."""
        deadline = time.monotonic() + BOUND_S
        seen = pb.WatchReply()
        while time.monotonic() < deadline:
            if needs is not None:
                self.push(needs)
            watch = self.stub.Watch(pb.WatchRequest(), metadata=self.proof("Watch"), timeout=20)
            seen = next(watch)
            watch.cancel()
            if wanted(seen):
                return seen
            time.sleep(0.3)
        pytest.fail(f"it stays at: {seen}")


@pytest.fixture
def scheduler(pushed_lab: Lab) -> Scheduler:
    made = Scheduler(pushed_lab)
    _first_push(made)
    return made


def _first_push(scheduler: Scheduler) -> None:
    """Until flexod has looked at the cluster it takes none."""
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            scheduler.push(3)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise
            time.sleep(0.3)
        else:
            return


def _lent(seen: pb.WatchReply) -> set[str]:
    return {server.node for server in seen.lent}


def test_servers_are_lent_as_pushed_called_back_by_number_and_told_when_empty(scheduler: Scheduler) -> None:
    seen = scheduler.sees(lambda told: len(told.lent) == 2, needs=1)
    before = _lent(seen)
    reply = scheduler.call_back("launch", 1)
    assert reply.text == "1 lent server comes back"
    seen = scheduler.sees(lambda told: any(call.done for call in told.call_backs), needs=2)
    (call,) = seen.call_backs
    assert (call.call_id, call.why, len(call.empty)) == ("launch", "a launch", 1)
    assert _lent(seen) == before - {call.empty[0].node}


def test_a_bad_push_is_refused_and_a_stranger_may_not_push_at_all(
    scheduler: Scheduler, pushed_lab: Lab
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        scheduler.push(-1)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "a number from 0" in refused.value.details()
    with pytest.raises(grpc.RpcError) as refused:
        Scheduler(pushed_lab, STRANGER).push(1)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_without_fresh_pushes_nothing_more_is_lent_and_flexo_loans_says_why(
    scheduler: Scheduler, pushed_lab: Lab
) -> None:
    scheduler.sees(lambda told: not told.lent, needs=3)
    deadline = time.monotonic() + BOUND_S
    while "s old" not in (said := pushed_lab.run(["flexo", "loans"]).stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    assert "nothing more is lent" in said
    assert not _lent(scheduler.sees(lambda told: True))


@pytest.mark.thorough
def test_a_restarted_flexod_has_its_loans_and_is_told_call_backs_again(
    scheduler: Scheduler, pushed_lab: Lab
) -> None:
    lent = _lent(scheduler.sees(lambda told: len(told.lent) == 2, needs=1))
    pushed_lab.restart_flexod(kill=True)
    _first_push(scheduler)
    seen = scheduler.sees(lambda told: True)
    assert not any(call.call_id == "again" for call in seen.call_backs)
    scheduler.call_back("again", 2)
    seen = scheduler.sees(lambda told: not told.lent, needs=3)
    (call,) = (call for call in seen.call_backs if call.call_id == "again")
    assert {server.node for server in call.empty} <= lent
