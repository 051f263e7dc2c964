"""Short texts about jobs, satellites and GPUs, for tables and status lines."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable

from flexo.words import BEGINS_WITHIN_S, duration
from flexo_cli.output import ago, clock
from flexo_protos.resources import as_number, of_message
from flexo_protos.v1 import admin_pb2, jobs_pb2

_TRAINING = "training"
_TIME_LIMIT = "time limit"
"""The word for an estimate that has nothing to go by but the time limit."""
_MOST_NODES = 3
"""The most nodes of Aggregators that a table names for each job."""


def job_name(job: admin_pb2.ElasticJob | admin_pb2.WaitingJob) -> str:
    """The job's id: ``17``, or ``17.r1`` after a restart."""
    return f"{job.job_id}.r{job.restart_count}" if job.restart_count else str(job.job_id)


class ShownState(enum.StrEnum):
    """The states of an elastic job that people are shown."""

    PENDING = "pending"
    """Its base waits in the cluster's queue."""
    SUSPENDED = "suspended"
    NO_LEADER = "no leader"
    BUSY = "busy"
    """It carries out a command of its owner's, such as a profile."""
    PAUSED = "paused"
    STARTING = "starting"
    RESIZING = "resizing"
    TRAINING = "training"

    @property
    def option(self) -> str:
        """The state's name on a command line."""
        return self.value.replace(" ", "-")

    @classmethod
    def by_option(cls) -> dict[str, frozenset[ShownState]]:
        """The states by their names on a command line, and by squeue's words for several of them."""
        every, waits = frozenset(cls), frozenset({cls.PENDING})
        running = every - {cls.PENDING, cls.SUSPENDED}
        squeues = {
            "pd": waits,
            "r": running,
            "running": running,
            "s": frozenset({cls.SUSPENDED}),
            "all": every,
        }
        return {**{each.option: frozenset({each}) for each in cls}, **squeues}


def shown_state(job: admin_pb2.ElasticJob) -> ShownState:
    """The state of a running job."""
    if job.suspended:
        return ShownState.SUSPENDED
    if not job.attached:
        begins = time.time() - job.started_at < BEGINS_WITHIN_S
        return ShownState.STARTING if begins else ShownState.NO_LEADER
    if job.pending_command:
        return ShownState.BUSY
    if job.paused:
        return ShownState.PAUSED
    if not job.scalable:
        return ShownState.STARTING
    moving = any(grant.state != _TRAINING for grant in job.grants)
    return ShownState.RESIZING if moving else ShownState.TRAINING


def job_state(job: admin_pb2.ElasticJob) -> str:
    """The job's state, in a word or two; of a busy job the command that it carries out."""
    state = shown_state(job)
    return job.pending_command if state is ShownState.BUSY else state.value


def size(job: admin_pb2.ElasticJob) -> str:
    """The job's workers and its range: ``4/2-8``, or ``4>6/2-8`` on the way from 4 to the 6 granted."""
    moving = "" if job.workers == job.granted else f">{job.granted}"
    return f"{job.workers}{moving}/{job.min}-{job.max}"


def waits_for(job: admin_pb2.WaitingJob) -> str:
    """The cluster's reason why a job waits, as squeue prints it: ``(Resources)``."""
    return f"({job.reason})" if job.reason else ""


def why_waiting(job: admin_pb2.WaitingJob) -> str:
    """What a pending job waits for, in flexod's words, and the start that the cluster plans, if any."""
    starts = f"; the cluster plans its start at {clock(job.starts_at)}" if job.starts_at else ""
    return f"{job.waits_for}{starts}"


def left(job: admin_pb2.ElasticJob) -> str:
    """The job's remaining time; ~ marks an estimate by like jobs, and not by the job's own progress. "": not
    known; a time limit alone says how long a job may take, and not how long it does."""
    if job.left_by in ("", _TIME_LIMIT):
        return ""
    return f"{'' if job.left_by == 'progress' else '~'}{duration(job.left_s)}"


def nodes(job: admin_pb2.ElasticJob) -> str:
    """The job's base nodes, then each satellite with its workers, shared GPUs, and state unless it trains."""
    satellites = [
        f"{grant.node}+{grant.workers}"
        + _shared(grant)
        + ("" if grant.state == _TRAINING else f" ({grant.state})")
        for grant in job.grants
    ]
    return " ".join([*job.base_nodes, *satellites])


def _shared(grant: admin_pb2.GrantView) -> str:
    """The GPUs of a satellite that other jobs hold: ``~0,1``; "" if it has its own."""
    return "~" + ",".join(map(str, grant.shared_gpus)) if grant.shared_gpus else ""


def slow_gpu(gpu: admin_pb2.SlowGpuView) -> str:
    """A slow GPU: its node, its slowness, and the time until which flexod leaves it alone."""
    which = f"{gpu.node}: GPU {', '.join(map(str, gpu.gpus))}" if gpu.gpus else f"{gpu.node}: not known which"
    until = clock(gpu.until_at)
    return f"{which}, {gpu.ratio:.1f} times as slow as others of job {gpu.job_id}; left alone until {until}"


def last_look(reply: admin_pb2.GetStatusReply) -> str:
    """The age of flexod's last poll of the cluster, its duration, and the interval of polls."""
    if not reply.last_cycle_at:
        return "none yet"
    took = f"took {reply.read_cost_s * 1000:.0f} ms"
    return f"{ago(reply.last_cycle_at)} ago, {took}, every {round(reply.interval_s, 1):g} s"


def gpus(reply: admin_pb2.GetStatusReply) -> str:
    """The number of GPUs: all, idle ones, and ones in satellites."""
    idle, taken = reply.gpus_idle, reply.gpus_in_satellites
    return f"{reply.gpus} on {reply.nodes} nodes: {idle} idle, {taken} in satellites"


def pool(view: admin_pb2.PoolView) -> str:
    """``3 Aggregators attached, 2 wanted by 4 jobs``."""
    return f"{len(view.aggregators)} Aggregators attached, {view.wanted} wanted by {view.jobs} jobs"


def aggregators(job: admin_pb2.ElasticJob) -> str:
    """Whose Aggregators sum the job's gradients: ``own``, ``satellites``, ``pool``, with the job's loss
    ``pool -3%``, or ``none``; "" if no leader says so. Aggregators in satellites are named by their nodes:
    ``satellites c1 c2``, or ``own, c1 (pending)``."""
    if not job.HasField("aggregation"):
        return "none" if job.attached else ""
    use = job.aggregation
    if use.aggregators:
        return f"pool{loss(use)}"
    where = _nodes_of_aggregators(use.grants)
    if use.satellites:
        return f"satellites {where}".rstrip()
    return f"own, {where}" if where else "own"


def _nodes_of_aggregators(grants: Iterable[admin_pb2.GrantView]) -> str:
    """The nodes of Aggregators in satellites, each with the state unless it sums: ``c1 c2 c3 +2``."""
    nodes = dict.fromkeys(
        grant.node + ("" if grant.state == _TRAINING else f" ({grant.state})")
        for grant in sorted(grants, key=lambda grant: (grant.state != _TRAINING, grant.node))
    )
    named = list(nodes)[:_MOST_NODES]
    left_out = len(nodes) - len(named)
    return " ".join([*named, f"+{left_out}"] if left_out else named)


def loss(use: admin_pb2.JobAggregation) -> str:
    """`` -3%``: what sharing Aggregators costs a job; "" if that is nothing, or not measured."""
    return f" -{use.loss:.0%}" if use.loss >= 0.005 else ""


def any_aggregators(jobs: Iterable[admin_pb2.ElasticJob]) -> bool:
    """Whether Aggregators sum the gradients of any of these jobs."""
    return any(job.HasField("aggregation") for job in jobs)


def hidden(privacy: admin_pb2.Privacy) -> list[tuple[str, str]]:
    """The line of `flexo status` on what the cluster hides from its reader; none if that is nothing."""
    if not privacy.restricted:
        return []
    what = [*(["jobs of others"] if privacy.jobs else []), *(["nodes"] if privacy.nodes else [])]
    return [("hidden", f"{' and '.join(what)}, as the cluster hides them from you")]


def unknown_satellites(reply: admin_pb2.GetStatusReply) -> list[tuple[str, str]]:
    """The line about jobs with a satellite's comment but no grant; empty if there are none."""
    if not reply.unknown_satellites:
        return []
    count = reply.unknown_satellites
    return [("not granted", f"{count} jobs have a satellite's comment, but no grant of flexod's")]


def gpus_per_worker(job: admin_pb2.ElasticJob) -> int | float:
    """GPUs of each worker: a whole number, or a part of one GPU."""
    return gpus_of(job.worker, job.gpus_per_worker)


def gpus_of(said: jobs_pb2.Resources, whole: int) -> int | float:
    """The GPUs in flexod's exact amount `said`; `whole` from an older flexod, which sends no such amount."""
    return as_number(of_message(said).gpus) if said.ByteSize() else whole
