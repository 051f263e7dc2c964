"""What can go wrong in a call: the server is not reached, refuses the caller, or the called method fails."""

from __future__ import annotations


class IpcError(Exception):
    """A call has failed; the message says to which server, which method and why."""


class Unreachable(IpcError):
    """The server cannot be reached, or the connection broke before the answer came.

    Whether the call was carried out is not known.
    """


class Refused(IpcError):
    """The server refuses this caller: a wrong token, an unknown user, or an unknown protocol."""


class RemoteError(IpcError):
    """The called method has thrown an exception."""

    def __init__(self, where: str, exception_class: str, message: str) -> None:
        """`message`: Java's message, mostly with its stack; only the first line is shown."""
        self.exception_class = exception_class.rpartition(".")[2]
        """Java's name of the exception's class, without its package."""
        self.text = _first_line(message, exception_class)
        super().__init__(f"{where}: {self.exception_class}: {self.text}")


def _first_line(message: str, exception_class: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "no message")
    return line.removeprefix(exception_class).removeprefix(":").strip()
