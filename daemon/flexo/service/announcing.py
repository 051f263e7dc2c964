"""Hands the events that the site wants to hear of to the channels, beside counting them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from flexo.control.watch import Watch
from flexo.events import Event
from flexo.model.loans import PastLoan
from flexo.notices import mail, webhook
from flexo.notices.channel import Channel
from flexo.notices.settings import NoticesSettings


class Announcing:
    """A Watch that passes all on to another one, and events of some kinds to channels."""

    def __init__(self, watch: Watch, settings: NoticesSettings) -> None:
        self._watch = watch
        self._kinds: frozenset[str] = frozenset(settings.kinds)
        self._channels = tuple(_channels(settings))

    def cycle_began(self) -> None:
        """See Watch."""
        self._watch.cycle_began()

    def cycle_ended(self, outcome: str, seconds: float) -> None:
        """See Watch."""
        self._watch.cycle_ended(outcome, seconds)

    def happened(self, events: Iterable[Event]) -> None:
        """See Watch."""
        happened = tuple(events)
        self._watch.happened(happened)
        wanted = [event for event in happened if event.kind in self._kinds]
        for channel in self._channels if wanted else ():
            channel.take(wanted)

    def loans_ended(self, loans: Iterable[PastLoan]) -> None:
        """See Watch."""
        self._watch.loans_ended(loans)

    def close(self) -> None:
        """End the channels."""
        for channel in self._channels:
            channel.close()


def _channels(settings: NoticesSettings) -> Iterable[Channel]:
    if settings.webhook:
        yield Channel("webhook", partial(webhook.post, settings), settings.webhook_every_s)
    if settings.mail_server:
        yield Channel("mail", partial(mail.send, settings), settings.mail_every_s)
