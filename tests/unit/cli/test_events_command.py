"""`flexo events`: filters, pages, and following a flexod that comes and goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial

import grpc
import pytest
from admin_server import serving
from command_line import Run

from flexo_cli import events
from flexo_protos.v1 import admin_pb2 as pb
from flexo_protos.v1 import admin_pb2_grpc


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """Has an event store, of which one answer holds two entries that are newer than `before`."""

    def __init__(self) -> None:
        self.event_store = [self.event(number, "grow", 7, f"step {number}") for number in range(1, 8)]
        self.asked: list[pb.ListEventsRequest] = []
        self.present = True

    @staticmethod
    def event(number: int, kind: str, job: int, text: str) -> pb.Event:
        return pb.Event(number=number, at=1.7e9 + number, kind=kind, job_id=job, text=text)

    def ListEvents(self, request, context):  # noqa: N802
        if not self.present:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a while")
        if "grew" in request.kinds:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no events of kind 'grew'; there are: ...")
        self.asked.append(request)
        newest = self.event_store[-1].number if self.event_store else 0
        left = [
            each
            for each in reversed(self.event_store)
            if each.number > request.after and (not request.before or each.number < request.before)
        ]
        part = left[: min(2, request.limit)]
        more = part[-1].number if len(left) > len(part) else 0
        return pb.ListEventsReply(events=part, before=more, newest=newest)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    service = Admin()
    with serving(service, monkeypatch):
        yield service


@pytest.fixture
def flexo_events(flexo_run: Run) -> Run:
    return partial(flexo_run, "events")


def test_a_jobs_events_are_a_table_newest_first(admin: Admin, flexo_events: Run) -> None:
    code, out, _ = flexo_events("7", "--last", "3")
    head, *rows = out.splitlines()
    assert code == 0
    assert head.split() == ["TIME", "EVENT", "WHAT"]
    assert [row.split()[-1] for row in rows] == ["7", "6", "5"]
    assert admin.asked[0].job_id == 7


def test_events_of_all_jobs_say_whose_they_are(admin: Admin, flexo_events: Run) -> None:
    admin.event_store = [
        admin.event(1, "lend", 0, "n3 is lent"),
        pb.Event(number=2, at=1.7e9, kind="grow", job_id=8, restart_count=1, text="by 1"),
    ]
    _, out, _ = flexo_events()
    assert [row.split()[1:3] for row in out.splitlines()] == [
        ["EVENT", "JOB"],
        ["grow", "8.r1"],
        ["lend", "n3"],
    ]


def test_filters_reach_flexod_and_all_pages_are_fetched(admin: Admin, flexo_events: Run) -> None:
    before = time.time()
    code, out, _ = flexo_events("--node", "n3", "--kind", "grow", "--kind", "lost", "--since", "2h", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["job_id"] is None
    assert [each["number"] for each in found["events"]] == [7, 6, 5, 4, 3, 2, 1]
    assert found["events"][0] == {
        "number": 7, "at": 1.7e9 + 7, "kind": "grow", "job_id": 7, "restart_count": 0, "text": "step 7",
    }  # fmt: skip
    asked = admin.asked[0]
    assert (asked.node, list(asked.kinds)) == ("n3", ["grow", "lost"])
    assert before - 7200 <= asked.since_at <= time.time() - 7200


def test_a_page_before_a_number_is_fetched_alone(admin: Admin, flexo_events: Run) -> None:
    _, out, _ = flexo_events("--last", "2", "--before", "5", "--json")
    assert [each["number"] for each in json.loads(out)["events"]] == [4, 3]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90s", 1e6 - 90),
        ("1.5h", 1e6 - 5400),
        ("30min", 1e6 - 1800),
        ("2d", 1e6 - 172_800),
        ("99999d", 0.0),
        ("", 0.0),
        ("2027-01-31T12:00:00+00:00", 1_801_396_800.0),
    ],
)
def test_a_time_is_so_long_ago_or_a_date(text: str, at: float) -> None:
    assert events._time(text, 1e6) == at


@pytest.mark.parametrize("text", ["yesterday", "2 h", "-3d", "5y", "2027-13-01", "1e99d"])
def test_a_time_that_is_none_is_a_usage_error_that_says_what_is_one(
    admin: Admin, flexo_events: Run, text: str
) -> None:
    code, _, err = flexo_events("--since", text)
    assert code == 2
    assert "2027-01-31" in err
    assert admin.asked == []


def test_a_kind_that_flexod_does_not_know_is_exit_1_in_its_words(admin: Admin, flexo_events: Run) -> None:
    code, out, err = flexo_events("--kind", "grew")
    assert (code, out) == (1, "")
    assert "there are:" in err


def test_nothing_found_is_said_and_is_an_empty_list_in_json(admin: Admin, flexo_events: Run) -> None:
    admin.event_store = []
    assert flexo_events("9") == (0, "no such events\n", "")
    _, out, _ = flexo_events("9", "--json")
    assert json.loads(out) == {"job_id": 9, "events": []}


def test_what_has_no_end_has_no_page_before(admin: Admin, flexo_events: Run) -> None:
    assert flexo_events("--follow", "--before", "3")[0] == 2


class Looks:
    """Stands for the wait between two looks: does one thing after the other, and then Ctrl-C."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)

    def __call__(self, seconds: float) -> None:
        if not self.steps:
            raise KeyboardInterrupt
        self.steps.pop(0)()


def numbers(out: str) -> list[int]:
    return [json.loads(line)["number"] for line in out.splitlines()]


def test_following_tells_the_last_and_then_each_new_one_once_oldest_first(
    admin: Admin, flexo_events: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def happen(*texts: str) -> None:
        for text in texts:
            admin.event_store.append(admin.event(admin.event_store[-1].number + 1, "shrink", 7, text))

    looks = Looks(lambda: happen("a"), lambda: None, lambda: happen("b", "c", "d", "e", "f"))
    monkeypatch.setattr(events.time, "sleep", looks)
    code, out, _ = flexo_events("--follow", "--last", "3", "--json")
    assert code == 130
    assert numbers(out) == [5, 6, 7, 8, 9, 10, 11, 12, 13]


def test_following_for_people_is_a_line_an_event(
    admin: Admin, flexo_events: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.event_store.append(admin.event(8, "lend", 0, "n3\x1b[2J is lent"))
    monkeypatch.setattr(events.time, "sleep", Looks())
    _, out, _ = flexo_events("--follow", "--last", "2")
    first, second = out.splitlines()
    assert first.split()[1:] == ["grow", "7", "step", "7"]
    assert second.endswith("n3\\x1b[2J is lent")


def test_following_waits_for_a_flexod_that_is_away_and_outlives_a_new_event_store(
    admin: Admin, flexo_events: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        admin.present = False

    def back() -> None:
        admin.present = True
        admin.event_store = [admin.event(1, "daemon", 0, "flexod begins"), admin.event(2, "grow", 8, "by 1")]

    monkeypatch.setattr(events.time, "sleep", Looks(away, lambda: None, back, lambda: None))
    _, out, err = flexo_events("--follow", "--last", "1", "--json")
    assert numbers(out) == [7, 1, 2]
    assert err.count("waiting for it") == 1
    assert err.count("answers again") == 1
