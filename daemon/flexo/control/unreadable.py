"""Reports jobs whose records in the queue flexod cannot read. flexod reports each once, and ends nothing
because of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flexo.events import Event
from flexo.model.queue import QueuedJob


class UnreadableJobs:
    """The unreadable jobs of the last poll. The controller's thread changes them; other threads may read
    `trouble`."""

    def __init__(self) -> None:
        self._known: frozenset[int] = frozenset()
        self.trouble = ""
        """The text of `flexo status` on these jobs; "" if there are none."""

    def look(self, jobs: Iterable[QueuedJob], now: float) -> tuple[Event, ...]:
        """Process one poll of the queue. Returns an event if jobs are unreadable that were not before."""
        found = {job.job_id: job.unreadable for job in jobs if job.unreadable}
        new, self._known = found.keys() - self._known, frozenset(found)
        self.trouble = _text(found) if found else ""
        return (Event(now, "trouble", None, _text({job: found[job] for job in new})),) if new else ()

    def spared(self, orphans: Sequence[QueuedJob]) -> tuple[QueuedJob, ...]:
        """`orphans`, without the satellites of unreadable base jobs: such a base job exists."""
        return tuple(
            job for job in orphans if job.satellite is None or job.satellite.base.job_id not in self._known
        )


def _text(found: dict[int, str]) -> str:
    first = min(found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"flexod cannot read the record of job {first}{more}: {found[first]}"
