"""What hvd.start_timeline writes: valid for Chrome, by rank 0 only, and whole across a resize."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horovod_elastic.core.c10d.requests import Operation, Request, Response
from horovod_elastic.core.c10d.timeline import Timeline

ASKED = Request(Operation.ALLREDUCE, "allreduce.weight", dtype="torch.float32", shapes=((3,),))


def carry_out(timeline: Timeline, request: Request = ASKED, at_s: float = 0.0) -> None:
    work: Any = SimpleNamespace(request=request)
    timeline.submitted(work)
    timeline.carried_out(Response((request,)), at_s, at_s + 0.25)


def names(path: Path) -> list[str]:
    """What happened, without what only describes rows."""
    return [f"{event['ph']} {event['name']}" for event in json.loads(path.read_text()) if event["ph"] != "M"]


OF_ONE = ["B NEGOTIATE_ALLREDUCE", "E NEGOTIATE_ALLREDUCE", "B ALLREDUCE", "E ALLREDUCE"]


def test_a_tensor_has_a_row_with_its_negotiation_and_its_operation(tmp_path: Path) -> None:
    timeline, path = Timeline({}), tmp_path / "trace"
    timeline.place(1, 0)
    timeline.start(str(path))
    carry_out(timeline)
    carry_out(timeline, Request(Operation.BROADCAST, "broadcast.bias"))
    timeline.stop()
    events = json.loads(path.read_text())
    rows = {e["pid"]: e["args"].get("name") for e in events if e["name"] == "process_name"}
    by_row = {rows[e["pid"]]: e["name"] for e in events if e["ph"] == "E"}
    assert by_row == {"allreduce.weight": "ALLREDUCE", "broadcast.bias": "BROADCAST"}
    assert names(path)[:4] == OF_ONE


def test_after_it_was_stopped_nothing_is_written(tmp_path: Path) -> None:
    timeline, path = Timeline({}), tmp_path / "trace"
    timeline.place(1, 0)
    timeline.start(str(path))
    timeline.stop()
    carry_out(timeline)
    assert names(path) == []


@pytest.mark.parametrize(("generation", "rank"), [(1, 1), (-1, 0)])
def test_neither_other_ranks_nor_a_newcomer_that_is_alone_write(
    tmp_path: Path, generation: int, rank: int
) -> None:
    timeline = Timeline({"HOROVOD_TIMELINE": str(tmp_path / "trace")})
    timeline.place(generation, rank)
    carry_out(timeline)
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_across_a_resize_and_pauses_while_another_is_rank_0(tmp_path: Path) -> None:
    timeline, path = Timeline({}), tmp_path / "trace"
    timeline.place(1, 0)
    timeline.start(str(path))
    for generation, rank in ((2, 0), (3, 1), (4, 0)):
        timeline.place(generation, rank)
        carry_out(timeline)
    timeline.stop()
    assert names(path) == 2 * OF_ONE


def test_who_becomes_rank_0_later_leaves_the_first_ones_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    timelines = [Timeline({"HOROVOD_TIMELINE": str(path)}) for _ in range(2)]
    for rank, timeline in enumerate(timelines):
        timeline.place(1, rank)
    carry_out(timelines[0])
    timelines[0].stop()
    timelines[1].place(2, 0)
    carry_out(timelines[1])
    timelines[1].stop()
    assert names(path) == names(tmp_path / "trace.2") == OF_ONE


def test_a_run_replaces_the_file_of_the_run_before(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("of an earlier run")
    timeline = Timeline({"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"})
    timeline.place(1, 0)
    carry_out(timeline)
    timeline.stop()
    assert names(path) == [OF_ONE[0], "i CYCLE_START", *OF_ONE[1:]]


def test_a_file_that_cannot_be_written_costs_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeline = Timeline({"HOROVOD_TIMELINE": str(tmp_path / "nowhere" / "trace")})
    timeline.place(1, 0)
    carry_out(timeline)
    assert "no timeline" in capsys.readouterr().err
