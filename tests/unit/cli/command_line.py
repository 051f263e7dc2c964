"""What tests hold that run the flexo command (the fixture `flexo_run`)."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
"""Of a command line; exit code, output, error output."""
