"""`flexo completion SHELL`: prints the script with which a shell completes flexo's commands and options.

The script asks `flexo` itself at each Tab, so that it stays the same when flexo changes. Packages install it
where shells look for it.
"""

from __future__ import annotations

import enum
import os
from typing import Annotated, Final

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

VARIABLE: Final = "_FLEXO_COMPLETE"
"""The variable that the script sets. flexo then prints completions and carries out no command."""
_AUTOLOADED: Final = """
# zsh runs this file at the first Tab, as the function _flexo
[ "$funcstack[1]" = _flexo ] && _flexo_completion "$@"
"""


class Shell(enum.StrEnum):
    """A shell that flexo completes in."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Which shell's.")],
) -> None:
    """Print a script with which a shell completes flexo's commands: source <(flexo completion bash)."""
    typer.echo(script(shell))


def script(shell: Shell) -> str:
    """The script that `shell` reads."""
    text = get_completion_script(prog_name="flexo", complete_var=VARIABLE, shell=shell.value)
    return text + (_AUTOLOADED if shell is Shell.ZSH else "")


def prepare() -> None:
    """Prepare typer to answer the script, if the script has called flexo."""
    if VARIABLE in os.environ:
        completion_init()
