"""The `flexo` command: passes a command line to its package before it imports anything heavy.

`flexo run`, `flexo hosts` and `flexo share` belong to horovod_elastic and run at the start of every job and
worker. They need neither typer nor rich, whose import takes longer than their own. So these commands are
passed on before typer is imported.
"""

from __future__ import annotations

import io
import os
import select
import sys
from importlib.util import find_spec

import flexo
from flexo_protos.installing import Wheel, how_to_install

_OWN = ("flexo", "flexo_cli", "flexo_protos", "flexo_yarn", "horovod_elastic")
_OF_USERS = ("google", "grpc", "psutil", "rich", "typer")
"""What the wheel for users requires, by the names of imports."""
DELEGATED = ("run", "hosts", "share", "aggregator")


def main() -> None:
    """Entry point of `flexo`. Exit codes: docs/reference/commands.md."""
    try:
        _carry_out()
    except BrokenPipeError:
        if not _reader_has_left():
            raise
        sys.exit(1)  # as typer ends a command
    finally:
        _write_out()


def _reader_has_left() -> bool:
    """Whether nobody reads the output any more, as after `flexo ... | head`."""
    output = select.poll()
    output.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _write_out() -> None:
    """Write the rest of the output, for which its reader may not have waited."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # Python writes it again when it ends, and would complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _carry_out() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # others' names may have characters that a terminal lacks
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if arguments in (["--version"], ["version"]):
        print(f"flexo {flexo.__version__}")
        sys.exit(0)
    if arguments and arguments[0] in DELEGATED:
        sys.exit(delegate(arguments[0], arguments[1:]))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # flexo reports errors itself, in one sentence
    try:
        from flexo_cli.app import application, run

        application(*arguments[:1])  # imports the command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OWN:
            raise
        sys.exit(
            f"flexo: this command needs the Python package '{error.name}', and {sys.prefix} lacks it. "
            + how_to_install(_wheel_with(error.name or ""))
        )
    sys.exit(run(arguments))


def _wheel_with(package: str) -> Wheel:
    """The wheel that installs a package, of those that are installed here."""
    of_sites = find_spec("flexo_cli.site") is not None and package.partition(".")[0] not in _OF_USERS
    return Wheel.SITES if of_sites else Wheel.USERS


def delegate(command: str, arguments: list[str]) -> int:
    """Carry out one of the commands of horovod_elastic with `arguments` untouched. Returns the exit code."""
    if command == "run":
        from horovod_elastic.launcher import main as room
    elif command == "share":
        from horovod_elastic.sharing.command import main as room
    elif command == "aggregator":
        from horovod_elastic.pool_aggregator import main as room
    else:
        from horovod_elastic.hosts import main as room
    return room(arguments)
