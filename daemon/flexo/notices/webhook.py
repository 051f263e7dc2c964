"""Posts notices to a webhook."""

from __future__ import annotations

import http.client
import urllib.parse

from flexo.notices.notice import Notice, Undelivered
from flexo.notices.settings import NoticesSettings
from flexo_protos.http_exchange import HttpRequest, exchange

WITHIN_S = 10.0
"""The time in which the receiver has to take a notice."""


def post(settings: NoticesSettings, notice: Notice) -> None:
    """Post a notice as JSON. The address stays out of messages: its path is often a secret.

    Raises Undelivered, also for an answer that is no success, such as a redirection.
    """
    host = urllib.parse.urlsplit(settings.webhook).hostname
    request = HttpRequest(
        settings.webhook,
        "POST",
        {"Content-Type": "application/json"},
        notice.as_json(),
        str(settings.authorities) if settings.authorities else None,
    )
    try:
        answer = exchange(request, WITHIN_S)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise Undelivered(f"the webhook on {host} did not take a notice: {why}") from error
    if not 200 <= answer.status < 300:
        raise Undelivered(f"the webhook on {host} answered {answer.status}")
