"""A job's own notices: its leader tells its user of growth, shrinking, lost satellites and the end.

FLEXO_NOTIFY names the receivers: webhooks, and addresses for the node's own program `sendmail`. The leader
runs as the job's user, and so do the posts and mails. Whatever a receiver does, training does not wait for
it. The address of a webhook is a secret of the user's: it is in no message.
"""

from __future__ import annotations

import enum
import http.client
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from functools import partial
from typing import Final

from flexo_protos.http_exchange import SAFE_ADDRESS, HttpRequest, exchange
from horovod_elastic import threads
from horovod_elastic.trace import count, say, say_error

VARIABLE: Final = "FLEXO_NOTIFY"
KINDS_VARIABLE: Final = "FLEXO_NOTIFY_KINDS"
_WEBHOOK: Final = re.compile(SAFE_ADDRESS)
_MAIL: Final = re.compile(r"mail:([A-Za-z0-9_.+=-]+@[A-Za-z0-9.-]+)")
_ALLOWED: Final = "https://HOST/..., http://localhost:PORT/..., or mail:NAME@HOST"
_SENDMAIL_PLACES: Final = "/usr/sbin:/usr/lib"
_WITHIN_S: Final = 10.0
"""The time that a receiver has for a delivery."""
POSTS_EVERY_S: Final = 5.0
MAILS_EVERY_S: Final = 60.0
_MOST_WAITING: Final = 100
"""The most events that wait for a receiver. The oldest go first."""
_END_WITHIN_S: Final = 5.0
"""The time that the last notice has when the leader ends."""


class Kind(enum.Enum):
    """What a notice is about, as `[notices]` of flexod's configuration names it."""

    GROW = "grow"
    SHRINK = "shrink"
    LOST = "lost"
    END = "end"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of posts."""

    address: str

    def __str__(self) -> str:
        """The receiver for people, without what may be secret."""
        return f"the webhook on {urllib.parse.urlsplit(self.address).hostname}"


@dataclass(frozen=True, slots=True)
class Mailbox:
    """A receiver of mails."""

    address: str

    def __str__(self) -> str:
        """The receiver for people."""
        return self.address


Receiver = Webhook | Mailbox


@dataclass(frozen=True, slots=True)
class Wanted:
    """The receivers of a job's notices, and the kinds of events that they want."""

    receivers: tuple[Receiver, ...] = ()
    kinds: frozenset[Kind] = frozenset(Kind)


def wanted(environment: Mapping[str, str]) -> Wanted:
    """What the user asks for. Raises ValueError, which names the variable and what is allowed."""
    return Wanted(
        tuple(map(_receiver, enumerate(environment.get(VARIABLE, "").split(), start=1))),
        _kinds(environment.get(KINDS_VARIABLE, "")),
    )


def _receiver(numbered: tuple[int, str]) -> Receiver:
    number, text = numbered
    if _WEBHOOK.fullmatch(text):
        return Webhook(text)
    if mail := _MAIL.fullmatch(text):
        return Mailbox(mail[1])
    raise ValueError(
        f"{VARIABLE}: receiver {number} is none; allowed: {_ALLOWED}, with spaces between several"
    )


def _kinds(text: str) -> frozenset[Kind]:
    names = [each.strip() for each in text.split(",") if each.strip()]
    allowed = [kind.value for kind in Kind]
    if unknown := [name for name in names if name not in allowed]:
        raise ValueError(f"{KINDS_VARIABLE}: '{unknown[0]}' is no kind; allowed: {','.join(allowed)}")
    return frozenset(map(Kind, names)) or frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to the job. `at`: seconds since the epoch."""

    at: float
    kind: Kind
    text: str


class Undelivered(Exception):
    """A receiver did not take a notice; the message says why."""


class Notices:
    """The notices of one leader. No method waits or raises, except that `close` waits for a few seconds."""

    def __init__(self, asked: Wanted, job_id: str, restart_count: int) -> None:
        self._kinds = asked.kinds
        deliveries = [_delivery(each, job_id, restart_count) for each in asked.receivers]
        self._channels = [_Channel(*each) for each in deliveries]
        self._paused = False
        self._leaving: list[str] = []
        """The nodes that leave, with the reasons, for the notice of the next size."""

    def leaves(self, node: str, why: str) -> None:
        """Note why the satellite on a node leaves."""
        self._leaving.append(f"{node}: {why}")

    def sized(self, before: int, workers: int) -> None:
        """Tell of a new size. `before`: 0 at the beginning, and after a pause."""
        size = "; ".join((f"now {count(workers, 'worker')}, {before} before", *self._leaving))
        if self._paused or 0 < before < workers:
            self._tell(Kind.GROW, size)
        elif workers < before:
            self._tell(Kind.SHRINK, size)
        self._paused = False
        self._leaving.clear()

    def paused(self, before: int) -> None:
        """Tell that too few workers are left to train."""
        self._tell(Kind.SHRINK, f"training pauses: too few workers are left, {before} before")
        self._paused = True

    def lost(self, node: str, why: str) -> None:
        """Tell of a satellite that has ended, and nobody asked for it."""
        self._tell(Kind.LOST, f"the satellite on {node or 'a node'} is lost: {why}")

    def ended(self, exit_code: int, why: str) -> None:
        """Tell of the job's end."""
        self._tell(Kind.END, f"exit code {exit_code}: {why}")

    def close(self) -> None:
        """Deliver what waits, and end, within a few seconds."""
        deadline = time.monotonic() + _END_WITHIN_S
        for channel in self._channels:
            channel.close()
        for channel in self._channels:
            channel.wait(max(0.0, deadline - time.monotonic()))

    def _tell(self, kind: Kind, text: str) -> None:
        if kind in self._kinds:
            for channel in self._channels:
                channel.take(Event(time.time(), kind, text))


class _Channel:
    """The way to one receiver, in a thread of its own. Events of `every_s` go together."""

    def __init__(self, name: str, deliver: Callable[[Sequence[Event], int], None], every_s: float) -> None:
        """`deliver` sends events, and the number of those that were left out; or raises Undelivered."""
        self._name = name
        self._deliver = deliver
        self._every_s = every_s
        self._waiting: deque[Event] = deque()
        self._left_out = 0
        self._lock = threading.Lock()
        self._came = threading.Event()
        self._closing = threading.Event()
        self._failed = False
        self._thread = threads.start(self._run, name="notices", failed=say_error)

    def take(self, event: Event) -> None:
        """Take an event over, for the next notice."""
        with self._lock:
            self._waiting.append(event)
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                self._left_out += 1
        self._came.set()

    def close(self) -> None:
        """Have the thread end after one more delivery."""
        self._closing.set()
        self._came.set()

    def wait(self, within_s: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._came.wait()
            self._came.clear()
            self._send()
            self._closing.wait(self._every_s)
        self._send()

    def _send(self) -> None:
        """Deliver all that waits. What nobody takes waits for the next event, or for the end."""
        with self._lock:
            events, left_out = tuple(self._waiting), self._left_out
        if not events:
            return
        try:
            self._deliver(events, left_out)
        except Undelivered as error:
            if not self._failed:
                say(f"notices are not delivered to {self._name}: {error}")
            self._failed = True
            return
        if self._failed:
            say(f"notices are delivered to {self._name} again")
        self._failed = False
        with self._lock:
            for event in events:
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
            self._left_out -= left_out


def _delivery(
    receiver: Receiver, job_id: str, restart_count: int
) -> tuple[str, Callable[[Sequence[Event], int], None], float]:
    """The arguments of a receiver's channel."""
    if isinstance(receiver, Webhook):
        return str(receiver), partial(_post, receiver.address, job_id, restart_count), POSTS_EVERY_S
    return str(receiver), partial(_mail, receiver.address, job_id), MAILS_EVERY_S


def _lines(job_id: str, events: Sequence[Event], left_out: int) -> str:
    lines = [f"{left_out} events before these were left out"] if left_out else []
    for event in events:
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(event.at))
        lines.append(f"{at}  {event.kind.value}  job {job_id}: {event.text}")
    return "\n".join(lines)


def _post(address: str, job_id: str, restart_count: int, events: Sequence[Event], left_out: int) -> None:
    """Post events as flexod posts its notices. Follows no redirection, uses no proxy. Raises Undelivered."""
    told = [
        {
            "at": event.at,
            "kind": event.kind.value,
            "job_id": int(job_id) if job_id.isdecimal() else job_id,
            "restart_count": restart_count,
            "text": event.text,
        }
        for event in events
    ]
    body = {"text": _lines(job_id, events, left_out), "events": told, "left_out": left_out}
    request = HttpRequest(address, "POST", {"Content-Type": "application/json"}, json.dumps(body).encode())
    try:
        status = exchange(request, _WITHIN_S).status
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Undelivered(str(error) or type(error).__name__) from error
    if not 200 <= status < 300:
        raise Undelivered(f"it answered {status}")


def _mail(address: str, job_id: str, events: Sequence[Event], left_out: int) -> None:
    """Send events as one mail, by the node's `sendmail`. Raises Undelivered."""
    program = shutil.which("sendmail") or shutil.which("sendmail", path=_SENDMAIL_PLACES)
    if program is None:
        raise Undelivered("this node has no program `sendmail`; a webhook needs none")
    message = EmailMessage()
    message["To"] = address
    kinds = Counter(event.kind.value for event in events)
    message["Subject"] = f"flexo: job {job_id}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items())
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no holiday reply, please
    message.set_content(_lines(job_id, events, left_out) + "\n")
    try:
        done = subprocess.run(
            [program, "-i", "-t"], input=bytes(message), capture_output=True, timeout=_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Undelivered(f"{program} did not take the mail: {type(error).__name__}") from error
    if done.returncode:
        raise Undelivered(f"{program} ended with {done.returncode}")
