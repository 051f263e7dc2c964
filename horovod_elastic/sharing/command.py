"""The command `flexo share`: a node's coordinator, the jobs that share its GPUs, and who shares what."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from horovod_elastic.sharing import devices, environment, futex, introduction, status
from horovod_elastic.sharing.environment import Role, Sharing, WrongVariable
from horovod_elastic.sharing.introduction import BadMessage, Eviction, Kind, NoCoordinator

USAGE = f"""usage: flexo share coordinator [--folder DIR] [--pretend NAME:GIB ...]
       flexo share guarantee --gpu NAME [OPTION ...] [--] COMMAND [ARGUMENT ...]
       flexo share opportunistic --gpu NAME [OPTION ...] [--] COMMAND [ARGUMENT ...]
       flexo share status [--folder DIR] [--json]
       flexo share evict --gpu NAME [--folder DIR] [--within SECONDS]

Shares one GPU between a guarantee job, which keeps its speed, and an opportunistic job, which gets what
is left. Both are PyTorch scripts that stay as they are (docs/howto/sharing.md).

coordinator           Serve this node's GPUs until SIGTERM. It needs no rights, and no cluster.
guarantee             Run COMMAND as a guarantee job. It trains on if the coordinator is away.
opportunistic         Run COMMAND as an opportunistic job. It waits while the coordinator is away.
status                Show who shares which GPU, and what the guarantee job loses.
evict                 End all opportunistic jobs on a GPU at once, and wait until they are gone. For a
                      site's prolog: root and the coordinator's user may. Jobs that began before end too
                      when they come later. For a minute, no gate opens without a guarantee job.

--folder DIR          The coordinator's folder
                      (default: ${environment.FOLDER}, else {environment.DEFAULT_FOLDER}).
--gpu NAME            The GPU, by the coordinator's name for it: gpu0, gpu1, ... by NVML.
--pretend NAME:GIB    Declare a device that does not exist, for trying: jobs train on the CPU.
                      The option may be repeated.
--job TEXT            What the status calls the job (default: COMMAND's first words).
--with USER[,...]     Users beside whose jobs this job agrees to run; *: all. Both jobs have to agree.
--json                Print the status as JSON.
--within SECONDS      How long to wait for the end of an evicted job (default: 1).

Exit codes: COMMAND's own; 1 refused, 2 the command line is wrong, 3 no coordinator has a status here,
4 the evicted job still runs, 75 the opportunistic job was ended: it was evicted, or it reached no gate for
a minute while its gate was closed. If the COMMAND of an opportunistic job exits with 75, that is 1."""

REFUSED, WRONG, NO_STATUS, NOT_GONE = 1, 2, 3, 4
_OF_SITES = ("coordinator", "status", "evict")
"""What takes no command."""
STALE_S = 5.0
"""A status that is older was written by a coordinator that does not run any more."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"flexo share: {message}. `flexo share --help` lists what is allowed\n")
        sys.exit(WRONG)


def main(arguments: Sequence[str]) -> int:
    """Carry out `flexo share ARGUMENTS`; the exit code."""
    own, _ = _split(arguments)
    if not own or {"-h", "--help"} & set(own):
        print(USAGE)
        return 0 if own else WRONG
    try:
        options, command = _parse(arguments)
        if options.what == "coordinator":
            return _coordinate(options)
        if options.what == "status":
            return _show(options)
        if options.what == "evict":
            return _evict(options)
        return _run(options, command)
    except (WrongVariable, devices.NoDevices, NoCoordinator, futex.NoFutex, BadMessage, OSError) as error:
        sys.stderr.write(f"flexo share: {error}\n")
        return WRONG if isinstance(error, WrongVariable) else REFUSED


_WITH_VALUE = frozenset({"--folder", "--gpu", "--pretend", "--job", "--with", "--within"})


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """flexo's own arguments, and those of COMMAND."""
    index = 1
    while index < len(arguments) and arguments[index].startswith("-"):
        if arguments[index] == "--":
            return list(arguments[:index]), list(arguments[index + 1 :])
        index += 2 if arguments[index] in _WITH_VALUE else 1
    return list(arguments[:index]), list(arguments[index:])


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    own, command = _split(arguments)
    parser = _Parser(prog="flexo share", add_help=False, allow_abbrev=False)
    parser.add_argument("what", choices=(*_OF_SITES, *(role.value for role in Role)))
    parser.add_argument("--folder", type=Path)
    kind = own[0]
    if kind == "coordinator":
        parser.add_argument("--pretend", action="append", default=[])
    elif kind == "status":
        parser.add_argument("--json", action="store_true")
    elif kind == "evict":
        parser.add_argument("--gpu", required=True)
        parser.add_argument("--within", type=float, default=1.0)
    else:
        parser.add_argument("--gpu", required=True)
        parser.add_argument("--job", default="")
        parser.add_argument("--with", dest="consent", default="")
    options = parser.parse_args(own)
    if kind in _OF_SITES and command:
        parser.error(f"{kind} takes no command, and {command[0]!r} is one")
    if kind not in _OF_SITES and not command:
        parser.error(
            f"{kind} needs a command to run, such as: flexo share {kind} --gpu gpu0 -- python train.py"
        )
    options.folder = options.folder or environment.folder_of(os.environ)
    return options, command


def _coordinate(options: argparse.Namespace) -> int:
    from horovod_elastic.sharing import coordinator

    futex.number()
    found: list[devices.Device] = [devices.pretended(each) for each in options.pretend]
    if len({each.name for each in found}) < len(found):
        raise WrongVariable("--pretend: two devices have one name; each needs a name of its own")
    found = found or devices.by_nvml()
    try:
        options.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        coordinator.serve(options.folder, found)
    except OSError as error:
        raise NoCoordinator(
            f"{error.filename or options.folder}: {error.strerror}. Name another --folder"
        ) from error
    return 0


def _run(options: argparse.Namespace, command: list[str]) -> int:
    futex.number()
    role = Role(options.what)
    name = options.job or " ".join(command)[:64]
    job = "".join(each if each.isprintable() else "?" for each in name)
    everybody = options.consent == "*"
    named = () if everybody else filter(None, options.consent.split(","))
    consent = frozenset({environment.EVERYBODY} if everybody else map(_user, named))
    sharing = Sharing(role, options.gpu, options.folder.resolve(), job, None, consent)
    added = {**os.environ, **environment.for_process(sharing)}
    try:
        if role is Role.GUARANTEE:
            sys.stdout.flush()
            os.execvpe(command[0], command, added)
        from horovod_elastic.sharing.supervisor import Supervisor

        return Supervisor().run(command, added)
    except OSError as error:
        sys.stderr.write(f"flexo share: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def _evict(options: argparse.Namespace) -> int:
    with introduction.connect(options.folder) as connection:
        introduction.send(connection, Eviction(options.gpu).encoded())
        connection.settimeout(options.within)
        try:
            packet, _ = introduction.receive(connection)
        except TimeoutError:
            sys.stderr.write(f"flexo share: after {options.within:g} s a job on {options.gpu} still runs\n")
            return NOT_GONE
    told = introduction.told_of(packet)
    if told.kind is Kind.REFUSED:
        sys.stderr.write(f"flexo share: the coordinator refuses: {told.reason}\n")
        return REFUSED
    return 0


def _user(word: str) -> int:
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        return pwd.getpwnam(word).pw_uid
    except KeyError:
        raise WrongVariable(
            f"--with: this node knows no user {word!r}; allowed are names and ids of users"
        ) from None


def _show(options: argparse.Namespace) -> int:
    try:
        node = status.read(options.folder)
    except status.NoStatus as error:
        sys.stderr.write(f"flexo share: {error}\n")
        return NO_STATUS
    age_s = time.time() - node.updated_at
    if options.json:
        print(json.dumps({"age_s": round(age_s, 3), **json.loads(status.content_of(node))}))
        return 0
    if age_s > STALE_S:
        sys.stderr.write(f"flexo share: the coordinator wrote this {age_s:.0f} s ago; it does not run now\n")
    for gpu in node.gpus:
        print("\n".join(_lines(gpu)))
    return 0


def _lines(gpu: status.Gpu) -> list[str]:
    memory = f"{_gib(gpu.memory_used)} of {_gib(gpu.memory_total)} GiB"
    lines = [
        f"{gpu.name} ({gpu.device}): {gpu.utilization:.0%} busy, {memory}, gate {gpu.gate}: {gpu.reason}"
    ]
    if gpu.guarantee is not None:
        slower = gpu.guarantee_slowdown
        lost = "not measured yet" if slower is None else f"steps {slower:+.1%}"
        lines.append(f"  guarantee job      {_member(gpu.guarantee)}, {lost}")
    if gpu.opportunistic is not None:
        share = f"works {gpu.opportunistic_share or 0.0:.0%} of the time, may hold {_gib(gpu.limit)} GiB"
        lines.append(f"  opportunistic job  {_member(gpu.opportunistic)}, {share}")
    return lines + [f"  waits              {_member(each)}" for each in gpu.waiting]


def _member(member: status.Member) -> str:
    moved = f", {_gib(member.moved_out)} GiB moved to the host" if member.moved_out else ""
    stale = ", says nothing" if member.stale else ""
    who = f"{member.job or '(no name)'}, process {member.pid} of user {member.uid}"
    return f"{who}, {member.steps} steps, {_gib(member.memory)} GiB{moved}{stale}"


def _gib(size: int) -> str:
    return f"{size / devices.GIB:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
