"""`flexo run COMMAND ...` in a job script: puts an agent on every node of the base, until the job is over.

It leads nothing itself: one of the agents does (agent.py). It settles where they find out which one, starts
an agent again that has ended and should not have, passes signals on, and ends with the job's exit code.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flexo_protos.credentials import new_authenticator
from flexo_protos.leader_leases.lease import StoreAway
from flexo_protos.lease_place import Kind, LeasePlace
from horovod_elastic import network, open_files, progress, threads, wire
from horovod_elastic.agent.agent import TERMINATED
from horovod_elastic.agent.keeper import CANNOT_WORK, CANNOT_WORK_NOW, CRASHED
from horovod_elastic.core import choice
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.election import lease_places
from horovod_elastic.election.lease_client import JobRun, LeaseClient
from horovod_elastic.election.lease_grpc import LeaseServer
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan
from horovod_elastic.leader import profiling
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import AgentProcess, JobControl, NotInAJob, Platform, Refused
from horovod_elastic.trace import say, say_error

STARTS_AGAIN = 3
"""How often the agent of a node is started again."""
FIRST_PAUSE_S = 1.0
"""Before it is started again for the first time; twice as long each further time."""
OTHERS_END_WITHIN_S = 75.0
"""After the first agent has ended with its job; the leader ends last, when its satellites are gone."""
TERMINATED_WITHIN_S = 10.0
USAGE = """usage: flexo run [--core=torch|horovod] [--epochs=N] [--no-profile] [--] COMMAND [ARGUMENT ...]

Runs a Horovod training command in a Slurm job: one process for every task of the job (sbatch -n). If the job
was submitted with --elastic=MIN-MAX, it grows into idle GPUs and gives them back while it trains.

    #SBATCH -n 2 --gpus-per-task=1 --elastic=2-8
    flexo run python train.py --epochs 90

The script needs no change beyond Horovod's own elastic form (hvd.elastic.run); without it, it runs at its
base's size. --no-profile declares it inelastic: it is not measured at other sizes, and keeps its own.

--epochs says how many epochs the script trains. Where its elastic state has an `epoch`, as Horovod's own
examples have, flexod then knows how far it is, and policies go by that instead of the time limit.

--core says what carries out Horovod's collectives ($FLEXO_CORE says it too):
    torch    process groups of torch.distributed under Horovod's own Python layer; the default. Horovod's
             native library is not used and need not be there. No Adasum, and only PyTorch.
    horovod  Horovod's own native library.

flexod is looked for at $FLEXO_DAEMON, then where $FLEXO_CONFIG or /etc/flexo/flexo.toml says."""


def main(arguments: list[str]) -> int:
    """Entry point; `arguments`: options and the training command. Returns the job's exit code."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    try:
        command = _take_options(arguments)
        choice.choose(choice.chosen())
    except ValueError as error:
        print(f"flexo run: {error}", file=sys.stderr)
        return 2
    if not command:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        platform = registry.find(os.environ)
        return _run(platform, platform.base_job(), command)
    except (NotInAJob, network.NoAddress, ValueError) as error:
        print(f"flexo run: {error}", file=sys.stderr)
        return 2


def _take_options(arguments: Sequence[str]) -> list[str]:
    """Do as the options before the command say, for all agents, satellites and workers. The command.

    Raises ValueError for what is no option.
    """
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--" and not equals:
            break
        if option == "--core":
            choice.choose(value if equals or not rest else rest.pop(0))
        elif option == "--epochs":
            progress.declare(value if equals or not rest else rest.pop(0))
        elif option == "--no-profile" and not equals:
            os.environ[profiling.OPT_OUT_VARIABLE] = "off"
        else:
            raise ValueError(f"{option}{equals}{value}: no such option; flexo run --help lists them")
    return rest


def _run(platform: Platform, base: BaseJob, command: list[str]) -> int:
    open_files.allow_most()
    here = platform.allocation().node or base.nodes[0].name
    site = platform.site()
    address = network.own_address(platform.node_address(here), site.controller)
    daemon = daemon_address() if base.declared else None
    if base.elastic and daemon is None:
        say("no flexod is configured (FLEXO_DAEMON, flexo.toml): training stays at the base's size")
    with lease_place(base, address) as place:
        plan = JobPlan(
            base=base,
            site=site,
            output=platform.output_path(base.job_id),
            daemon=daemon or "",
            leases=str(place),
        )
        lease = lease_places.open_lease(place, JobRun(base.job_id, base.restart_count), new_authenticator())
        agents = BaseAgents(base.nodes, platform.control(plan, command), lease)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: agents.terminate(number))
        try:
            code = agents.run()
        finally:
            lease.close()
        if code == TERMINATED:
            platform.requeue_if_preempted(base.job_id)
        return code


@contextmanager
def lease_place(base: BaseJob, address: str) -> Iterator[LeasePlace]:
    """Where the job's agents keep their leader's lease; a job that never grows needs nobody's help for it."""
    if base.elastic:
        with lease_places.settled(
            JobRun(base.job_id, base.restart_count), address, new_authenticator(), say
        ) as place:
            yield place
        return
    with LeaseServer(address, new_authenticator()) as server:
        yield LeasePlace(Kind.RUN, (server.endpoint,), run=secrets.token_hex(8))


class BaseAgents:
    """The agents of the base's nodes, each watched by a thread of its own."""

    def __init__(self, nodes: tuple[BaseNode, ...], cluster: JobControl, lease: LeaseClient) -> None:
        self._nodes = nodes
        self._cluster = cluster
        self._lease = lease
        self._lock = threading.Lock()
        self._steps: dict[str, AgentProcess] = {}
        self._codes: dict[str, int] = {}
        """Exit codes by node, in the order in which they ended for good."""
        self._signalled = 0
        self._ending = threading.Event()
        """The job is over, or has to be: nobody is started any more."""

    def run(self) -> int:
        """Start them, and wait until all have ended. The job's exit code."""
        keeping = [self._start_keeping(node) for node in self._nodes]
        self._ending.wait()
        self._wait(keeping, OTHERS_END_WITHIN_S)
        for forcibly in (False, True):
            with self._lock:
                left = list(self._steps.values())
            for step in left:
                step.kill() if forcibly else step.terminate()
            self._wait(keeping, TERMINATED_WITHIN_S if left else 0.0)
        code = next(iter(self._codes.values()))  # of the first; the others may have had to be killed
        return 128 + self._signalled if self._signalled and code >= 128 else code

    def _start_keeping(self, node: BaseNode) -> threading.Thread:
        def failed(error: Exception) -> None:
            """Nobody keeps the node any more, and `run` would wait for that thread for ever."""
            say_error(error)
            self._end(node, 1)
            self._terminate()

        return threads.start(lambda: self._keep(node), name=f"keep-{node.name}", failed=failed)

    def terminate(self, signum: int) -> None:
        """Have the agents end the job in order: their leader hears of it. Safe in a signal handler."""
        self._signalled = signum
        threads.start(self._terminate, name="terminate", failed=say_error)

    def _terminate(self) -> None:
        try:
            self._cluster.terminate_base()
        except Refused as error:
            # A job that is being cancelled takes no signals any more: its agents have had the cluster's own.
            time.sleep(TERMINATED_WITHIN_S)
            with self._lock:
                left = list(self._steps.values())
            if left:
                name = self._cluster.name
                say(f"the agents are killed, because {name} does not pass a signal on to them: {error}")
            for step in left:
                step.terminate()

    def _keep(self, node: BaseNode) -> None:
        """Have an agent on `node` until the job is over. In a thread of its own."""
        pause_s = FIRST_PAUSE_S
        for start in range(STARTS_AGAIN + 1):
            code = self._run_once(node, again=start > 0)
            job_code = self._jobs_end(code)
            if job_code is not None or self._ending.is_set():
                self._end(node, code if job_code is None else job_code)
                return
            if start == STARTS_AGAIN:
                break
            say(
                f"the agent on {node.name} has ended with exit code {code}; "
                f"it is started again ({start + 1} of {STARTS_AGAIN})"
            )
            self._ending.wait(pause_s)
            pause_s *= 2
        say(f"the job ends: the agent on {node.name} ended with exit code {code} again and again")
        self._end(node, code or 1)
        self._terminate()

    def _run_once(self, node: BaseNode, *, again: bool) -> int:
        with self._lock:
            if self._ending.is_set() or self._signalled:
                return TERMINATED
            try:
                step = self._cluster.launch_base(node.name, node.workers, again=again)
            except OSError as error:  # no process or memory is left for it, at the moment perhaps
                say(f"the agent on {node.name} cannot be started: {error}")
                return CANNOT_WORK_NOW
            self._steps[node.name] = step
        code = step.wait()
        with self._lock:
            del self._steps[node.name]
        return code if code >= 0 else 128 - code

    def _jobs_end(self, code: int) -> int | None:
        """The job's exit code if the agent that ended with `code` ended with its job; else None.

        An agent that is killed ends like one whose job was: the job's last leader has left a note.
        """
        if code in (0, TERMINATED) or self._signalled:
            return code
        try:
            of_job = wire.exit_code_of(self._lease.look().holder)
        except StoreAway:
            of_job = code if code < 128 and code not in (CANNOT_WORK, CANNOT_WORK_NOW, CRASHED) else None
        return 1 if of_job is None and code == CANNOT_WORK else of_job

    def _end(self, node: BaseNode, code: int) -> None:
        with self._lock:
            self._codes[node.name] = code
        self._ending.set()

    @staticmethod
    def _wait(keeping: list[threading.Thread], bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        for thread in keeping:
            thread.join(max(0.0, deadline - time.monotonic()))
