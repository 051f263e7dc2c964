"""How many files a process of a job may open: servers as many as the system allows, commands as before.

Anybody can connect to a server. With the customary 1,024 files a stranger would need few connections to
leave no room for the job's own.
"""

from __future__ import annotations

import resource

MOST_CONNECTIONS = 1 << 13
"""Of a server, whatever is allowed: connections cost memory, and a job has far fewer agents."""
_first: int | None = None
"""The soft limit that this process was started with, once it was raised."""


def allow_most() -> None:
    """Raise this process's soft limit to the hard one."""
    global _first
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _first = soft if _first is None else _first


def connections() -> int:
    """How many a server of this process may have: half of its files, at most MOST_CONNECTIONS."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, max(64, files // 2))


def with_first_limit(command: list[str]) -> list[str]:
    """That command with the first soft limit: commands that start jobs hand on the limit that they have."""
    if _first is None:
        return command
    return ["/bin/sh", "-c", 'ulimit -S -n "$0" && exec "$@"', str(_first), *command]
