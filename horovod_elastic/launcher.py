"""The command `flexo run COMMAND ...` in a job script: keeps an agent on every node of the base.

The launcher does not lead the job: one of the agents does (agent.py). The launcher chooses the place of the
leader lease, from which agents learn who leads. It restarts an agent that has ended before the job. It passes
signals on, and ends with the job's exit code.
"""

from __future__ import annotations

import enum
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from flexo_protos.credentials import new_authenticator
from flexo_protos.leader_leases.lease import StoreUnavailable
from flexo_protos.lease_place import Kind, LeasePlace
from flexo_protos.lease_place import parse as parse_place
from horovod_elastic import (
    accelerate_launch,
    launch_commands,
    network,
    open_files,
    progress,
    reproducible,
    threads,
    wire,
)
from horovod_elastic.agent.agent import TERMINATED
from horovod_elastic.agent.supervisor import EXIT_CANNOT_WORK, EXIT_CRASHED, EXIT_TRY_AGAIN
from horovod_elastic.agent.worker_environment import ADDRESS_VARIABLE
from horovod_elastic.core import choice
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.election import lease_places
from horovod_elastic.election.lease_client import JobRun, LeaseClient
from horovod_elastic.election.lease_grpc import LeaseServer
from horovod_elastic.job_plan import BaseJob, BaseNode, JobPlan
from horovod_elastic.leader import notices, parked_store, profiling
from horovod_elastic.platforms import registry
from horovod_elastic.platforms.base import (
    AgentProcess,
    AggregatorSatellites,
    JobControl,
    NotInAJob,
    Platform,
    Refused,
    with_satellite_options,
)
from horovod_elastic.trace import say, say_error
from horovod_elastic.worker.ddp import rates
from horovod_elastic.worker.ddp.deal import BatchRule
from horovod_elastic.worker.ddp.hooks import BATCH_RULE

STARTS_AGAIN = 3
"""Number of times that the agent of a node is restarted."""
FIRST_PAUSE_S = 1.0
"""Pause before an agent's first restart; each further pause is twice as long."""
UNIT_VARIABLE = "FLEXO_ELASTIC_UNIT"
"""Environment variable for the value of --elastic-unit."""
OTHERS_END_WITHIN_S = 75.0
"""Time for the other agents to end after the first one. The leader ends last, after its satellites."""
TERMINATED_WITHIN_S = 10.0
USAGE = """usage: flexo run [OPTION ...] [--] COMMAND [ARGUMENT ...]

Trains in a Slurm job: one process for every task of the job (sbatch -n). If the job was submitted with
--elastic=MIN-MAX, it grows into idle GPUs and gives them back while it trains.

    #SBATCH -n 2 --gpus-per-task=1 --elastic=2-8
    flexo run torchrun --nproc-per-node=2 train.py --epochs 90

COMMAND is one of these:
    python train.py ...                 a script of torch.distributed (DistributedDataParallel) or of Horovod
    torchrun [OPTIONS] train.py ...     the same: flexo starts the processes itself, and drops the options for
                                        torchrun's own processes. `python -m torch.distributed.run` and
                                        `python -m torch.distributed.launch` likewise
    accelerate launch [OPTIONS] train.py ...
                                        likewise: the script gets the variables that its options and its
                                        configuration file stand for. No DeepSpeed, Megatron-LM and TPUs
    PROGRAM ...                         any other program, at the size of the base

Scripts need no change. `flexo check train.py` names what keeps a script from being resized; such a script
trains at the size of its base. A Horovod script is resized if it has Horovod's own elastic form
(hvd.elastic.run).

Options for all scripts:
    --no-profile        the job is inelastic: it is not measured at other sizes, and keeps its own
    --core=torch|horovod|service
                        what carries out Horovod's collectives ($FLEXO_CORE says it too). torch, the default:
                        process groups of torch.distributed under Horovod's own Python layer; Horovod's native
                        library need not be there; no Adasum, and only PyTorch. horovod: Horovod's library.
                        service: as torch, but a process on each node sums gradients (Aggregator), and a
                        worker that dies costs no mini-batch
    --aggregators=own|satellites|pool|auto
                        with --core=service: whose Aggregators sum gradients ($FLEXO_AGGREGATORS says it too).
                        own, the default: a process beside the workers of each node. satellites: processes in
                        satellites of the job that have one CPU and no GPU (on Slurm). pool: processes that
                        flexod assigns and that several jobs share. Without flexod or room there, the own
                        ones. auto: the own ones; if these seem to hold the job up, satellites, or else the
                        pool, as long as iterations are shorter there
    --aggregator-cores=N
                        with --aggregators=satellites or auto: the number of these satellites. With
                        --aggregators=pool: the CPU cores that the job would reserve for its own Aggregators.
                        It gets about as many of the pool. Without it, one for each node of the job
Options for scripts of torch.distributed:
    --batch-rule=keep|grow
                        the global batch after a resize. keep, the default: that of the base, and each worker
                        has a smaller part of it. grow: each worker keeps its batch
    --scale-lr=linear|sqrt
                        with --batch-rule=grow: when the job goes from A to B workers, learning rates are
                        multiplied by B/A, or by its square root. Without it, flexo changes no learning rate
    --elastic-unit=N    workers come and go N at a time: each N workers are one replica of a model that is
                        spread over them (FSDP with replicas, tensor parallelism). The workers on each node,
                        MIN and MAX are multiples of N. Needs PyTorch 2.13
    --reproducible[=V]  the same bits whatever the resizes: the script always runs as V processes (virtual
                        workers), and a GPU carries several of them while the job has fewer than V GPUs.
                        Without =V, as many as the job's maximum
Option for all scripts:
    --epochs=N          how many epochs the script trains. flexod then knows how far it is, by the passes over
                        its training DataLoader or the `epoch` in its Horovod state. Policies go by that
                        instead of the time limit

The job tells of growth, shrinking, lost satellites and its end, as its user, where $FLEXO_NOTIFY says:
https://HOST/... (a webhook), http://localhost:PORT/..., or mail:NAME@HOST. $FLEXO_NOTIFY_KINDS chooses among
grow,shrink,lost,end.

flexod is looked for at $FLEXO_DAEMON, then where $FLEXO_CONFIG or /etc/flexo/flexo.toml says."""


def main(arguments: list[str]) -> int:
    """Entry point; `arguments`: options and the training command. Returns the job's exit code."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    try:
        command = _take_options(arguments)
        choice.choose(choice.chosen())
        choice.check_aggregators()
        notices.wanted(os.environ)
    except ValueError as error:
        print(f"flexo run: {error}", file=sys.stderr)
        return 2
    if not command:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        platform = registry.find(os.environ)
        base, command = _as_launched(platform.base_job(), command)
        base = in_units(base, int(os.environ.pop(UNIT_VARIABLE, "1")))
        _settle_virtual_workers(base)
        return run_job(platform, base, command)
    except (NotInAJob, network.NoAddress, ValueError) as error:
        print(f"flexo run: {error}", file=sys.stderr)
        return 2


def _take_options(arguments: Sequence[str]) -> list[str]:
    """Apply the options before the command, for all agents, satellites and workers; return the command.

    Raises ValueError for an unknown option or a wrong value.
    """
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option == "--" and not equals:
            break
        if option == "--no-profile" and not equals:
            os.environ[profiling.OPT_OUT_VARIABLE] = "off"
        elif option == reproducible.OPTION:
            os.environ[reproducible.VARIABLE] = reproducible.asked(value, given=bool(equals))
        elif option in _OPTIONS_WITH_VALUES:
            _OPTIONS_WITH_VALUES[option](value if equals or not rest else rest.pop(0))
        elif option in _OF_SUBMISSION:
            raise ValueError(
                f"{option} is an option of the command that submits the job, or of the head of its script:"
                f" {option}{equals}{value} belongs there, before flexo run"
            )
        else:
            raise ValueError(f"{option}{equals}{value}: no such option; flexo run --help lists them")
    if os.environ.get(rates.VARIABLE) and os.environ.get(BATCH_RULE) != BatchRule.GROW.value:
        raise ValueError("--scale-lr needs --batch-rule=grow: otherwise the global batch stays the same")
    if os.environ.get(reproducible.VARIABLE) and os.environ.get(BATCH_RULE):
        raise ValueError(
            f"{reproducible.OPTION} does not go together with --batch-rule and --scale-lr: the global"
            " batch is always that of its virtual workers. Leave these out"
        )
    return rest


def _choose_unit(text: str) -> None:
    """Take the value of --elastic-unit."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--elastic-unit={text}: allowed is a number of workers, from 1")
    os.environ[UNIT_VARIABLE] = text


def in_units(base: BaseJob, unit: int) -> BaseJob:
    """The job, with workers that come and go by units. Raises ValueError if that cannot be."""
    if unit > 1 and base.opportunistic:
        raise ValueError(
            f"--elastic-unit={unit}: an opportunistic job has none, because its base keeps the state of one"
            " worker. Submit the job with --elastic"
        )
    allowed = f"allowed is a multiple of {unit}"
    for node in base.nodes:
        if node.workers % unit:
            said = f"node {node.name} has {node.workers} tasks"
            raise ValueError(f"--elastic-unit={unit}: {said}; {allowed} on each node (--ntasks-per-node)")
    for what, workers in (("minimum", base.minimum), ("maximum", base.maximum)):
        if workers % unit:
            raise ValueError(f"--elastic-unit={unit}: the {what} of --elastic is {workers}; {allowed}")
    return replace(base, unit=unit)


def _choose_one(option: str, variable: str, kind: type[enum.Enum]) -> Callable[[str], None]:
    """An option whose value is one of those of `kind`, told to workers in `variable`."""

    def choose_value(value: str) -> None:
        allowed = [each.value for each in kind]
        if value not in allowed:
            raise ValueError(f"{option}={value}: allowed is {' or '.join(allowed)}")
        os.environ[variable] = value

    return choose_value


_OF_SUBMISSION = (
    *("--elastic", "--elastic-fungible", "--elastic-heterogeneous", "--elastic-batch"),
    *("--elastic-opportunistic", "--elastic-cohost"),
)
"""Options of a job's submission, which people give to `flexo run`."""
_OPTIONS_WITH_VALUES: dict[str, Callable[[str], None]] = {
    "--core": choice.choose,
    "--aggregators": choice.choose_aggregators,
    "--aggregator-cores": choice.choose_aggregator_cores,
    "--epochs": progress.declare,
    "--elastic-unit": _choose_unit,
    "--batch-rule": _choose_one("--batch-rule", BATCH_RULE, BatchRule),
    "--scale-lr": _choose_one("--scale-lr", rates.VARIABLE, rates.RateRule),
}


def _as_launched(base: BaseJob, command: list[str]) -> tuple[BaseJob, list[str]]:
    """The job and the workers' command, if `command` is that of another launcher. Raises ValueError."""
    tasks = launch_commands.Tasks(base.founders, len(base.nodes))
    launch = launch_commands.read(command, tasks, accelerate_launch.ask)
    os.environ.update(launch.variables)
    for note in launch.notes:
        say(note)
    if launch.fixed and base.opportunistic:
        raise ValueError(f"an opportunistic job changes its size, and this one cannot: {launch.fixed}")
    if launch.fixed and base.elastic:
        say(f"this job keeps its size: {launch.fixed}")
        base = replace(base, maximum=base.minimum)
    return base, list(launch.command)


def _settle_virtual_workers(base: BaseJob) -> None:
    """Tell everybody the number of virtual workers, if the job has any. Raises ValueError for a wrong one."""
    if asked := os.environ.get(reproducible.VARIABLE):
        if base.opportunistic:
            raise ValueError(
                f"{reproducible.OPTION}: an opportunistic job cannot keep the state of its virtual workers."
                " Submit the job with --elastic"
            )
        if base.unit > 1:
            raise ValueError(f"--elastic-unit={base.unit} and --reproducible exclude each other")
        if choice.sums_by_service():
            raise ValueError(
                "--core=service and --reproducible exclude each other: without a worker that has died, sums"
                " are others. Sums by Aggregators have the same bits in every run of the same workers anyway"
            )
        count = reproducible.settled(asked, max(base.maximum, base.workers))
        os.environ[reproducible.VARIABLE] = count
        say(f"{count} virtual workers, whatever the size (--reproducible)")


def run_job(platform: Platform, base: BaseJob, command: list[str]) -> int:
    """Run the job of this allocation. Returns its exit code."""
    daemon = daemon_address() if base.declared else None
    if base.opportunistic and daemon is None:
        raise ValueError(
            "an opportunistic job trains on what flexod grants, and no flexod is configured. Set"
            " FLEXO_DAEMON, or see flexo.toml"
        )
    open_files.raise_limit()
    here = platform.allocation().node or base.nodes[0].name
    site = platform.site()
    node_address = platform.node_address(here)
    address = network.own_address(node_address, site.controller)
    if here == base.nodes[0].name:  # rank 0 is there; else the node's name must do (worker_environment.py)
        os.environ.setdefault(ADDRESS_VARIABLE, node_address)
    if base.elastic and daemon is None:
        say("no flexod is configured (FLEXO_DAEMON, flexo.toml): training stays at the base's size")
    with _parked_state(base), lease_place(base, address) as place:
        plan = JobPlan(
            base=with_satellite_options(base, platform),
            site=site,
            output=platform.output_path(base.job_id),
            daemon=daemon or "",
            leases=str(place),
        )
        return keep_agents(platform, plan, command)


@contextmanager
def _parked_state(base: BaseJob) -> Iterator[None]:
    """Keep the folder of an opportunistic job's parked state. Raises ValueError if there cannot be one."""
    with ExitStack() as stack:
        if base.opportunistic:
            try:
                stack.enter_context(parked_store.kept_for_run(base.job_id, base.restart_count))
            except OSError as error:
                where = parked_store.FOLDER_VARIABLE
                raise ValueError(f"the base cannot keep the state of training ({where}): {error}") from error
        yield


def keep_agents(platform: Platform, plan: JobPlan, command: list[str]) -> int:
    """Keep the agents of the base until the job is over. Returns its exit code.

    Raises ValueError if the cluster has not what the user has asked for.
    """
    base, place = plan.base, parse_place(plan.leases)
    control = platform.control(plan, command)
    _check_satellites(control, plan)
    lease = lease_places.open_lease(place, JobRun(base.job_id, base.restart_count), new_authenticator())
    agents = BaseAgents(base.nodes, control, lease)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: agents.terminate(number))
    try:
        code = agents.run()
    finally:
        lease.close()
    if code == TERMINATED:
        platform.requeue_if_preempted(base.job_id)
    return code


def _check_satellites(control: JobControl, plan: JobPlan) -> None:
    """Check whether Aggregators can be in satellites, if the user has asked for that. Raises ValueError."""
    if choice.leaves_choice() and not plan.daemon:
        say(
            f"--aggregators={choice.AUTO}: nobody chooses, because this job was not submitted with --elastic,"
            " or no flexod is configured. The Aggregators of its nodes sum"
        )
    if not choice.wants_satellites():
        return
    if not isinstance(control, AggregatorSatellites):
        raise ValueError(
            f"--aggregators={choice.SATELLITES}: {control.name} has no satellites with CPUs only. Allowed"
            f" there is {choice.OWN}, {choice.POOL} or {choice.AUTO}"
        )
    if not plan.daemon:
        say(
            f"--aggregators={choice.SATELLITES}: nobody grants satellites to this job, because it was not"
            " submitted with --elastic, or no flexod is configured. The Aggregators of its nodes sum"
        )


@contextmanager
def lease_place(base: BaseJob, address: str) -> Iterator[LeasePlace]:
    """The place of the job's leader lease; for a job that never grows, this process keeps the lease."""
    if base.elastic:
        with lease_places.settled(
            JobRun(base.job_id, base.restart_count), address, new_authenticator(), say
        ) as place:
            yield place
        return
    with LeaseServer(address, new_authenticator()) as server:
        yield LeasePlace(Kind.RUN, (server.endpoint,), run=secrets.token_hex(8))


class BaseAgents:
    """The agents of the base's nodes. One thread for each agent watches and restarts it."""

    def __init__(self, nodes: tuple[BaseNode, ...], cluster: JobControl, lease: LeaseClient) -> None:
        self._nodes = nodes
        self._cluster = cluster
        self._lease = lease
        self._lock = threading.Lock()
        self._steps: dict[str, AgentProcess] = {}
        self._codes: dict[str, int] = {}
        """Each node's exit code, in the order in which the agents ended for good."""
        self._signalled = 0
        self._ending = threading.Event()
        """Set when the job is over or has to end: no agent is started any more."""

    def run(self) -> int:
        """Start the agents and wait until all have ended; return the job's exit code."""
        keeping = [self._start_keeping(node) for node in self._nodes]
        self._ending.wait()
        self._wait(keeping, OTHERS_END_WITHIN_S)
        for forcibly in (False, True):
            with self._lock:
                left = list(self._steps.values())
            for step in left:
                step.kill() if forcibly else step.terminate()
            self._wait(keeping, TERMINATED_WITHIN_S if left else 0.0)
        code = next(iter(self._codes.values()))  # of the first agent; the others may have been killed
        return 128 + self._signalled if self._signalled and code >= 128 else code

    def _start_keeping(self, node: BaseNode) -> threading.Thread:
        def failed(error: Exception) -> None:
            """End the job: no thread keeps the node's agent any more, and `run` would wait for ever."""
            say_error(error)
            self._end(node, 1)
            self._terminate()

        return threads.start(lambda: self._keep(node), name=f"keep-{node.name}", failed=failed)

    def terminate(self, signum: int) -> None:
        """Have the agents end the job in order, through their leader. Safe in a signal handler."""
        self._signalled = signum
        threads.start(self._terminate, name="terminate", failed=say_error)

    def _terminate(self) -> None:
        if self._signalled == signal.SIGINT:
            say("flexo run was interrupted (Ctrl-C), and ends the job")
        try:
            self._cluster.terminate_base()
        except Refused as error:
            # The cluster refuses signals to a job that is being cancelled, and has sent its own signal.
            time.sleep(TERMINATED_WITHIN_S)
            with self._lock:
                left = list(self._steps.values())
            if left:
                name = self._cluster.name
                say(f"the agents are killed, because {name} does not pass a signal on to them: {error}")
            for step in left:
                step.terminate()

    def _keep(self, node: BaseNode) -> None:
        """Keep an agent running on `node` until the job is over. Runs in a thread of its own."""
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
            except OSError as error:  # no process or memory is left, perhaps only for now
                say(f"the agent on {node.name} cannot be started: {error}")
                return EXIT_TRY_AGAIN
            self._steps[node.name] = step
        code = step.wait()
        with self._lock:
            del self._steps[node.name]
        return code if code >= 0 else 128 - code

    def _jobs_end(self, code: int) -> int | None:
        """The job's exit code if the agent that ended with `code` ended with its job; else None.

        The exit code of a killed agent does not say whether the job ended. The note in the lease, from the
        job's last leader, does.
        """
        if code in (0, TERMINATED):
            return code
        if self._signalled:
            return TERMINATED if code == EXIT_TRY_AGAIN else code  # its agent could not be started any more
        try:
            of_job = wire.exit_code_of(self._lease.look().holder)
        except StoreUnavailable:
            of_job = (
                code if code < 128 and code not in (EXIT_CANNOT_WORK, EXIT_TRY_AGAIN, EXIT_CRASHED) else None
            )
        return 1 if of_job is None and code == EXIT_CANNOT_WORK else of_job

    def _end(self, node: BaseNode, code: int) -> None:
        with self._lock:
            self._codes[node.name] = code
        self._ending.set()

    @staticmethod
    def _wait(keeping: list[threading.Thread], bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        for thread in keeping:
            thread.join(max(0.0, deadline - time.monotonic()))
