"""The worker's end of the conversation about partitions: what it says when, and what it believes."""

from __future__ import annotations

import threading
import time

import pytest
from data_job import Session

from flexo_protos.v1 import shards_pb2 as pb
from horovod_elastic.data import shard_client as clients
from horovod_elastic.data.allotment import Opening, Whole
from horovod_elastic.data.shard_client import ShardClient
from horovod_elastic.ranges import Range

WHOLE = Whole("data", 100, 10, 3)


@pytest.fixture
def said():
    return []


@pytest.fixture
def session(said):
    session = Session("a", lambda worker_id, message: said.append(message))
    session.generation = 4
    return session


@pytest.fixture
def client(session):
    client = ShardClient(session, WHOLE)
    client.open(
        Opening(7, (Range(0, 20),), (Range(20, 5), Range(40, 5))), WHOLE, 2, [Range(40, 5)], tell=False
    )
    return client


def answer(*ranges, request=1, generation=4, opening=7, dataset="data", dry=False):
    return pb.Shards(
        dataset=dataset,
        generation=generation,
        opening=opening,
        request=request,
        ranges=[pb.Range(start=start, length=length) for start, length in ranges],
        dry=dry,
    )


def test_rank_0_tells_the_leader_where_the_epoch_stands(session, said):
    ShardClient(session, WHOLE).open(Opening(7, (Range(0, 20),), (Range(20, 5),)), WHOLE, 2, [], tell=True)
    (message,) = said
    assert message.shard_ledger == pb.ShardLedger(
        dataset="data",
        generation=4,
        opening=7,
        samples=100,
        partitions=10,
        seed=3,
        epoch=2,
        consumed=[pb.Range(start=0, length=20)],
        held=[pb.Range(start=20, length=5)],
    )


def test_one_request_is_under_way_at_a_time(client, session, said, monkeypatch):
    monkeypatch.setattr(clients, "RETRY_S", 60.0)
    client.ask(30)
    client.ask(30)
    assert [message.shards_wanted.request for message in said] == [1]
    session.hear(answer((50, 10)))
    client.ask(30)
    assert [message.shards_wanted.request for message in said] == [1, 2]


def test_a_request_without_an_answer_is_said_again_with_the_ledger_and_the_same_number(client, said):
    client.ask(30)  # data_job has set the time to say it again to 0
    client.ask(30)
    asked, ledger, again = said
    assert ledger.shard_ledger.opening == 7
    assert asked == again


@pytest.mark.parametrize(
    "of_another",
    [{"request": 2}, {"generation": 3}, {"opening": 6}, {"dataset": "validation"}],
)
def test_answers_to_something_else_are_not_believed(client, session, of_another):
    client.ask(30)
    session.hear(answer((50, 10), **of_another))
    assert client.answers() == []
    assert len(client.held().ranges) == 1
    session.hear(answer((50, 10)))
    assert len(client.answers()) == 1
    session.hear(answer((60, 10)))  # a second answer to the same request, of another leader
    assert client.answers() == []


def test_every_standing_says_what_it_was_given_since_the_opening(client, session):
    client.ask(30)
    session.hear(answer((50, 10), (90, 10)))
    (held,) = session.held()
    assert (held.dataset, held.generation, held.opening) == ("data", 4, 7)
    assert [(each.start, each.length) for each in held.ranges] == [(40, 5), (50, 10), (90, 10)]
    client.open(Opening(8, (), ()), WHOLE, 3, [], tell=False)
    assert not session.held()[0].ranges


def test_a_dataset_that_was_not_opened_yet_says_nothing(session):
    client = ShardClient(session, Whole("validation", 10, 2, 0))
    assert session.held() == []
    del client


def test_it_waits_for_an_answer_and_not_for_a_leader_that_is_away(client, session, monkeypatch):
    monkeypatch.setattr(clients, "PATIENCE_S", 0.3)
    monkeypatch.setattr(clients, "RETRY_S", 0.05)
    client.ask(30)
    began = time.monotonic()
    assert not client.wait()
    assert time.monotonic() - began >= 0.3
    timer = threading.Timer(0.1, lambda: session.hear(answer((50, 10))))
    timer.start()
    monkeypatch.setattr(clients, "PATIENCE_S", 60.0)
    assert client.wait()
    timer.join()


def test_outside_of_flexo_there_is_no_session():
    assert clients.find_session() is None
