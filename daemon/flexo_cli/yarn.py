"""`flexo yarn`: commands for YARN clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flexo_cli import yarn_history, yarn_submission
from flexo_cli.exit_codes import ExitCode
from flexo_cli.options import JsonOption
from flexo_cli.output import complain, print_json
from flexo_protos.resources import Resources
from flexo_yarn.configuration import BadConfiguration, default_folder, read_client
from flexo_yarn.ipc.errors import Unreachable
from horovod_elastic.core.choice import DEFAULT_CORE, choose
from horovod_elastic.platforms.base import Refused
from horovod_elastic.platforms.yarn.submission import Submission, user_of_calls

ConfOption = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        metavar="FOLDER",
        help="The cluster's configuration; else $HADOOP_CONF_DIR, else /etc/hadoop/conf.",
    ),
]

app = typer.Typer(help="Commands for YARN clusters.", no_args_is_help=True)


@app.callback()
def commands() -> None:
    """Commands for YARN clusters."""


@app.command()
def history(conf: ConfOption = None) -> None:
    """Print the applications that YARN remembers, as JSON for flexo whatif --yarn.

    Ask as one who may view all applications: YARN hides their times from others.
    """
    try:
        found = yarn_history.history(read_client(conf or default_folder()), user_of_calls())
    except (BadConfiguration, Unreachable) as error:
        complain(str(error))
        raise typer.Exit(ExitCode.REFUSED) from error
    print_json(found)


@app.command(context_settings={"allow_interspersed_args": False})
def submit(
    command: Annotated[list[str], typer.Argument(help="The training command, after --.")],
    env: Annotated[
        str,
        typer.Option(
            help="Python for the containers: an archive with bin/python (.tar.gz, .zip), here or as a URI, "
            "or the folder of an environment that all nodes have."
        ),
    ],
    elastic: Annotated[
        str, typer.Option(metavar="MIN-MAX", help="From the fewest workers to the most it can use.")
    ] = "",
    workers: Annotated[int, typer.Option(min=1, help="Without --elastic: how many workers.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of one worker.")] = 0,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs (vcores) of one worker.")] = 1,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of one worker, such as 4G.")] = "2G",
    queue: Annotated[str, typer.Option(help="The queue of the base.")] = "default",
    name: Annotated[str, typer.Option(help="The application's name; else the command.")] = "",
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH[#NAME]",
            help="A file for every container's folder; repeat it for more. The script itself is one already.",
        ),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable of all processes; repeat it for more."),
    ] = None,
    core: Annotated[
        str, typer.Option(metavar="torch|horovod|service", help="What carries out Horovod's collectives.")
    ] = DEFAULT_CORE,
    elastic_batch: Annotated[
        str, typer.Option(metavar="MIN-MAX", help="Aggregate batch sizes that the model accepts.")
    ] = "",
    elastic_fungible: Annotated[
        bool, typer.Option("--elastic-fungible", help="Workers may run on another GPU type in another run.")
    ] = False,
    elastic_heterogeneous: Annotated[
        bool, typer.Option("--elastic-heterogeneous", help="Workers may be on several GPU types in one run.")
    ] = False,
    keytab: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With Kerberos: the keytab of --principal; else kinit's tickets."),
    ] = None,
    principal: Annotated[str, typer.Option(metavar="NAME", help="Who submits, by --keytab.")] = "",
    conf: ConfOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when the job has ended, with 1 if it has failed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a training command on YARN.

    flexo yarn submit --elastic 2-8 --gpus 1 --env env.tar.gz -- python train.py

    The command may also be torchrun's or that of accelerate launch, as in flexo run.
    """
    try:
        options = yarn_submission.options_of(
            elastic,
            workers,
            Resources(gpus, cpus, yarn_submission.memory_in(memory)),
            command,
            elastic_batch,
            queue,
            fungible=elastic_fungible,
            heterogeneous=elastic_heterogeneous,
        )
        files = [yarn_submission.shipped_in(text) for text in file or ()]
        variables = yarn_submission.variables_in(export or ())
        choose(core, variables)
        options, launch = yarn_submission.as_launched(options, variables)
        variables = {**dict(launch.variables), **variables}
        tickets = yarn_submission.tickets_of(keytab, principal)
        script = yarn_submission.with_script(files, command)
        job = Submission(options, env, name, script, variables, tickets)
    except ValueError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.USAGE) from error
    for line in (*launch.notes, *([f"this job keeps its size: {launch.fixed}"] if launch.fixed else [])):
        complain(line)
    try:
        code = yarn_submission.run(job, read_client(conf or default_folder()), wait=wait, as_json=as_json)
    except (BadConfiguration, Refused) as error:
        complain(str(error))
        raise typer.Exit(ExitCode.REFUSED) from error
    raise typer.Exit(code)
