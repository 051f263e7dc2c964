"""What flexod tells a webhook and a mail server, how often, and that neither ever holds it up."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from certificates import MadeAuthority, Pair
from mail_server import MailServer
from structlog.testing import capture_logs

from flexo.control.watch import Unwatched
from flexo.events import Event
from flexo.model.queue import JobKey
from flexo.notices import channel, mail, webhook
from flexo.notices.channel import Channel
from flexo.notices.notice import Notice, Undelivered
from flexo.notices.settings import NoticesSettings
from flexo.service.announcing import Announcing

BOUND_S = 20.0
GROW = Event(1795767160.2, "grow", JobKey(17), "grow by 3 workers on t2: t2 has idle GPUs")
END = Event(1795767190.0, "end", JobKey(17, 1), "COMPLETED after 30 s")
NOTICE = Notice((GROW, END))


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- the webhook ----------------------------------------------------------------------------------


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted, and answers with `status`."""

    def __init__(self, pair: Pair | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[dict[str, object]] = []
        self.status = 204
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that does not trust us hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(json.loads(body))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def receiving(pair: Pair | None = None) -> Iterator[Receiver]:
    with Receiver(pair) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def hook(server: Receiver, scheme: str = "http", **changes: object) -> NoticesSettings:
    return NoticesSettings(webhook=f"{scheme}://127.0.0.1:{server.server_port}/secret?x=1", **changes)


def test_a_webhook_gets_events_and_a_text_for_people() -> None:
    with receiving() as server:
        webhook.post(hook(server), Notice((GROW, END), left_out=3))
    (said,) = server.posted
    assert said["left_out"] == 3
    assert said["events"] == [
        {"at": GROW.at, "kind": "grow", "job_id": 17, "restart_count": 0, "text": GROW.text},
        {"at": END.at, "kind": "end", "job_id": 17, "restart_count": 1, "text": END.text},
    ]
    text = str(said["text"]).splitlines()
    assert "3 events" in text[0]
    assert "grow" in text[1]
    assert GROW.text in text[1]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_answer_that_is_no_success_is_not_delivered_and_names_no_secret(status: int) -> None:
    with receiving() as server:
        server.status = status
        with pytest.raises(Undelivered, match=str(status)) as raised:
            webhook.post(hook(server), NOTICE)
    assert "secret" not in str(raised.value)
    assert len(server.posted) == 1, "a redirection is not followed"


@pytest.mark.processes
def test_the_certificate_of_a_webhook_is_verified(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = MadeAuthority(tmp_path / "ours"), MadeAuthority(tmp_path / "theirs")
    with receiving(ours.sign("hook")) as server:
        webhook.post(hook(server, "https", authorities=ours.file), NOTICE)
        for authorities in (theirs.file, None):
            with pytest.raises(Undelivered, match="certificate"):
                webhook.post(hook(server, "https", authorities=authorities), NOTICE)
    with (
        receiving(ours.sign("other", "DNS:elsewhere.example.org")) as server,
        pytest.raises(Undelivered, match="certificate"),
    ):
        webhook.post(hook(server, "https", authorities=ours.file), NOTICE)
    assert len(server.posted) == 0


def test_a_receiver_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WITHIN_S", 0.2)
    with receiving() as server:
        address = hook(server)
        server.shutdown()  # the port takes connections, and nobody serves them
        with pytest.raises(Undelivered):
            webhook.post(address, NOTICE)


# --- mail -----------------------------------------------------------------------------------------


def mailbox(server: MailServer, **changes: object) -> NoticesSettings:
    said = {"mail_from": "flexod@example.org", "mail_to": ("ada@example.org", "bob@example.org")}
    return NoticesSettings(**{"mail_server": server.address, "mail_tls": "none", **said, **changes})


def test_a_mail_has_its_receivers_a_subject_and_a_line_for_each_event() -> None:
    with MailServer() as server:
        mail.send(mailbox(server), NOTICE)
    (taken,) = server.mails
    assert taken["To"] == "ada@example.org, bob@example.org"
    assert taken["From"] == "flexod@example.org"
    assert taken["Subject"] == "flexo: 1 grow, 1 end"
    assert [line.split("  ")[1] for line in taken.get_content().splitlines()] == ["grow", "end"]


def test_what_a_user_wrote_steers_neither_the_mail_nor_a_terminal() -> None:
    hostile = "x\r\n.\r\nRCPT TO:<eve@example.org>\x1b[2J\u202e"
    with MailServer() as server:
        mail.send(mailbox(server), Notice((Event(0.0, "grow", JobKey(1), hostile),)))
    (taken,) = server.mails
    assert len(taken.get_content().splitlines()) == 1
    assert "\x1b" not in taken.get_content()
    assert taken["To"] == "ada@example.org, bob@example.org"


@pytest.mark.processes
@pytest.mark.parametrize("how", ["starttls", "tls"])
def test_a_mail_server_s_certificate_is_verified(tmp_path: Path, how: str) -> None:
    authority = MadeAuthority(tmp_path)
    with MailServer(authority.sign("mail"), tls_at_once=how == "tls") as server:
        mail.send(mailbox(server, mail_tls=how, authorities=authority.file), NOTICE)
        assert server.encrypted == [True]
        with pytest.raises(Undelivered, match="certificate"):
            mail.send(mailbox(server, mail_tls=how), NOTICE)
    assert len(server.mails) == 1


def test_a_server_without_tls_gets_no_mail_where_tls_is_configured() -> None:
    with MailServer() as server, pytest.raises(Undelivered, match="STARTTLS"):
        mail.send(mailbox(server, mail_tls="starttls"), NOTICE)
    assert server.mails == []


def test_a_receiver_that_the_server_refuses_is_named_and_the_others_get_one_mail() -> None:
    with MailServer(refuses="bob") as server, capture_logs() as logs:
        mail.send(mailbox(server), NOTICE)
    assert len(server.mails) == 1
    assert [entry["refused"] for entry in logs] == [["bob@example.org"]]


def test_a_mail_that_no_receiver_takes_is_undelivered() -> None:
    with MailServer(refuses="bob") as server, pytest.raises(Undelivered, match=r"bob@example\.org"):
        mail.send(mailbox(server, mail_to=("bob@example.org",)), NOTICE)


# --- how often, and whom it holds up --------------------------------------------------------------


class Delivery:
    """Takes notices, after the errors in `fails`; waits for `free` if it is given."""

    def __init__(self, fails: int = 0, free: threading.Event | None = None) -> None:
        self.fails = fails
        self.free = free
        self.taken: list[tuple[float, Notice]] = []

    def __call__(self, notice: Notice) -> None:
        if self.free is not None:
            self.free.wait(BOUND_S)
        if self.fails:
            self.fails -= 1
            raise Undelivered("nobody there")
        self.taken.append((time.monotonic(), notice))

    @property
    def events(self) -> int:
        return sum(len(notice.events) + notice.left_out for _, notice in self.taken)


def test_events_that_come_soon_after_a_notice_go_together_in_the_next() -> None:
    delivery = Delivery()
    told = Channel("test", delivery, every_s=0.3)
    for _ in range(20):
        told.take([GROW])
        time.sleep(0.005)
    until(lambda: delivery.events == 20)
    told.close()
    assert len(delivery.taken) <= 3
    times = [at for at, _ in delivery.taken]
    assert all(later - at >= 0.25 for at, later in pairwise(times))


def test_a_notice_has_a_bounded_number_of_events() -> None:
    delivery = Delivery()
    told = Channel("test", delivery, every_s=0.01)
    told.take([GROW] * 250)
    until(lambda: delivery.events == 250)
    told.close()
    assert max(len(notice.events) for _, notice in delivery.taken) <= channel.MOST_IN_ONE


def test_a_receiver_that_never_answers_holds_nobody_up_and_costs_no_memory() -> None:
    free = threading.Event()
    delivery = Delivery(free=free)
    told = Channel("test", delivery, every_s=0.01)
    began = time.monotonic()
    for _ in range(1000):
        told.take([GROW] * 10)
    assert time.monotonic() - began < 2.0, "10,000 events were handed over to a receiver that takes none"
    free.set()
    until(lambda: delivery.events == 10_000)
    told.close()
    assert (
        sum(len(notice.events) for _, notice in delivery.taken) <= channel.MOST_WAITING + channel.MOST_IN_ONE
    )


def test_a_notice_that_is_not_taken_is_tried_again_and_then_counted() -> None:
    delivery = Delivery(fails=channel.TRIES)
    told = Channel("test", delivery, every_s=0.01, retry_s=0.01)
    told.take([GROW, END])
    until(lambda: delivery.fails == 0)
    time.sleep(0.05)
    assert delivery.taken == []
    told.take([GROW])
    until(lambda: delivery.taken)
    told.close()
    assert delivery.taken[0][1] == Notice((GROW,), left_out=2)
    once = Delivery(fails=1)
    told = Channel("test", once, every_s=0.01, retry_s=0.01)
    told.take([GROW])
    until(lambda: once.taken)
    told.close()


def test_a_channel_ends_soon_whatever_its_receiver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_END_WITHIN_S", 0.1)
    stuck = Channel("test", Delivery(free=threading.Event()), every_s=1.0)
    stuck.take([GROW])
    time.sleep(0.05)
    began = time.monotonic()
    stuck.close()
    assert time.monotonic() - began < 2.0


class Counting(Unwatched):
    """Keeps the events that it is told of."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def happened(self, events: object) -> None:
        self.kinds += [event.kind for event in events]  # type: ignore[attr-defined]


def test_only_events_of_the_configured_kinds_are_told_and_all_are_counted() -> None:
    counting = Counting()
    with receiving() as server:
        announcing = Announcing(counting, hook(server, kinds=("end",), webhook_every_s=0.1))
        extend = Event(1.0, "extend", JobKey(17), "until noon")
        announcing.happened(iter((GROW, extend, END)))
        until(lambda: server.posted)
        announcing.close()
    assert counting.kinds == ["grow", "extend", "end"]
    assert [event["kind"] for event in server.posted[0]["events"]] == ["end"]  # type: ignore[attr-defined]


def test_without_receivers_nothing_is_sent() -> None:
    counting = Counting()
    announcing = Announcing(counting, NoticesSettings())
    announcing.happened((GROW,))
    announcing.close()
    assert counting.kinds == ["grow"]
