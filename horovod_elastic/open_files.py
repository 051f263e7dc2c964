"""The limit of open files for a job's processes: the system's maximum for servers, the old one for commands.

Anybody can connect to a server. With the usual limit of 1,024 files, few connections of a stranger would
leave no room for the job's own connections.
"""

from __future__ import annotations

import resource

MOST_CONNECTIONS = 1 << 13
"""Most connections of a server, whatever the system allows. They cost memory; a job has far fewer agents."""
_first: int | None = None
"""The soft limit that this process was started with; None until `raise_limit` has raised the limit."""


def raise_limit() -> None:
    """Raise this process's soft limit of open files to the hard limit."""
    global _first
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _first = soft if _first is None else _first


def connections() -> int:
    """Number of connections that a server may have: half of its files, at most MOST_CONNECTIONS."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(64, files // 2))


def with_first_limit(command: list[str]) -> list[str]:
    """`command`, run under the first soft limit: commands that start jobs pass their limit on to the jobs."""
    if _first is None:
        return command
    return ["/bin/sh", "-c", 'ulimit -S -n "$0" && exec "$@"', str(_first), *command]
