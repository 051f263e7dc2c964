"""The page that `flexo --help` prints: all commands in groups, and what a command line ends with."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

import flexo
from flexo_cli import (
    check,
    completion,
    cost,
    delegate,
    events,
    init,
    jobs,
    loans,
    logs,
    status,
    steering,
    top,
    wait,
    web,
    why,
    yarn,
)
from flexo_cli.connection import Busy, Refusal, Unreachable
from flexo_cli.exit_codes import ExitCode
from flexo_cli.help_pages import Section, with_plain_help
from flexo_cli.options import JsonOption
from flexo_cli.output import complain, print_json, print_line

try:
    from flexo_cli.site.commands import add_to as add_commands_for_sites
except ModuleNotFoundError as missing:
    if not (missing.name or "").startswith("flexo_cli.site"):
        raise
    from flexo_cli.without_site import add_to as add_commands_for_sites

app = typer.Typer(
    name="flexo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"flexo {flexo.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print flexo's version.")
    ] = False,
) -> None:
    """Elastic deep learning on Slurm: running jobs grow into idle GPUs and give them back."""


def run(arguments: list[str]) -> int:
    """Carry out one command line; the exit code."""
    completion.prepare()
    try:
        app(arguments, prog_name="flexo")
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


_SIZES = {"ignore_unknown_options": True}  # -2 is a size, no option
_SCRIPTS_OWN = {"ignore_unknown_options": True}  # unknown options are the script's
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

your_jobs = partial(app.command, rich_help_panel=Section.YOUR_JOBS)
your_jobs()(jobs.jobs)
your_jobs()(why.why)
your_jobs()(events.events)
your_jobs()(top.top)
your_jobs()(web.web)
your_jobs()(wait.wait)
your_jobs()(logs.logs)
your_jobs()(cost.cost)
your_jobs(context_settings=_SIZES)(steering.scale)
your_jobs()(steering.profile)
your_jobs()(steering.checkpoint)
your_jobs(context_settings=_SCRIPTS_OWN)(check.check)
your_jobs(context_settings=_SCRIPTS_OWN)(init.init)
your_jobs("scale-out", hidden=True)(steering.scale_out)
your_jobs("scale-in", hidden=True)(steering.scale_in)

in_a_job = partial(app.command, rich_help_panel=Section.IN_A_JOB, context_settings=_PASSED_ON)
in_a_job("run")(run_script)
in_a_job()(hosts)
in_a_job()(share)

administration = partial(app.command, rich_help_panel=Section.ADMINISTRATION)
administration()(status.status)
administration()(loans.loans)
administration(context_settings=_PASSED_ON)(aggregator)
app.add_typer(yarn.app, name="yarn", rich_help_panel=Section.ADMINISTRATION)

add_commands_for_sites(app, yarn.app)

itself = partial(app.command, rich_help_panel=Section.ITSELF)
itself()(version)
itself()(completion.completion)

with_plain_help(app)
