"""A worker's end of its sums, with an Aggregator that the test plays frame by frame."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from summing_world import BOUND_S, begin, sums

from horovod_elastic.aggregation import client as client_module
from horovod_elastic.aggregation import frames
from horovod_elastic.aggregation.client import AggregationClient, Key, SumsFailed
from horovod_elastic.aggregation.frames import Frame, Kind
from horovod_elastic.aggregation.heartbeat import Heartbeat
from horovod_elastic.aggregation.memory import ResultMemory, mask_of, shape_from_bytes
from horovod_elastic.aggregation.plan import NEW, Hello, Plan, PlannedNode, from_bytes

PLAN = Plan("17", 1, (PlannedNode("n0", (0, 1), "127.0.0.1", 1, "t"),), 4096)
KEY = sums(("float32", 2000))[0]


class PlayedAggregator:
    """An Aggregator with one worker. It can be away, and be there again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._peer: socket.socket | None = None
        self.result: ResultMemory | None = None
        self.open()

    def open(self) -> None:
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self._path))
        self._door.listen(16)
        self._door.settimeout(BOUND_S)

    def die(self) -> None:
        self._door.close()
        self._path.unlink()
        if self._peer is not None:
            self._peer.close()

    def accept(self) -> Hello:
        self._peer, _ = self._door.accept()
        self._peer.settimeout(BOUND_S)
        frame, _ = self.next()
        assert frame.kind is Kind.HELLO
        return from_bytes(self.text)

    def next(self) -> tuple[Frame, list[int]]:
        assert self._peer is not None
        frame, fds = frames.receive_with_fds(self._peer)
        self.text = frames.receive_text(self._peer, frame)
        return frame, fds

    def send(self, frame: Frame, text: bytes = b"") -> None:
        assert self._peer is not None
        frames.send(self._peer, frame, (text,) if text else ())  # who ends at the frame takes no more

    def register(self) -> int:
        """Hear a key's registration, and answer it. How many descriptors came along."""
        frame, fds = self.next()
        assert frame.kind is Kind.REGISTER
        self.result = ResultMemory(shape_from_bytes(self.text), PLAN.part_bytes, PLAN.size, *fds[1:2])
        os.close(fds[0])
        assert self._peer is not None
        frames.send_with_fds(self._peer, Frame(Kind.REGISTERED, frame.key), [self.result.fd])
        self.result.close()
        return len(fds)

    def finish(self, number: int, ranks: tuple[int, ...] = (0, 1), key: int = 0) -> None:
        assert self.result is not None
        for part in range(2):
            self.result.is_whole(part, number, mask_of(ranks, 2))
        self.send(Frame(Kind.DONE, key, round=number))

    def close(self) -> None:
        for each in (self._door, self._peer):
            if each is not None:
                each.close()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[PlayedAggregator]:
    made = PlayedAggregator(tmp_path / "socket")
    yield made
    made.close()


@pytest.fixture
def failed() -> list[str]:
    return []


@pytest.fixture
def client(tmp_path: Path, played: PlayedAggregator, failed: list[str]) -> Iterator[AggregationClient]:
    made = AggregationClient(str(tmp_path / "socket"), PLAN, 0, failed.append)
    with_ready = threading.Thread(target=lambda: (played.accept(), played.send(Frame(Kind.READY))))
    with_ready.start()
    made.connect(BOUND_S, lambda: False)
    with_ready.join()
    yield made
    made.close(in_order=True)


def registered(client: AggregationClient, played: PlayedAggregator) -> Key:
    answers = threading.Thread(target=played.register)
    answers.start()
    key = client.key(KEY)
    answers.join()
    return key


def until(condition: Callable[[], bool]) -> bool:
    limit = time.monotonic() + BOUND_S
    while not condition() and time.monotonic() < limit:
        time.sleep(0.01)
    return condition()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def ended() -> bool:
    return all(each.name != "flexo-sums" for each in threading.enumerate())


def test_a_sum_is_there_once_the_aggregator_says_so_and_told_once(
    client: AggregationClient, played: PlayedAggregator
) -> None:
    key, told = registered(client, played), list[str]()
    for number in (1, 2):
        client.begin(key, told.append)
        assert played.next()[0] == Frame(Kind.PUSH, 0, round=number)
        played.send(Frame(Kind.DONE, 0, round=number - 1))
        played.finish(number, (0, 1) if number == 1 else (0,))
        played.send(Frame(Kind.DONE, 0, round=number))
        assert until(lambda number=number: len(told) == number)  # type: ignore[misc]
        assert client.missing(key) == (number == 2)
    time.sleep(0.05)
    assert told == ["", ""]
    assert client.contributors(key) == [{0}, {0}]


def test_a_key_that_was_expected_is_registered_before_it_is_asked_for_and_counts_once_it_is_summed(
    client: AggregationClient, played: PlayedAggregator
) -> None:
    answers = threading.Thread(target=played.register)
    answers.start()
    client.expect([KEY])
    answers.join()
    key = client.key(KEY)  # nobody answers a second registration
    assert key.number == 0
    assert client.used() == []
    client.begin(key, lambda _: None)
    assert client.used() == [KEY]


def test_the_next_aggregator_gets_all_keys_and_what_is_unfinished(
    client: AggregationClient, played: PlayedAggregator
) -> None:
    key = registered(client, played)
    played.die()
    assert until(lambda: client._connection is None)
    wait = begin(client, key)
    played.open()
    assert played.accept().keys == 1
    assert played.register() == 2
    assert played.next()[0] == Frame(Kind.PUSH, 0, round=1)
    played.finish(1)
    wait()
    assert played.result is not None
    played.result.numbers[:] = 5
    assert key.result is not None
    assert set(key.result.numbers) == {5.0}, "both have the same memory as before"


def test_the_next_aggregator_hears_who_is_gone(client: AggregationClient, played: PlayedAggregator) -> None:
    played.die()
    assert until(lambda: client._connection is None)
    client.gone(1)
    played.open()
    played.accept()
    assert played.next()[0].kind is Kind.DROP
    assert played.text == mask_of([1], 2)


def test_a_worker_that_never_met_its_aggregator_has_no_keys(tmp_path: Path, played: PlayedAggregator) -> None:
    made = AggregationClient(str(tmp_path / "socket"), PLAN, 1, lambda why: None)
    with pytest.raises(SumsFailed, match="in time"):
        made.connect(0.2, lambda: False)
    hello = played.accept()
    assert (hello.number, hello.keys) == (1, NEW)
    made.close(in_order=False)


def test_a_sum_that_begins_while_keys_are_registered_again_is_pushed_after_its_key(
    client: AggregationClient, played: PlayedAggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = registered(client, played)
    register, began = AggregationClient._register, list[threading.Thread]()

    def slow(self: AggregationClient, connection: socket.socket, registering: Key) -> None:
        began.append(threading.Thread(target=begin, args=(client, key)))
        began[-1].start()
        began[-1].join(0.3)
        register(self, connection, registering)

    monkeypatch.setattr(AggregationClient, "_register", slow)
    played.die()
    played.open()
    played.accept()
    assert [played.next()[0].kind for _ in range(2)] == [Kind.REGISTER, Kind.PUSH]
    began[0].join()


def test_without_an_aggregator_for_a_while_all_that_waits_fails_with_the_reason(
    client: AggregationClient, played: PlayedAggregator, failed: list[str]
) -> None:
    key, told = registered(client, played), list[str]()
    client.begin(key, told.append)
    played.die()
    began = time.monotonic()
    assert until(lambda: bool(failed))
    assert 1.4 < time.monotonic() - began < 3
    assert told == failed
    assert "Aggregator is gone" in failed[0]
    for call in (client.check, lambda: client.begin(key, told.append), lambda: client.key(KEY)):
        with pytest.raises(SumsFailed, match="gone"):
            call()
    played.open()


def test_an_aggregator_that_refuses_says_why(
    client: AggregationClient, played: PlayedAggregator, failed: list[str]
) -> None:
    played.send(Frame(Kind.FAILED), b"the Aggregator on n1 is gone")
    assert until(lambda: bool(failed))
    assert failed == ["the Aggregator on n1 is gone"]


def test_a_frame_that_an_aggregator_does_not_send_is_no_end_without_a_word(
    client: AggregationClient, played: PlayedAggregator, failed: list[str]
) -> None:
    played.send(Frame(Kind.DONE, 77, round=1))
    assert played.accept().keys == 0
    played.die()
    assert until(lambda: bool(failed))
    played.open()


def test_a_key_that_is_asked_for_after_the_end_fails_at_once(
    client: AggregationClient, played: PlayedAggregator
) -> None:
    client.close(in_order=True)
    with pytest.raises(SumsFailed, match="closed"):
        client.key(KEY)


def test_who_waits_for_a_key_hears_of_the_end(client: AggregationClient, played: PlayedAggregator) -> None:
    heard = list[str]()

    def ask() -> None:
        try:
            client.key(KEY)
        except SumsFailed as error:
            heard.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    played.next()
    client.close(in_order=False)
    asking.join(BOUND_S)
    assert heard == ["it was closed"]


@pytest.mark.parametrize("in_order", [True, False])
def test_leaving_in_order_is_told_and_dying_is_not(
    client: AggregationClient, played: PlayedAggregator, in_order: bool
) -> None:
    client.close(in_order=in_order)
    if in_order:
        assert played.next()[0].kind is Kind.BYE
    with pytest.raises(EOFError):
        played.next()
    assert until(ended)


def test_who_leaves_while_the_aggregator_is_away_does_not_come_back(
    client: AggregationClient, played: PlayedAggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    greet, closed = AggregationClient._greet, threading.Event()

    def late(self: AggregationClient, connection: socket.socket) -> None:
        client.close(in_order=True)
        closed.set()
        greet(self, connection)

    monkeypatch.setattr(AggregationClient, "_greet", late)
    played.die()
    played.open()
    assert closed.wait(BOUND_S)
    assert until(ended)


def test_no_descriptor_stays_open_after_restarts_and_the_end(tmp_path: Path, failed: list[str]) -> None:
    before = descriptors()
    played = PlayedAggregator(tmp_path / "another")
    client = AggregationClient(str(tmp_path / "another"), PLAN, 0, failed.append)
    meeting = threading.Thread(target=client.connect, args=(BOUND_S, lambda: False))
    meeting.start()
    played.accept()
    played.send(Frame(Kind.READY))
    meeting.join()
    key = registered(client, played)
    counts = list[int]()
    for _ in range(3):
        played.die()
        played.open()
        played.accept()
        played.register()
        time.sleep(0.05)
        counts.append(descriptors())
    assert counts[0] == counts[-1]
    client.close(in_order=True)
    played.result = None
    played.close()
    del key, client, meeting
    assert until(lambda: ended() and descriptors() <= before)


def test_the_time_without_an_aggregator_is_bounded() -> None:
    assert client_module.AWAY_S <= 1.5


def test_a_connection_that_is_closed_before_anything_was_heard_ends_as_any_other() -> None:
    one, other = socket.socketpair()
    one.close()
    other.close()
    with pytest.raises(EOFError):
        Heartbeat(one, lambda: True)
