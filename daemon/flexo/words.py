"""How sentences for people count things. Imports nothing of flexo."""

from __future__ import annotations


def workers(number: int) -> str:
    """``1 worker``, ``2 workers``."""
    return "1 worker" if number == 1 else f"{number} workers"
