"""What a job gains from its satellites, as leaders add it up one after the other."""

from __future__ import annotations

import pytest

from flexo_protos.v1 import workers_pb2 as pb
from horovod_elastic.leader.accounting import Accounting


def test_workers_in_satellites_are_counted_by_their_gpus_and_the_time_that_they_train() -> None:
    accounting = Accounting(100.0)
    for workers, now in ((0, 200.0), (3, 260.0), (5, 320.0), (0, 400.0)):
        accounting.train(workers, now)
    assert accounting.told().satellite_worker_s == 3 * 60 + 5 * 60
    assert accounting.sentence(gpus=2).startswith("16 GPU minutes trained on satellites")
    assert accounting.sentence(gpus=0).startswith("8 worker minutes trained on satellites")


def test_a_resize_is_another_number_of_workers_than_before_and_the_first_generation_is_none() -> None:
    accounting = Accounting(0.0)
    for workers in (2, 4, 4, 3, 2):  # the third only replaces a worker
        accounting.go(workers)
    assert accounting.told().resizes == 3


def test_a_pause_is_as_long_as_that_of_the_worker_that_waited_longest() -> None:
    accounting = Accounting(0.0)
    for generation, seconds in ((1, 0.0), (2, 0.1), (2, 0.3), (2, 0.2), (3, 0.5), (2, 9.0)):
        accounting.paused(generation, seconds)
    assert accounting.told().paused_s == pytest.approx(0.8)


def test_the_next_leader_goes_on_from_the_highest_that_any_agent_has_heard() -> None:
    first = Accounting(0.0)
    first.go(2)
    first.train(0, 10.0)
    older = first.told()
    first.go(4)
    first.train(2, 70.0)
    first.paused(2, 0.25)
    second = Accounting(500.0)
    for told in (pb.Accounting(), first.told(), older):
        second.inherit(told)
    assert second.told() == first.told()
    second.paused(2, 0.25)  # its workers say so again and again
    second.train(2, 530.0)
    second.go(2)
    second.paused(3, 0.5)
    told = second.told()
    assert (told.satellite_worker_s, told.resizes, told.paused_s) == (180.0, 2, 0.75)


@pytest.mark.parametrize(
    ("worker_s", "resizes", "paused_s", "sentence"),
    [
        (24_720, 7, 0.3, "412 GPU minutes trained on satellites, 7 resizes, 0.3 s paused"),
        (60, 1, 0.04, "1 GPU minute trained on satellites, 1 resize, 0.0 s paused"),
        (25, 2, 1.26, "0.4 GPU minutes trained on satellites, 2 resizes, 1.3 s paused"),
        (0, 0, 0, "0 GPU minutes trained on satellites, 0 resizes, 0.0 s paused"),
    ],
)
def test_the_sentence_has_numbers_that_people_read(
    worker_s: float, resizes: int, paused_s: float, sentence: str
) -> None:
    accounting = Accounting(0.0)
    accounting.inherit(pb.Accounting(satellite_worker_s=worker_s, resizes=resizes, paused_s=paused_s))
    assert accounting.sentence(gpus=1) == sentence
