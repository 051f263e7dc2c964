"""The leader's link to flexod, against a real gRPC server in this process; only MUNGE is a stand-in."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from says import says

from flexo_protos import flexods
from flexo_protos.credentials import METADATA_KEY, NotAuthentic
from flexo_protos.v1 import jobs_pb2 as pb
from flexo_protos.v1 import jobs_pb2_grpc as rpc
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.leader import daemon_link
from horovod_elastic.leader.daemon_link import DaemonLink

BOUND_S = 20.0


@dataclass
class Flexod(rpc.JobServiceServicer):
    """What a test lets flexod be: it writes down what it hears and says what it is told to."""

    heard: list[pb.FromLeader] = field(default_factory=list)
    credentials: list[str] = field(default_factory=list)
    to_say: queue.SimpleQueue[pb.ToLeader | None] = field(default_factory=queue.SimpleQueue)
    refusal: grpc.StatusCode | None = None
    stands_by: bool = False
    epoch: int = 0

    def Attach(  # noqa: N802
        self, request_iterator: Iterator[pb.FromLeader], context: grpc.ServicerContext
    ) -> Iterator[pb.ToLeader]:
        self.credentials.append(str(dict(context.invocation_metadata())[METADATA_KEY]))
        self.heard.append(next(request_iterator))
        if self.refusal is not None:
            context.abort(self.refusal, "not with you")
        if self.stands_by:
            context.set_trailing_metadata(((flexods.STANDS_BY_KEY, "1"),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "another one is active")
        yield pb.ToLeader(welcome=pb.Welcome(report_interval_s=5, flexod_version="0.9"), epoch=self.epoch)

        def listen() -> None:
            with contextlib.suppress(Exception):  # grpc raises a bare one when the stream breaks
                self.heard.extend(request_iterator)
            self.to_say.put(None)

        threading.Thread(target=listen, daemon=True).start()
        while (message := self.to_say.get()) is not None:
            yield message

    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("body") for message in self.heard]


@pytest.fixture(autouse=True)
def _quick_and_without_munge(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stamp:
        def credential(self, method: str) -> str:
            return f"stamp for {method}"

    monkeypatch.setattr(daemon_link, "new_authenticator", Stamp)
    monkeypatch.setattr(daemon_link, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(daemon_link, "LAST_RETRY_S", 0.1)
    monkeypatch.setattr(daemon_link, "REFUSED_RETRY_S", 0.3)


@dataclass
class Leader:
    """The other end."""

    link: DaemonLink
    said: list[str]
    grants: list[pb.Grants]
    commands: list[pb.Command]
    aggregators: list[pb.Aggregators]


@pytest.fixture
def start_link() -> Iterator[Callable[[str], Leader]]:
    leaders: list[Leader] = []

    def start(address: str) -> Leader:
        said: list[str] = []
        grants: list[pb.Grants] = []
        commands: list[pb.Command] = []
        aggregators: list[pb.Aggregators] = []
        told = (grants.append, commands.append, said.append, aggregators.append)
        link = DaemonLink(address, lambda: pb.Hello(job_id=17), *told)
        link.start()
        leaders.append(Leader(link, said, grants, commands, aggregators))
        return leaders[-1]

    yield start
    for leader in leaders:
        leader.link.close("the test is over")


def serve(flexod: Flexod, port: int = 0) -> tuple[grpc.Server, int]:
    server = grpc.server(ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),))
    rpc.add_JobServiceServicer_to_server(flexod, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, bound


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_says_hello_with_a_credential_then_reports_and_hears_grants_and_aggregators(
    start_link: Callable[[str], Leader],
) -> None:
    flexod = Flexod()
    server, port = serve(flexod)
    leader = start_link(f"127.0.0.1:{port}")
    wait_until(lambda: leader.said)
    [text] = leader.said
    assert says(text, "attached", "flexod 0.9", f"127.0.0.1:{port}")
    leader.link.send(pb.FromLeader(report=pb.Report(workers=2)))
    flexod.to_say.put(pb.ToLeader(grants=pb.Grants(grants=[pb.Grant(grant_id="g1")])))
    wait_until(lambda: leader.grants and len(flexod.heard) == 2)
    assert flexod.kinds() == ["hello", "report"]
    assert flexod.heard[0].hello.job_id == 17
    assert leader.grants[0].grants[0].grant_id == "g1"
    assert flexod.credentials == ["stamp for /flexo.v1.JobService/Attach"]
    flexod.to_say.put(pb.ToLeader(aggregators=pb.Aggregators(version=3)))
    wait_until(lambda: leader.aggregators)
    assert leader.aggregators[0].version == 3
    leader.link.close("done")
    wait_until(lambda: flexod.kinds() == ["hello", "report", "goodbye"])
    server.stop(None)


def test_commands_are_heard_and_answered(start_link: Callable[[str], Leader]) -> None:
    flexod = Flexod()
    server, port = serve(flexod)
    leader = start_link(f"127.0.0.1:{port}")
    wait_until(lambda: leader.said)
    command = pb.Command(id=7, profile=pb.ProfileCommand(workers=pb.WorkerRange(min=1, max=3), batches=5))
    flexod.to_say.put(pb.ToLeader(command=command))
    wait_until(lambda: leader.commands)
    assert leader.commands == [command]
    leader.link.send(pb.FromLeader(command_done=pb.CommandDone(id=7)))
    wait_until(lambda: flexod.kinds() == ["hello", "command_done"])
    server.stop(None)


def test_it_comes_back_with_a_new_hello_after_flexod_was_away(start_link: Callable[[str], Leader]) -> None:
    first, second = Flexod(), Flexod()
    server, port = serve(first)
    leader = start_link(f"127.0.0.1:{port}")
    wait_until(lambda: leader.said)
    server.stop(None).wait()
    wait_until(lambda: len(leader.said) == 2)
    leader.link.send(pb.FromLeader(report=pb.Report()))  # into the void
    server, _ = serve(second, port)
    wait_until(lambda: second.heard and len(leader.said) == 3)
    assert second.kinds() == ["hello"]
    assert [sentence.split(" ")[0] for sentence in leader.said] == ["attached", "no", "attached"]
    server.stop(None)


def test_without_flexod_it_says_so_once(start_link: Callable[[str], Leader]) -> None:
    leader = start_link("127.0.0.1:9")
    wait_until(lambda: leader.said)
    time.sleep(0.5)  # several more attempts
    [text] = leader.said
    assert says(text, "no flexod", "127.0.0.1:9", "training goes on")


def test_a_refusal_is_passed_on_once_and_tried_again_seldom(start_link: Callable[[str], Leader]) -> None:
    flexod = Flexod(refusal=grpc.StatusCode.PERMISSION_DENIED)
    server, port = serve(flexod)
    leader = start_link(f"127.0.0.1:{port}")
    wait_until(lambda: len(flexod.heard) >= 2)
    [text] = leader.said
    assert says(text, f"127.0.0.1:{port}", "refuses", "not with you")
    server.stop(None)


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_what_flexod_answers_for_the_moment_is_said_with_its_address_and_tried_again(
    start_link: Callable[[str], Leader], code: grpc.StatusCode
) -> None:
    flexod = Flexod(refusal=code)
    server, port = serve(flexod)
    leader = start_link(f"127.0.0.1:{port}")
    wait_until(lambda: len(flexod.heard) >= 2 and leader.said)
    [text] = leader.said
    assert says(text, f"127.0.0.1:{port}", code.name, "not with you", "training goes on")
    flexod.refusal = None
    wait_until(lambda: leader.said[-1].startswith("attached"))
    server.stop(None)


def test_without_munge_it_says_so_and_training_goes_on(
    start_link: Callable[[str], Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def credential(self, method: str) -> str:
            raise NotAuthentic("munged does not answer")

    monkeypatch.setattr(daemon_link, "new_authenticator", Broken)
    leader = start_link("127.0.0.1:9")
    wait_until(lambda: leader.said)
    [text] = leader.said
    assert says(text, "munged does not answer", "training goes on")


def test_closing_ends_its_thread_even_while_it_waits_to_try_again(
    start_link: Callable[[str], Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_link, "FIRST_RETRY_S", 600.0)
    leader = start_link("127.0.0.1:9")
    wait_until(lambda: leader.said)
    leader.link.close("done")
    assert not leader.link._thread.is_alive()


def test_of_several_flexods_the_active_one_is_found_and_when_it_dies_its_successor(
    start_link: Callable[[str], Leader],
) -> None:
    first, second = Flexod(stands_by=True), Flexod(epoch=4)
    (one, a), (other, b) = serve(first), serve(second)
    leader = start_link(f"127.0.0.1:{a},127.0.0.1:{b}")
    wait_until(lambda: leader.said)
    [text] = leader.said
    assert says(text, "attached", "flexod 0.9", f"127.0.0.1:{b}")
    assert not says(text, f"127.0.0.1:{a}"), "not a word of who stands by"
    other.stop(None)
    wait_until(lambda: len(leader.said) == 2)
    first.stands_by, first.epoch = False, 5
    wait_until(lambda: len(leader.said) == 3)
    alone, again = leader.said[1:]
    assert says(alone, f"127.0.0.1:{a} stands by", f"no flexod at 127.0.0.1:{b}", "training goes on")
    assert says(again, "attached", "flexod 0.9", f"127.0.0.1:{a}")
    first.to_say.put(pb.ToLeader(grants=pb.Grants(), epoch=5))
    wait_until(lambda: leader.grants)
    one.stop(None)


def test_a_flexod_that_has_been_replaced_is_not_obeyed_any_more(start_link: Callable[[str], Leader]) -> None:
    new, old = Flexod(epoch=8), Flexod(epoch=7)
    (one, a), (other, b) = serve(new), serve(old)
    leader = start_link(f"127.0.0.1:{a},127.0.0.1:{b}")
    wait_until(lambda: leader.said)
    old.to_say.put(pb.ToLeader(grants=pb.Grants(grants=[pb.Grant(grant_id="old")]), epoch=7))
    one.stop(None)
    wait_until(lambda: len(old.heard) > 2)
    assert not any(says(text, "attached", f"127.0.0.1:{b}") for text in leader.said)
    assert leader.grants == []
    other.stop(None)


def test_where_flexod_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "flexo.toml"
    monkeypatch.delenv("FLEXO_DAEMON", raising=False)
    monkeypatch.setenv("FLEXO_CONFIG", str(file))
    assert daemon_address() is None
    for text in ("[service", "service = 3", "[service]\naddress = 3", "[other]\na = 1", "\udcff"):
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert daemon_address() is None
    file.write_text('[service]\naddress = "head:1"\n')
    assert daemon_address() == "head:1"
    file.write_text('[service]\naddress = "head:1"\n[high_availability]\nhosts = ["a:1", "b:2"]\n')
    assert daemon_address() == "a:1,b:2"
    monkeypatch.setenv("FLEXO_DAEMON", "other:2")
    assert daemon_address() == "other:2"
