"""Ranks and rank 0 over real connections: all hear the same, and all hear at once when somebody is gone."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from says import says

from flexo_protos.v1 import collectives_pb2 as pb
from horovod_elastic.core.c10d import framing
from horovod_elastic.core.c10d import hub as hubs
from horovod_elastic.core.c10d.alone import Alone
from horovod_elastic.core.c10d.channel import Channel
from horovod_elastic.core.c10d.hub import Hub
from horovod_elastic.core.c10d.messages import Blocked, Heard, Step, WaitStep
from horovod_elastic.core.c10d.negotiation import Negotiation
from horovod_elastic.core.c10d.requests import Operation, Request, RequestKey, key_of
from horovod_elastic.core.c10d.spoke import Spoke

LONG_S = 30.0
"""For what happens at once unless the machine is busy."""
HERE = "127.0.0.1"
TOKEN = "a secret"


class Ear:
    """A Listener that keeps what it hears."""

    def __init__(self) -> None:
        self.here = threading.Event()
        self.left = threading.Event()
        self.over = threading.Event()
        self.why = ""
        self.times_broken = 0
        self.without: list[int] = []
        self.decided: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.store: dict[str, bytes] = {}
        self.on_entry: Callable[[], object] = lambda: None

    outlives = True
    """What it says once Channel.outlive was called."""

    def all_here(self) -> None:
        self.here.set()

    def gone(self, rank: int) -> None:
        self.without.append(rank)

    def entry(self, key: str, value: bytes) -> None:
        self.on_entry()
        self.store[key] = value

    def heard(self, heard: Heard) -> None:
        assert not self.over.is_set()
        self.decided.put(heard)

    def all_left(self) -> None:
        self.left.set()

    def broken(self, why: str) -> None:
        self.times_broken += 1
        self.why = self.why or why
        self.over.set()


class Generation:
    """All ranks of one, in this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ears = [Ear() for _ in range(size)]
        self.hub = Hub(HERE, size, TOKEN, Negotiation(size, 100), self.ears[0])
        self.channels: list[Channel] = [self.hub]
        for rank in range(1, size):
            self.channels.append(Spoke((HERE, self.hub.port), rank, TOKEN, self.ears[rank]))
        for ear in self.ears:
            assert ear.here.wait(LONG_S) or size == 1

    def all_say(self, *steps: Step) -> None:
        for channel in self.channels:
            channel.steps(steps)

    def next_heard(self) -> list[Heard]:
        return [ear.decided.get(timeout=LONG_S) for ear in self.ears]

    def goes_on(self) -> bool:
        """Nothing broke: after whatever was said so far, all hear of a collective that all ask for."""
        request = Request(Operation.BARRIER, "it goes on")
        self.all_say(request)
        all_heard = all(heard.keys == (key_of(request),) for heard in self.next_heard())
        return all_heard and not any(ear.over.is_set() or ear.left.is_set() for ear in self.ears)

    def why(self, *but: int) -> str:
        """It broke, and all but those were told the same."""
        told = [ear for rank, ear in enumerate(self.ears) if rank not in but]
        for ear in told:
            assert ear.over.wait(LONG_S)
        (why,) = {ear.why for ear in told}
        return why

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


@pytest.fixture
def generation(request: pytest.FixtureRequest) -> Iterator[Generation]:
    made = Generation(getattr(request, "param", 3))
    yield made
    made.close()


def reduce(name: str) -> Request:
    return Request(Operation.ALLREDUCE, name, "torch.float32", ((1,),))


def eventually(holds: Callable[[], bool]) -> bool:
    limit = time.monotonic() + LONG_S
    while not holds() and time.monotonic() < limit:
        time.sleep(0.01)
    return holds()


# --- all is well --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [2, 3, 40], indirect=True)
def test_all_hear_what_is_done_in_one_order(generation: Generation) -> None:
    for _ in range(3):
        names = [f"t{number}" for number in range(20)]
        for rank, channel in enumerate(generation.channels):
            mine = names[rank % 20 :] + names[: rank % 20]
            for name in mine[:19]:
                channel.steps([Request(Operation.BARRIER, name)])
            channel.steps([Request(Operation.BARRIER, mine[19]), WaitStep()])
        told: list[list[RequestKey]] = [[] for _ in generation.channels]
        for _ in names:
            for keys, heard in zip(told, generation.next_heard(), strict=True):
                keys += heard.keys
        assert sorted(told[0]) == sorted((0, name) for name in names)
        assert all(keys == told[0] for keys in told)


def test_requests_of_many_threads_of_a_rank_are_all_heard(generation: Generation) -> None:
    def ask(channel: Channel, first: int) -> None:
        for number in range(first, 400, 4):
            channel.steps([Request(Operation.BARRIER, f"t{number % 100}.{number}")])

    threads = [
        threading.Thread(target=ask, args=(channel, first))
        for channel in generation.channels
        for first in range(4)
    ]
    for thread in threads:
        thread.start()
    heard = [generation.next_heard() for _ in range(400)]
    for thread in threads:
        thread.join()

    assert len({each[0].keys for each in heard}) == 400
    assert all(each[0].keys == each[1].keys == each[2].keys for each in heard)


def test_what_anybody_puts_on_the_shelf_reaches_all(generation: Generation) -> None:
    for rank, channel in enumerate(generation.channels):
        channel.put(f"of {rank}", bytes([rank]) * 1000)

    store = {f"of {rank}": bytes([rank]) * 1000 for rank in range(3)}
    assert eventually(lambda: all(ear.store == store for ear in generation.ears))


def test_errors_are_heard_by_those_who_asked_and_nothing_breaks(generation: Generation) -> None:
    for rank, channel in enumerate(generation.channels):
        channel.steps([Request(Operation.BROADCAST, "b", root=rank // 2)])

    assert all("root ranks" in heard.error for heard in generation.next_heard())
    assert generation.goes_on()


def test_who_asks_in_a_process_set_that_there_is_not_is_told_alone(generation: Generation) -> None:
    generation.channels[2].steps([Request(Operation.BARRIER, "b", process_set=5)])

    assert "process set 5" in generation.ears[2].decided.get(timeout=LONG_S).error
    assert generation.goes_on()


def test_ranks_that_wait_for_each_other_are_told(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "SILENCE_S", 0.1)
    for channel, name in zip(generation.channels, "aab", strict=True):
        channel.steps([reduce(name), WaitStep(), Blocked((0, name))])

    for heard in generation.next_heard():
        assert says(heard.error, "ranks 0, 1 wait for a", "rank 2")


def test_what_takes_too_long_is_given_up_if_horovods_variable_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.1")
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "1")
    generation = Generation(2)
    generation.channels[1].steps([reduce("a")])

    assert says(generation.ears[1].decided.get(timeout=LONG_S).error, "a", "ranks [0]", "1 s")
    assert says(capfd.readouterr().err, "a", "0.1 s", "ranks [0]")
    generation.close()


# --- the end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [2, 3, 40], indirect=True)
def test_all_hear_when_all_have_left(generation: Generation) -> None:
    for rank, channel in enumerate(generation.channels[:-1]):
        channel.leave()
        channel.put(f"after {rank} has left", b"")
    for words in ("all but one have left", "and that was all"):  # rank 0 speaks in order
        assert eventually(lambda: all(len(ear.store) >= generation.size - 1 for ear in generation.ears))
        generation.channels[-1].put(words, b"")
        assert eventually(lambda words=words: all(words in ear.store for ear in generation.ears))
    assert not any(ear.left.is_set() for ear in generation.ears)
    generation.channels[-1].leave()

    assert all(ear.left.wait(LONG_S) for ear in generation.ears)
    generation.close()
    assert eventually(lambda: not _threads())
    assert not generation.ears[0].over.is_set()


def test_who_leaves_first_may_close_its_line(generation: Generation) -> None:
    generation.channels[2].leave()
    generation.channels[2].close()
    assert generation.ears[2].over.wait(LONG_S)
    generation.channels[1].leave()
    generation.channels[0].leave()

    assert generation.ears[0].left.wait(LONG_S)
    assert generation.ears[1].left.wait(LONG_S)
    generation.close()
    assert eventually(lambda: not _threads())
    assert not generation.ears[0].over.is_set()


def test_who_asks_for_what_needs_somebody_who_left_is_told(generation: Generation) -> None:
    generation.channels[2].leave()
    for channel in generation.channels[:2]:
        channel.steps([reduce("a")])

    for ear in generation.ears[:2]:
        heard = ear.decided.get(timeout=LONG_S)
        assert heard.ended
        assert "rank 2 ended" in heard.error


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_all_hear_when_somebody_closes_its_line(generation: Generation, gone: int) -> None:
    generation.channels[gone].close()

    assert says(generation.why(gone), f"rank {gone}", "gone" if gone else "lost")


@pytest.mark.parametrize("who", [0, 1, 2])
def test_all_hear_why_somebody_hangs_up(generation: Generation, who: int) -> None:
    generation.channels[who].hang_up("its GPU melted")

    assert generation.why(*([who] if who else [])) == "its GPU melted"
    assert generation.ears[who].over.wait(LONG_S)


def test_nothing_is_heard_after_it_broke(generation: Generation) -> None:
    generation.channels[1].hang_up("no more")
    generation.why(1)
    generation.all_say(Request(Operation.BARRIER, "late"))
    for channel in generation.channels:
        channel.put("late", b"")
        channel.leave()
        channel.hang_up("again")
        channel.close()
        channel.close()

    assert eventually(lambda: not _threads())
    assert [ear.times_broken for ear in generation.ears] == [1, 1, 1]
    assert all(ear.decided.empty() and not ear.store for ear in generation.ears)


def test_who_does_not_read_keeps_nobody_from_hearing(generation: Generation) -> None:
    reading = threading.Event()
    generation.ears[2].on_entry = reading.wait
    for number in range(64):
        generation.channels[number % 2].put(str(number), bytes(2**18))

    assert eventually(lambda: len(generation.ears[0].store) == len(generation.ears[1].store) == 64)
    assert len(generation.ears[2].store) < 64
    reading.set()
    ear = generation.ears[2]  # the kernel may have given it up meanwhile
    assert eventually(lambda: len(ear.store) == 64 or ear.over.is_set())


# --- strangers and nonsense ---------------------------------------------------------------------------------


def hello(rank: int, token: str) -> bytes:
    return framing.framed(pb.FromRank(hello=pb.RankHello(rank=rank, token=token)))


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x03\x00\x00\x00\xff\xff\xff",
        framing.framed(pb.FromRank(leaves=True)),
        framing.framed(pb.FromRank(hangs_up="nothing of yours")),
        hello(1, "a guess"),
        hello(0, TOKEN),
        hello(1, TOKEN),
        hello(3, TOKEN),
    ],
)
def test_a_stranger_is_let_go_and_nobody_else_hears_of_it(generation: Generation, says: bytes) -> None:
    with socket.create_connection((HERE, generation.hub.port), timeout=LONG_S) as stranger:
        stranger.sendall(says)
        if not says:
            stranger.shutdown(socket.SHUT_WR)
        assert _is_let_go(stranger)

    assert generation.goes_on()


def test_a_stranger_cannot_have_rank_0_keep_more_than_a_hello(generation: Generation) -> None:
    with socket.create_connection((HERE, generation.hub.port), timeout=LONG_S) as stranger:
        stranger.sendall((framing.MAX_HELLO_BYTES + 1).to_bytes(4, "little"))
        assert _is_let_go(stranger)
    assert generation.goes_on()


def test_a_stranger_who_says_nothing_does_not_stay(
    generation: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "HELLO_WITHIN_S", 0.1)
    with socket.create_connection((HERE, generation.hub.port), timeout=LONG_S) as stranger:
        assert _is_let_go(stranger)
    assert generation.goes_on()


def test_strangers_are_not_without_number(generation: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MOST_STRANGERS", 3)
    strangers = [socket.create_connection((HERE, generation.hub.port), timeout=LONG_S) for _ in range(4)]
    assert _is_let_go(strangers[0]), "the oldest: the newest may be a rank"
    for stranger in strangers:
        stranger.close()
    assert generation.goes_on()


def test_a_rank_comes_in_while_strangers_hold_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MOST_STRANGERS", 20)
    ear = Ear()
    hub = Hub(HERE, 2, TOKEN, Negotiation(2, 100), ear)
    strangers = [socket.create_connection((HERE, hub.port), timeout=LONG_S) for _ in range(200)]
    with socket.create_connection((HERE, hub.port), timeout=LONG_S) as rank:
        rank.sendall(
            hello(1, TOKEN) + framing.framed(pb.FromRank(entries=[pb.StoreEntry(key="key", value=b"v")]))
        )
        assert eventually(lambda: ear.store.get("key") == b"v")
    for stranger in strangers:
        stranger.close()
    hub.close()


def test_a_rank_may_say_more_than_a_hello_in_one_breath() -> None:
    ear = Ear()
    hub = Hub(HERE, 2, TOKEN, Negotiation(2, 100), ear)
    value = b"x" * (10 * framing.MAX_HELLO_BYTES)
    with socket.create_connection((HERE, hub.port), timeout=LONG_S) as rank:
        entry = pb.FromRank(entries=[pb.StoreEntry(key="key", value=value)])
        rank.sendall(hello(1, TOKEN) + framing.framed(entry))
        assert eventually(lambda: ear.store.get("key") == value)
    hub.close()


def _is_let_go(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "says",
    [
        b"\xff\xff\xff\xff",
        b"\x03\x00\x00\x00\xff\xff\xff",
        framing.framed(pb.FromRank(steps=[pb.ProgramStep(asks=pb.CollectiveRequest(operation=99))])),
        framing.framed(
            pb.FromRank(steps=[pb.ProgramStep(asks_again=pb.RequestNumbers(numbers=[5]))]),
        ),
    ],
)
def test_a_rank_that_says_nonsense_is_gone(says: bytes) -> None:
    ear = Ear()
    hub = Hub(HERE, 2, TOKEN, Negotiation(2, 100), ear)
    with socket.create_connection((HERE, hub.port), timeout=LONG_S) as rank:
        rank.sendall(hello(1, TOKEN))
        assert ear.here.wait(LONG_S)
        rank.sendall(says)
        assert ear.over.wait(LONG_S)
    hub.close()

    assert "rank 1 says what cannot be understood" in ear.why


@pytest.mark.parametrize(
    "says",
    [
        b"\xff\xff\xff\xff",
        b"\x03\x00\x00\x00\xff\xff\xff",
        framing.framed(pb.ToRank(collectives=[pb.Collective(numbers=pb.RequestNumbers(numbers=[5]))])),
    ],
)
def test_a_rank_hears_that_it_is_over_when_rank_0_says_nonsense(says: bytes) -> None:
    ear = Ear()
    with socket.create_server((HERE, 0)) as listening:
        spoke = Spoke((HERE, listening.getsockname()[1]), 1, TOKEN, ear)
        rank_0, _ = listening.accept()
        with rank_0:
            rank_0.sendall(says)
            assert ear.over.wait(LONG_S)
    spoke.close()

    assert ear.times_broken == 1


def test_a_listener_that_fails_ends_it_for_all(generation: Generation) -> None:
    def fail() -> None:
        raise MemoryError("shelf full")

    generation.ears[0].on_entry = fail
    generation.channels[1].put("key", b"value")

    assert "shelf full" in generation.why()


def test_messages_are_put_together_from_any_pieces() -> None:
    messages = [pb.FromRank(hangs_up="x" * size) for size in (0, 1, 300, 70000)]
    data = b"".join(map(framing.framed, messages))
    for piece in (1, 7, 1000, len(data)):
        frames = framing.Frames()
        whole = [each for at in range(0, len(data), piece) for each in frames.add(data[at : at + piece])]
        assert [pb.FromRank.FromString(each) for each in whole] == messages


# --- nothing is left behind ---------------------------------------------------------------------------------


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("flexo-")]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("end", ["close", "leave", "hang up"])
def test_nothing_is_left_behind_by_many_generations(end: str) -> None:
    assert eventually(lambda: not _threads())
    before = _descriptors()
    for _ in range(20):
        generation = Generation(4)
        generation.all_say(reduce("a"), WaitStep())
        generation.next_heard()
        if end == "leave":
            for channel in generation.channels:
                channel.leave()
            assert all(ear.left.wait(LONG_S) for ear in generation.ears)
        elif end == "hang up":
            generation.channels[2].hang_up("enough")
            generation.why(2)
        generation.close()

    assert eventually(lambda: not _threads())
    assert _descriptors() <= before


@pytest.mark.processes
def test_a_forked_process_keeps_no_connection_open(generation: Generation) -> None:
    child = os.fork()
    if child == 0:
        for channel in generation.channels:
            channel.forget()
        left = [name for name in os.listdir("/proc/self/fd") if _is_a_socket(name)]  # noqa: PTH208
        os._exit(min(len(left), 255))
    before = len([name for name in os.listdir("/proc/self/fd") if _is_a_socket(name)])  # noqa: PTH208
    _, status = os.waitpid(child, 0)

    assert before - os.waitstatus_to_exitcode(status) >= 5
    assert generation.goes_on()


def _is_a_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")  # noqa: PTH115
    except OSError:
        return False


# --- alone --------------------------------------------------------------------------------------------------


def test_who_is_alone_is_answered_at_once() -> None:
    ear = Ear()
    alone = Alone(Negotiation(1, 100), ear)
    assert ear.here.is_set()
    request = reduce("a")
    alone.steps([request, WaitStep(), Blocked((0, "a")), Request(Operation.JOIN, "join")])

    assert [ear.decided.get_nowait().keys for _ in range(2)] == [(key_of(request),), ((0, "join"),)]
    alone.put("key", b"value")
    alone.leave()
    assert ear.store == {"key": b"value"}
    assert ear.left.is_set()


def test_a_rank_that_is_gone_is_left_out_where_the_others_outlive_it(generation: Generation) -> None:
    generation.hub.outlive()
    spoke = generation.channels[2]
    assert isinstance(spoke, Spoke)
    spoke.close()
    request = Request(Operation.BARRIER, "without rank 2")
    for channel in generation.channels[:2]:
        channel.steps([request])
    for ear in generation.ears[:2]:
        assert ear.decided.get(timeout=LONG_S).keys == (key_of(request),)
        assert not ear.over.is_set()
    assert generation.ears[0].without == [2]


def test_all_hear_that_the_others_cannot_go_on_after_all(generation: Generation) -> None:
    """As where a group of NCCL was made meanwhile."""
    generation.hub.outlive()
    generation.ears[0].outlives = False
    generation.channels[2].close()
    assert "rank 2 is gone" in generation.why(2)


def test_those_who_are_left_leave_in_order(generation: Generation) -> None:
    generation.hub.outlive()
    generation.channels[2].close()
    for channel in generation.channels[:2]:
        channel.leave()
    for ear in generation.ears[:2]:
        assert ear.left.wait(LONG_S)
