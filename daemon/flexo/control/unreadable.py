"""Jobs whose records in the queue flexod cannot read: it says so once each, and ends nothing for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexo.events import Event
from flexo.model.queue import QueuedJob


class UnreadableJobs:
    """Those of the last look. The controller's thread changes it; others may ask for `trouble`."""

    def __init__(self) -> None:
        self._known: frozenset[int] = frozenset()
        self.trouble = ""
        """What `flexo status` says of them; "" if there are none."""

    def look(self, jobs: Iterable[QueuedJob], now: float) -> tuple[Event, ...]:
        """One look at the queue; an event if jobs are unreadable that were not before."""
        found = {job.job_id: job.unreadable for job in jobs if job.unreadable}
        new, self._known = found.keys() - self._known, frozenset(found)
        self.trouble = _text(found) if found else ""
        return (Event(now, "trouble", None, _text({job: found[job] for job in new})),) if new else ()

    def spared(self, orphans: Sequence[QueuedJob]) -> tuple[QueuedJob, ...]:
        """`orphans`, less those whose base is one of these jobs: it is there, so they are not orphans."""
        return tuple(
            job for job in orphans if job.satellite is None or job.satellite.base.job_id not in self._known
        )


def _text(found: dict[int, str]) -> str:
    first = min(found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"flexod cannot read the record of job {first}{more}: {found[first]}"
