"""`flexo completion SHELL`: the script by which a shell completes flexo's commands and options.

The script asks `flexo` itself at each Tab, so it need not change when flexo does. Packages install it where
shells look for it.
"""

from __future__ import annotations

import enum
import os
from typing import Annotated, Final

import typer
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

VARIABLE: Final = "_FLEXO_COMPLETE"
"""Set by the script: flexo then answers with words instead of doing anything."""
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
    """What `shell` is to read."""
    text = get_completion_script(prog_name="flexo", complete_var=VARIABLE, shell=shell.value)
    return text + (_AUTOLOADED if shell is Shell.ZSH else "")


def prepare() -> None:
    """Let flexo answer the script, if that is what it is called for."""
    if VARIABLE in os.environ:
        completion_init()
