"""A client of the leader's rendezvous server, where a generation's members meet before they build anything.

Most failed attempts fail here, because a member never comes. Such a failure costs nobody anything.
"""

from __future__ import annotations

import http.client
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from horovod_elastic.core.interface import RankPlacement
from horovod_elastic.rendezvous import MEMBERS_SCOPE

LOOK_UP_S = 0.5
"""Seconds between two checks, during a wait, whether the attempt was given up."""
PAUSE_S = 0.05
"""Seconds of pause before the next request, after an answer without a value."""
ANSWER_S = 10.0
"""Timeout of a request in seconds. The rendezvous answers within 5 s, even if it has no value yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the rendezvous."""

    status: int
    body: bytes
    own_address: str
    """This machine's IP address towards the rendezvous. The other members can reach the machine at it."""


def meet(place: RankPlacement, given_up: Callable[[], bool]) -> Answer | None:
    """Wait until all members are there. Returns None if the rendezvous closes or `given_up` returns True."""
    key = f"{MEMBERS_SCOPE}/{place.hostname}:{place.local_rank}"
    return look_up(place, key, given_up)


def look_up(place: RankPlacement, key: str, given_up: Callable[[], bool]) -> Answer | None:
    """The answer with the value under `key`. Waits until a member has put it. Returns None as `meet` does."""
    while not given_up():
        try:
            answer = _ask(place, "GET", key, given_up=given_up)
        except (OSError, http.client.HTTPException):
            return None
        if given_up():
            break
        if answer.status == HTTPStatus.OK:
            return answer
        time.sleep(PAUSE_S)
    return None


def put(place: RankPlacement, key: str, value: bytes) -> None:
    """Put `value` under `key` for all members to look up. Raises OSError if the rendezvous was closed."""
    try:
        status = _ask(place, "PUT", key, value).status
    except http.client.HTTPException as error:
        raise OSError(f"the rendezvous gave no answer: {error}") from error
    if status != HTTPStatus.OK:
        raise OSError(f"the rendezvous answered {status}")


def _ask(
    place: RankPlacement,
    method: str,
    key: str,
    value: bytes | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> Answer:
    """Send one request and wait for its answer. Raises TimeoutError once `given_up` returns True."""
    url = urlsplit(f"http://{place.rendezvous_address}:{place.rendezvous_port}")
    connection = http.client.HTTPConnection(url.netloc, timeout=ANSWER_S)
    try:
        connection.connect()
        address = str(connection.sock.getsockname()[0])
        connection.request(method, f"{url.path}/{key}", value)
        # The answer may come at any moment and comes only once: a repeated request would be too late for it.
        arrival = select.poll()
        arrival.register(connection.sock, select.POLLIN)
        while not arrival.poll(LOOK_UP_S * 1000):
            if given_up():
                raise TimeoutError("given up")
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), address)
    finally:
        connection.close()
