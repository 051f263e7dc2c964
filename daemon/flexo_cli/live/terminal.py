"""A terminal that is drawn as a whole and read key by key. Its former state is restored at the end."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flexo_cli.live.layout import Size

_KEYS = {
    "q": "quit",
    "Q": "quit",
    "\t": "next",
    "\x1b[A": "up",
    "k": "up",
    "\x1b[B": "down",
    "j": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    " ": "page down",
    "\x1b[H": "top",
    "g": "top",
}


class Terminal:
    """A terminal in full-screen mode, made by `whole_terminal`."""

    def __init__(self, live: Live, line_by_line: Callable[[], AbstractContextManager[None]]) -> None:
        self._live = live
        self._line_by_line = line_by_line
        self._is_to_stop = False
        self._ended_by: int | None = None

    @property
    def size(self) -> Size:
        """The terminal's present size."""
        return Size(self._live.console.width, self._live.console.height)

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw the whole screen."""
        self._live.update(Group(*lines), refresh=True)

    def keys(self, wait_s: float) -> list[str]:
        """Wait `wait_s` at most for keys. Returns them: quit, next, up, down, page up, page down, top.

        Raises KeyboardInterrupt after Ctrl-C, SystemExit after SIGTERM.
        """
        pressed = _pressed(wait_s)
        if self._ended_by == signal.SIGINT:
            raise KeyboardInterrupt
        if self._ended_by is not None:
            sys.exit(128 + self._ended_by)
        if self._is_to_stop:
            self._stop_for_a_while()
        return pressed

    def stop_soon(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTSTP: remember to stop. The signal may arrive in the middle of a write."""
        self._is_to_stop = True

    def end_soon(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM: remember to end. An exception raised within a callback would be lost."""
        self._ended_by = number

    def _stop_for_a_while(self) -> None:
        self._is_to_stop = False
        self._live.stop()
        with self._line_by_line():
            os.kill(os.getpid(), signal.SIGSTOP)
        self._live.start(refresh=True)


def _pressed(wait_s: float) -> list[str]:
    if not sys.stdin.isatty():
        select.select([], [], [], wait_s)
        return []
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    if not ready:
        return []
    typed = os.read(sys.stdin.fileno(), 1024).decode("ascii", "replace")
    return keys_in(typed) if typed else ["quit"]  # end of input: no key can follow


def keys_in(typed: str) -> list[str]:
    """The known keys in `typed`; other characters are left out."""
    found = []
    while typed:
        match = next((key for key in sorted(_KEYS, key=len, reverse=True) if typed.startswith(key)), typed[0])
        if match in _KEYS:
            found.append(_KEYS[match])
        typed = typed[len(match) :]
    return found


@contextmanager
def whole_terminal(console: Console) -> Iterator[Terminal]:
    """Take over the terminal until the context ends: by a key, Ctrl-C, SIGTERM or an error.

    Ctrl-Z gives the terminal back until the program continues.
    """
    live = Live(console=console, screen=True, auto_refresh=False)
    with _key_by_key() as line_by_line:
        terminal = Terminal(live, line_by_line)
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, terminal.end_soon),
            signal.SIGTERM: signal.signal(signal.SIGTERM, terminal.end_soon),
            signal.SIGTSTP: signal.signal(signal.SIGTSTP, terminal.stop_soon),
        }
        try:
            with live:
                yield terminal
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _key_by_key() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Read keys at once, without echo. Yields a context manager within which the former mode holds."""
    if not sys.stdin.isatty():
        yield nullcontext
        return
    before = termios.tcgetattr(sys.stdin)

    @contextmanager
    def line_by_line() -> Iterator[None]:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        yield
        tty.setcbreak(sys.stdin)

    try:
        tty.setcbreak(sys.stdin)
        yield line_by_line
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
