"""Where the members of a generation meet before they build anything: the leader's rendezvous server.

Most attempts that fail fail here, because a member never comes, and cost nobody anything.
"""

from __future__ import annotations

import http.client
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from horovod_elastic.core.interface import Place
from horovod_elastic.rendezvous import MEMBERS_SCOPE

LOOK_UP_S = 0.5
"""How long who waits goes without looking whether the attempt was given up."""
PAUSE_S = 0.05
"""Before asking again after an answer that there is nothing."""
ANSWER_S = 10.0
"""The rendezvous answers within 5 s, if only that there is nothing yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the rendezvous."""

    status: int
    body: bytes
    own_address: str
    """The IP address of this machine at which those reach it who share the rendezvous."""


def meet(place: Place, given_up: Callable[[], bool]) -> Answer | None:
    """Wait until all members are there. None if the rendezvous was closed, or it is `given_up`."""
    key = f"{MEMBERS_SCOPE}/{place.hostname}:{place.local_rank}"
    return look_up(place, key, given_up)


def look_up(place: Place, key: str, given_up: Callable[[], bool]) -> Answer | None:
    """What is there under `key`; waits until somebody has put it. None as `meet` says."""
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


def put(place: Place, key: str, value: bytes) -> None:
    """For all members to look up. Raises OSError if the rendezvous was closed."""
    try:
        status = _ask(place, "PUT", key, value).status
    except http.client.HTTPException as error:
        raise OSError(f"the rendezvous gave no answer: {error}") from error
    if status != HTTPStatus.OK:
        raise OSError(f"the rendezvous answered {status}")


def _ask(
    place: Place,
    method: str,
    key: str,
    value: bytes | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> Answer:
    """Raises TimeoutError once it is given up."""
    url = urlsplit(f"http://{place.rendezvous_address}:{place.rendezvous_port}")
    connection = http.client.HTTPConnection(url.netloc, timeout=ANSWER_S)
    try:
        connection.connect()
        address = str(connection.sock.getsockname()[0])
        connection.request(method, f"{url.path}/{key}", value)
        # An answer may come at any moment, and comes once: asking again would be to come too late.
        arrival = select.poll()
        arrival.register(connection.sock, select.POLLIN)
        while not arrival.poll(LOOK_UP_S * 1000):
            if given_up():
                raise TimeoutError("given up")
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), address)
    finally:
        connection.close()
