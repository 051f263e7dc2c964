"""A job's own notices: what its receivers get, and that none of them ever holds the job up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from says import says

from horovod_elastic.leader import notices
from horovod_elastic.leader.notices import Kind, Mailbox, Notices, Wanted, Webhook, wanted

BOUND_S = 20.0


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted, and answers with `status`, once it is `open`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[dict[str, object]] = []
        self.status = 204
        self.open = threading.Event()
        self.open.set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/secret?token=1"

    def told(self) -> list[tuple[object, object]]:
        """Kinds and texts of all events, in their order."""
        events = [event for posted in self.posted for event in posted["events"]]  # type: ignore[attr-defined]
        return [(event["kind"], event["text"]) for event in events]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.open.wait(BOUND_S)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status < 300:
            self.server.posted.append(body)
        self.send_response(self.server.status)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving() as server:
        yield server


@contextmanager
def serving() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.open.set()
    server.shutdown()
    thread.join()
    server.server_close()


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def notices_to(*receivers: Webhook | Mailbox, kinds: frozenset[Kind] = frozenset(Kind)) -> Notices:
    return Notices(Wanted(receivers, kinds), "17", 1)


def test_a_webhook_hears_of_growth_shrinking_losses_and_the_end(receiver: Receiver) -> None:
    told = notices_to(Webhook(receiver.address))
    told.sized(0, 2)
    told.sized(2, 4)
    told.lost("t3", "its agent is gone")
    told.leaves("t2", "the cluster takes the node back")
    told.sized(4, 3)
    told.ended(0, "the script has ended")
    told.close()
    assert [kind for kind, _ in receiver.told()] == ["grow", "lost", "shrink", "end"], (
        "no notice of the start"
    )
    grow, lost, shrink, end = (str(text) for _, text in receiver.told())
    assert says(grow, "4 workers", "2 before")
    assert says(shrink, "3 workers", "4 before", "t2: the cluster takes the node back")
    assert says(lost, "t3", "its agent is gone")
    assert says(end, "exit code 0", "the script has ended")
    events = receiver.posted[0]["events"]
    assert isinstance(events, list)
    assert (events[0]["job_id"], events[0]["restart_count"]) == (17, 1)
    assert says(str(receiver.posted[0]["text"]), "grow", "job 17")


def test_events_of_a_moment_go_together_and_kinds_that_nobody_wants_are_left_out(receiver: Receiver) -> None:
    told = notices_to(Webhook(receiver.address), kinds=frozenset({Kind.GROW, Kind.END}))
    told.sized(1, 2)
    until(lambda: receiver.posted)
    for size in range(2, 7):
        told.sized(size, size + 1)
        told.sized(size + 1, size)
    told.ended(3, "the script has failed")
    told.close()
    assert len(receiver.posted) == 2
    assert [kind for kind, _ in receiver.told()] == ["grow"] * 6 + ["end"]


def test_a_pause_is_told_and_going_on_is_growth(receiver: Receiver) -> None:
    told = notices_to(Webhook(receiver.address))
    told.paused(2)
    told.sized(0, 3)
    told.close()
    assert [kind for kind, _ in receiver.told()] == ["shrink", "grow"]


def test_a_receiver_that_does_not_answer_delays_nothing_and_the_end_by_seconds_at_most(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_END_WITHIN_S", 0.3)
    receiver.open.clear()
    told = notices_to(Webhook(receiver.address))
    began = time.monotonic()
    for size in range(1, 1000):
        told.sized(size, size + 1)
    told.ended(0, "the script has ended")
    told.close()
    assert time.monotonic() - began < BOUND_S / 2


@pytest.mark.parametrize("status", [302, 500])
def test_a_receiver_that_refuses_is_named_once_without_its_secret_and_gets_the_events_later(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    monkeypatch.setattr(notices, "POSTS_EVERY_S", 0.01)
    receiver.status = status
    told = notices_to(Webhook(receiver.address))
    told.sized(1, 2)
    said = ""

    def is_said() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "not delivered" in said

    until(is_said)
    told.sized(2, 3)
    time.sleep(0.2)
    said += capfd.readouterr().err
    assert said.count("not delivered") == 1
    assert says(said, "127.0.0.1", str(status))
    assert "secret" not in said
    receiver.status = 204
    told.ended(0, "the script has ended")
    told.close()
    assert [kind for kind, _ in receiver.told()] == ["grow", "grow", "end"]


@pytest.mark.processes
def test_a_mail_goes_through_the_nodes_own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/mail\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = notices_to(Mailbox("ann@example.org"))
    told.sized(1, 2)
    told.ended(0, "the script has ended")
    told.close()
    mail = (tmp_path / "mail").read_text()
    assert says(mail, "To: ann@example.org", "job 17", "Auto-Submitted: auto-generated")
    assert (tmp_path / "arguments").read_text() == "-i -t\n", "the receiver is in no argument"


def test_a_node_without_sendmail_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(notices, "_SENDMAIL_PLACES", str(tmp_path))
    told = notices_to(Mailbox("ann@example.org"))
    told.ended(0, "the script has ended")
    told.close()
    assert says(capfd.readouterr().err, "ann@example.org", "no program `sendmail`")


def test_several_receivers_and_kinds_are_read() -> None:
    asked = wanted(
        {
            "FLEXO_NOTIFY": "https://chat.example.org/hook/x?y=1  mail:ann@example.org http://localhost:8080",
            "FLEXO_NOTIFY_KINDS": "end, lost",
        }
    )
    assert asked.receivers == (
        Webhook("https://chat.example.org/hook/x?y=1"),
        Mailbox("ann@example.org"),
        Webhook("http://localhost:8080"),
    )
    assert asked.kinds == {Kind.END, Kind.LOST}
    assert wanted({}) == Wanted((), frozenset(Kind))


@pytest.mark.parametrize(
    ("variable", "text", "named"),
    [
        ("FLEXO_NOTIFY", "https://a.example.org ftp://secret", "receiver 2"),
        ("FLEXO_NOTIFY", "http://chat.example.org/x", "https://"),
        ("FLEXO_NOTIFY", "mail:ann", "mail:NAME@HOST"),
        ("FLEXO_NOTIFY", "ann@example.org", "mail:NAME@HOST"),
        ("FLEXO_NOTIFY_KINDS", "grow,starts", "'starts'"),
    ],
)
def test_what_is_no_receiver_or_kind_is_refused_with_what_is_allowed(
    variable: str, text: str, named: str
) -> None:
    with pytest.raises(ValueError, match=variable) as caught:
        wanted({variable: text})
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)
