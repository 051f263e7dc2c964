"""`flexo lab up | down | status | shell`: a real Slurm cluster on this machine, to try things on.

The commands print progress on the error output and results on the output, so that `--json` can be piped.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flexo_cli.exit_codes import ExitCode
from flexo_cli.help_pages import Command
from flexo_cli.output import Json, complain, print_json, print_line, print_pairs, print_table
from flexo_cli.site import yarn_lab
from flexo_cli.site.lab_steps import ending_on_sigterm, explained, steps
from flexo_lab import Lab, LabSpec, NoSuchLab, Profile, all_labs, bring_up, take_down
from flexo_lab.layout import Layout
from flexo_lab.spec import DEFAULT_NAME
from flexo_lab.status import LabStatus, status_of
from flexo_lab.web import url_of
from flexo_lab.yarn import YarnLab

_JOB_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "SPANK_", "FLEXO_")

app = typer.Typer(
    help="A real Slurm or YARN cluster on this machine, for tests and trying things. Needs root.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(metavar="[NAME]", help="The lab's name.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


class ShellCommand(Command):
    """A command that distinguishes `shell NAME` from `shell -- COMMAND`, which typer's parser does not."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Keep the words after `--` as the command to run."""
        if "--" in args:
            at = args.index("--")
            args, ctx.obj = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)


@app.command()
def up(
    name: NameArgument = DEFAULT_NAME,
    nodes: Annotated[int, typer.Option(help="Training nodes.")] = 3,
    gpus: Annotated[int, typer.Option(help="GPUs of a training node.")] = 4,
    cpus_per_node: Annotated[int, typer.Option(help="CPUs that each node claims.")] = 8,
    infer_nodes: Annotated[
        int | None, typer.Option(help="Inference nodes; else one; on YARN two with --loans, else none.")
    ] = None,
    infer_gpus: Annotated[
        int | None, typer.Option(help="GPUs of an inference node; else as many as of a training node.")
    ] = None,
    gpu_type: Annotated[str, typer.Option(help="Type of all GPUs, as in v100; else untyped.")] = "",
    infer_gpu_type: Annotated[
        str | None, typer.Option(help="Type of the GPUs of inference nodes; else that of training nodes.")
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="|".join(Profile), help="How Slurm is set up: docs/reference/lab.md.")
    ] = Profile.QUICK.value,
    flexod: Annotated[bool, typer.Option(help="Start flexod as well.")] = True,
    web: Annotated[
        bool,
        typer.Option("--web", help="Start the web pages (flexo-web) as well, as an account without rights."),
    ] = False,
    loans: Annotated[bool, typer.Option(help="flexod lends inference nodes to training.")] = False,
    by_qos: Annotated[
        bool, typer.Option(help="Satellites are preempted by QOS (profile accounting).")
    ] = False,
    yarn: Annotated[
        bool,
        typer.Option(
            "--yarn",
            help="A YARN cluster; of the options above, --nodes, --gpus, --infer-nodes, --no-flexod "
            "and --loans count.",
        ),
    ] = False,
    kerberos: Annotated[
        bool, typer.Option("--kerberos", help="With --yarn: a secure cluster, with a KDC of its own.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a lab up."""
    if yarn and web:
        complain("--web is allowed without --yarn: start flexo-web by hand beside a YARN lab's flexod")
        raise typer.Exit(ExitCode.USAGE)
    if yarn:
        inference = 2 * int(loans) if infer_nodes is None else infer_nodes
        yarn_lab.up(
            name, nodes, gpus, inference, kerberos=kerberos, flexod=flexod, loans=loans, as_json=as_json
        )
        return
    if kerberos:
        complain("--kerberos needs --yarn: Slurm has no Kerberos of its own")
        raise typer.Exit(ExitCode.USAGE)
    with explained(), ending_on_sigterm(), steps() as step:
        try:
            spec = LabSpec(
                name=name,
                nodes=nodes,
                gpus_per_node=gpus,
                cpus_per_node=cpus_per_node,
                infer_nodes=1 if infer_nodes is None else infer_nodes,
                infer_gpus=infer_gpus,
                gpu_type=gpu_type,
                infer_gpu_type=infer_gpu_type,
                profile=Profile.named(profile),
                flexod=flexod,
                web=web,
                loans=loans,
                by_qos=by_qos,
            )
            bring_up(spec, step)
        except KeyboardInterrupt:
            complain(f"interrupted; nothing of the lab '{name}' is left")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    found = status_of(name)
    if as_json:
        print_json(_as_json(found))
    else:
        _print_status(found)
        print_line("")
        print_line(f"Use it with: flexo lab shell {name}    Take it down with: flexo lab down {name}")


@app.command()
def down(
    name: NameArgument = DEFAULT_NAME,
    every: Annotated[bool, typer.Option("--all", help="Take all labs down.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a lab down, whatever state it is in: no process, no file of it stays."""
    existed: dict[str, bool] = {}
    with explained():
        for each in all_labs() if every else [name]:
            with steps() as step:
                existed[each] = take_down(each, step)
            if not (existed[each] or every):
                raise NoSuchLab(f"there is no lab '{each}'; there are: {', '.join(all_labs()) or 'none'}")
            if not as_json:
                print_line(f"the lab '{each}' is down")
    if as_json:
        print_json({"labs": [{"name": each, "existed": was} for each, was in existed.items()]})


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One lab; else all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the labs, and their state.

    Use it to find a lab on this host. For the flexod in a lab, use flexo status in flexo lab shell; for its
    jobs, flexo jobs; to watch them, flexo top.
    """
    with explained():
        if name is not None and name not in all_labs():
            Lab.load(name)  # raises NoSuchLab
        names = [name] if name else all_labs()
        if as_json:
            found = [_state_as_json(each) for each in names]
            print_json(found[0] if name else {"labs": list(found)})
            return
        if not names:
            print_line("no labs")
        for each in names:
            _print_state(each)


@app.command(cls=ShellCommand)
def shell(context: typer.Context, name: NameArgument = DEFAULT_NAME) -> None:
    """A shell in which Slurm and flexo mean this lab; `shell [NAME] -- COMMAND` runs one command."""
    with explained():
        lab = YarnLab.load(name) if yarn_lab.is_yarn(name) else Lab.load(name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_JOB_VARIABLES)}
    environment |= lab.environment() | {"PS1": f"(lab {lab.name}) $ "}
    command = context.obj or _interactive_shell(lab.layout)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        complain(f"{command[0]} cannot be run: {error.strerror}")
        raise typer.Exit(127) from None


def _interactive_shell(layout: Layout) -> list[str]:
    """The command of $SHELL, which containers often leave unset: bash then, because sh edits no lines.

    bash gets the lab's start-up file, because its own may set prompt and PATH.
    """
    path = os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"
    return [path, "--rcfile", str(layout.bashrc)] if Path(path).name == "bash" else [path]


def _print_state(name: str) -> None:
    if yarn_lab.is_yarn(name):
        yarn_lab.print_state(name)
    else:
        _print_status(status_of(name))


def _state_as_json(name: str) -> dict[str, Json]:
    return yarn_lab.state_as_json(name) if yarn_lab.is_yarn(name) else _as_json(status_of(name))


def _print_status(found: LabStatus) -> None:
    lab = found.lab
    if lab is None:
        print_line(f"lab {found.name}: not up; clear it away with: flexo lab down {found.name}")
        return
    slurmds = [daemon for daemon in found.daemons if daemon.name.startswith("slurmd ")]
    others = [daemon.name for daemon in found.daemons if daemon not in slurmds]
    flexod = [daemon for daemon in found.daemons if daemon.name == "flexod"]
    url = url_of(lab.ports)
    print_line(f"lab {found.name}")
    print_pairs(
        [
            ("profile", lab.spec.profile.value),
            ("directory", str(lab.directory)),
            ("daemons", ", ".join([*others, f"{len(slurmds)} slurmd"])),
            *([("NOT alive", ", ".join(found.missing))] if found.missing else []),
            ("flexod", f"{lab.daemon_address}, {f'process {flexod[0].pid}' if flexod else 'not running'}"),
            *(
                [("web pages", f"{url}; a link to enter: flexo lab shell {lab.name} -- flexo web")]
                if url
                else []
            ),
            ("ports", _ports(lab)),
            ("jobs", f"{found.running_jobs} running, {found.pending_jobs} pending"),
        ]
    )
    print_table(
        ("NODE", "STATE", "GPUS", "IN USE", "CPUS", "IN USE"),
        [
            (node.name, node.state, str(node.gpus), str(node.gpus_used), str(node.cpus), str(node.cpus_used))
            for node in found.nodes
        ],
        right=("GPUS", "IN USE", "CPUS"),
    )
    print_table(
        ("PARTITION", "TIER", "PREEMPTION", "NODES"),
        [(each.name, str(each.priority_tier), each.preempt_mode, each.nodes) for each in found.partitions],
        right=("TIER",),
    )


def _ports(lab: Lab) -> str:
    ports = lab.ports
    dbd = f", slurmdbd {ports.dbd}" if ports.dbd else ""
    slurmds = " ".join(str(port) for port in ports.slurmds)
    return f"slurmctld {ports.slurmctld}{dbd}, slurmds {slurmds}"


def _as_json(found: LabStatus) -> dict[str, Json]:
    lab = found.lab
    common: dict[str, Json] = {
        "name": found.name,
        "up": lab is not None,
        "daemons": [asdict(daemon) for daemon in found.daemons],
        "daemons_missing": list(found.missing),
    }
    if lab is None:
        return common
    return common | {
        "profile": lab.spec.profile.value,
        "directory": str(lab.directory),
        "environment": lab.environment(),
        "ports": asdict(lab.ports),
        "flexod": {
            "address": lab.daemon_address,
            "alive": any(daemon.name == "flexod" for daemon in found.daemons),
        },
        "nodes": [asdict(node) for node in found.nodes],
        "partitions": [asdict(partition) for partition in found.partitions],
        "jobs": {"running": found.running_jobs, "pending": found.pending_jobs},
    }
