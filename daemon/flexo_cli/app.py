"""The page that `flexo --help` prints: all commands in groups, and what a command line ends with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Final

import typer

import flexo
from flexo_cli import completion, delegate
from flexo_cli.connection import Busy, Refusal, Unreachable
from flexo_cli.exit_codes import ExitCode
from flexo_cli.help_pages import Section, with_plain_help
from flexo_cli.listed import PASSED_ON, Listed
from flexo_cli.options import JsonOption
from flexo_cli.output import complain, print_json, print_line

try:
    from flexo_cli.site.commands import COMMANDS as OF_SITES
    from flexo_cli.site.commands import OF_YARN
except ModuleNotFoundError as missing:
    if not (missing.name or "").startswith("flexo_cli.site"):
        raise
    from flexo_cli.without_site import COMMANDS as OF_SITES
    from flexo_cli.without_site import OF_YARN

_SIZES: Final = {"ignore_unknown_options": True}
"""-2 is a size, no option."""
_SCRIPTS_OWN: Final = {"ignore_unknown_options": True}
"""Unknown options are the script's."""
COMMANDS: Final[tuple[Listed, ...]] = (
    Listed("jobs", "flexo_cli.jobs", Section.YOUR_JOBS),
    Listed("why", "flexo_cli.why", Section.YOUR_JOBS),
    Listed("events", "flexo_cli.events", Section.YOUR_JOBS),
    Listed("top", "flexo_cli.top", Section.YOUR_JOBS),
    Listed("web", "flexo_cli.web", Section.YOUR_JOBS),
    Listed("wait", "flexo_cli.wait", Section.YOUR_JOBS),
    Listed("logs", "flexo_cli.logs", Section.YOUR_JOBS),
    Listed("cost", "flexo_cli.cost", Section.YOUR_JOBS),
    Listed("scale", "flexo_cli.steering", Section.YOUR_JOBS, settings=_SIZES),
    Listed("profile", "flexo_cli.steering", Section.YOUR_JOBS),
    Listed("checkpoint", "flexo_cli.steering", Section.YOUR_JOBS),
    Listed("check", "flexo_cli.check", Section.YOUR_JOBS, settings=_SCRIPTS_OWN),
    Listed("init", "flexo_cli.init", Section.YOUR_JOBS, settings=_SCRIPTS_OWN),
    Listed("scale-out", "flexo_cli.steering", Section.YOUR_JOBS, hidden=True),
    Listed("scale-in", "flexo_cli.steering", Section.YOUR_JOBS, hidden=True),
    Listed("run", __name__, Section.IN_A_JOB, attribute="run_script", settings=PASSED_ON),
    Listed("hosts", __name__, Section.IN_A_JOB, settings=PASSED_ON),
    Listed("share", __name__, Section.IN_A_JOB, settings=PASSED_ON),
    Listed("status", "flexo_cli.status", Section.ADMINISTRATION),
    Listed("loans", "flexo_cli.loans", Section.ADMINISTRATION),
    Listed("aggregator", __name__, Section.ADMINISTRATION, settings=PASSED_ON),
    Listed("yarn", "flexo_cli.yarn", Section.ADMINISTRATION, attribute="app", more=OF_YARN),
    *OF_SITES,
    Listed("version", __name__, Section.ITSELF),
    Listed("completion", "flexo_cli.completion", Section.ITSELF),
)
"""All commands, in the order of the help."""


@cache
def application(called: str = "") -> typer.Typer:
    """`flexo` with the command `called` alone; with all commands if none is called so."""
    app = typer.Typer(
        name="flexo",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=options,
    )
    for each in [row for row in COMMANDS if row.name == called] or COMMANDS:
        each.add_to(app)
    with_plain_help(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"flexo {flexo.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print flexo's version.")
    ] = False,
) -> None:
    """Elastic deep learning on Slurm: running jobs grow into idle GPUs and give them back."""


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; the exit code."""
    completion.prepare()
    try:
        application(*arguments[:1])(arguments, prog_name="flexo")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.REFUSED
    except Busy as error:
        complain(str(error))
        return ExitCode.BUSY
    except Refusal as error:
        complain(str(error))
        return ExitCode.REFUSED
    except Unreachable as error:
        complain(str(error))
        return ExitCode.UNREACHABLE
    return ExitCode.DONE


def version(as_json: JsonOption = False) -> None:
    """Print flexo's version."""
    if as_json:
        print_json({"version": flexo.__version__})
        return
    print_line(f"flexo {flexo.__version__}")


def run_script(context: typer.Context) -> None:
    """Train elastically: flexo run torchrun train.py ..., or flexo run python train.py ..."""
    raise typer.Exit(delegate("run", context.args))


def hosts(context: typer.Context) -> None:
    """Print the job's hosts and slots, as horovodrun's discovery script does."""
    raise typer.Exit(delegate("hosts", context.args))


def share(context: typer.Context) -> None:
    """Share one GPU between a job that keeps its speed and one that gets what is left."""
    raise typer.Exit(delegate("share", context.args))


def aggregator(context: typer.Context) -> None:
    """Sum gradients of several jobs in this process, which flexod assigns to it (a pool's Aggregator)."""
    raise typer.Exit(delegate("aggregator", context.args))
