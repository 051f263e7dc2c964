"""Scales a viewer's job: reads what the viewer wrote, asks flexod, which decides, and keeps the answer."""

from __future__ import annotations

import asyncio
import enum
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from flexo_cli.connection import NoSuchJob, Refusal, Unreachable
from flexo_cli.live.picture import Picture
from flexo_web.feed import Client
from flexo_web.tokens import Viewer

AUTO: Final = "auto"
"""What the button without a number sends, as in `flexo scale JOB auto`."""
_SHOWN_S: Final = 600.0
"""How long flexod's answer stays on the page."""
_WITHIN_S: Final = 15.0
_KEPT: Final = 1024
_QUOTED: Final = 40
"""The most characters of what a viewer wrote that an answer repeats."""
_WORKERS: Final = re.compile(r"0*([1-9][0-9]{0,6})")
_OK, _BAD, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _UNAVAILABLE = 200, 400, 403, 404, 409, 503
_NOT_ALLOWED: Final = (
    "This site's pages only read: flexod does not let them scale jobs. The command flexo scale does;"
    " an administrator can allow it here ([service] web_steering in flexo.toml)."
)
_STALE: Final = "This form is not of your present session, so nothing was changed. Send it again."
_AWAY: Final = (
    "flexod did not answer, so nobody knows whether the cap was changed. Look at the job's cap once flexod"
    " answers, and send the form again if need be: twice does no harm."
)


class Outcome(enum.StrEnum):
    """What became of a request."""

    DONE = "Done"
    REFUSED = "Not done"
    NOT_KNOWN = "Not known"
    """flexod did not answer: it may have done it."""


@dataclass(frozen=True, slots=True)
class Said:
    """What became of the viewer's last request on a job."""

    text: str
    status: int
    """As of HTTP."""
    at: float
    """Seconds since the epoch."""

    @property
    def done(self) -> bool:
        """Whether flexod did it."""
        return self.outcome is Outcome.DONE

    @property
    def outcome(self) -> Outcome:
        """What is known of it."""
        return _OUTCOMES.get(self.status, Outcome.REFUSED)


_OUTCOMES: Final = {_OK: Outcome.DONE, _UNAVAILABLE: Outcome.NOT_KNOWN}
"""By the status of HTTP; flexod or flexo-web refused what has another one."""


@dataclass(frozen=True, slots=True)
class _Kept:
    job_id: int
    said: Said
    ends_at: float


@dataclass(frozen=True, slots=True)
class Steerable:
    """A job that its viewer may scale."""

    least: int
    most: int
    cap: int
    """0: there is none."""


def steerable(picture: Picture | None, job_id: int, viewer: Viewer) -> Steerable | None:
    """What the form of the job shows; None: it has none. flexod decides again once the form is sent."""
    if picture is None or not picture.status.web_steering or viewer.uid == 0:
        return None
    job = next((job for job in picture.jobs.jobs if job.job_id == job_id), None)
    if job is None or job.user != viewer.name or job.min == job.max:
        return None
    return Steerable(job.min, job.max, job.wanted)


class Steering:
    """The requests of viewers, each user's in turn, and the answer to the last one of each."""

    def __init__(
        self,
        client: Client,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`client`: one that nothing else waits for."""
        self._client = client
        self._monotonic = monotonic
        self._clock = clock
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._said: OrderedDict[int, _Kept] = OrderedDict()
        """The last answer to each user, so that nobody can push out another's."""

    def said(self, viewer: Viewer, job_id: int) -> Said | None:
        """What became of the viewer's last request on the job; None: there was none of late."""
        kept = self._said.get(viewer.uid)
        if kept is None or kept.job_id != job_id or self._monotonic() >= kept.ends_at:
            return None
        return kept.said

    def refuse(self, viewer: Viewer, job_id: int, *, allowed: bool) -> Said:
        """Note that nothing was asked of flexod: the form was stale or, unless `allowed`, there is none."""
        return self._note(viewer, job_id, _STALE if allowed else _NOT_ALLOWED, _FORBIDDEN)

    async def scale(self, viewer: Viewer, job_id: int, wanted: str) -> Said:
        """Cap the job. `wanted`: a number of workers as the viewer wrote it, or AUTO: no cap."""
        workers = _workers(wanted.strip())
        if workers is None:
            text = (
                f"'{wanted.strip()[:_QUOTED]}' is no number of workers: a whole number, as in 4, is allowed."
            )
            return self._note(viewer, job_id, text, _BAD)
        turn = self._turns.setdefault(viewer.uid, asyncio.Lock())
        try:
            async with asyncio.timeout(_WITHIN_S), turn:
                reply = await self._client.call(
                    lambda daemon: daemon.scale_viewers_job(job_id, workers, viewer.uid)
                )
        except NoSuchJob as error:
            return self._note(viewer, job_id, str(error), _NOT_FOUND)
        except Refusal as error:
            return self._note(viewer, job_id, str(error), _CONFLICT)
        except (Unreachable, TimeoutError):
            return self._note(viewer, job_id, _AWAY, _UNAVAILABLE)
        return self._note(viewer, job_id, reply.text, _OK)

    def _note(self, viewer: Viewer, job_id: int, text: str, status: int) -> Said:
        said = Said(text, status, self._clock())
        self._said[viewer.uid] = _Kept(job_id, said, self._monotonic() + _SHOWN_S)
        self._said.move_to_end(viewer.uid)
        if len(self._said) > _KEPT:
            self._said.popitem(last=False)
        return said


def _workers(wanted: str) -> int | None:
    """0: no cap. None: it is no number."""
    if wanted == AUTO:
        return 0
    number = _WORKERS.fullmatch(wanted)
    return int(number[1]) if number else None
