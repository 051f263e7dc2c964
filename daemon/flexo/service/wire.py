"""Converts protobuf messages to the model's types and back: no message of the wire travels further in than
this.

The module checks the bounds, names and duplicates in a leader's messages. jobs_service checks whether the
leader may send them at all (whose job it is). The bounds are generous; they keep nonsense out of the policy's
arithmetic and long strings out of the event store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

from flexo.control.leaders import Orders
from flexo.grant_signatures import LONGEST as LONGEST_SIGNATURE
from flexo.model.aggregation import AggregationUse, AggregatorOffers, UsedAggregator
from flexo.model.elastic import FailureReason, GrantFailure, LeaderReport, SatelliteReport, SatelliteState
from flexo.model.measured import BatchTime, FailedWorkers, ScalingPoint, SlowGpuReport, TriedBatches
from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo.model.sharing import GpuUse
from flexo.service.leader_registry import UNFENCED, Fence
from flexo.service.pending_commands import (
    CheckpointOrder,
    Command,
    CommandOutcome,
    ProfileOrder,
    Progress,
    Result,
)
from flexo.words import one_line
from flexo_protos.resources import BadAmount, Resources, of_message
from flexo_protos.v1 import jobs_pb2

MAX_WORKERS = 100_000
MAX_NODES = 10_000
MAX_GPUS = 1_024
_MAX_PARTS = 1_000_000
_MAX_DEVICES = 16
_LEAST_MEASURED, _MOST_MEASURED = 1e-9, 1e12
MAX_CPUS = 65_536
MAX_MEMORY_MIB = 1 << 30
MAX_POINTS = 1_000
MAX_PATH = 4_096
MAX_GRADIENTS = 1 << 44
_MAX_BATCH_TIMES = 64
_MAX_SAMPLES = 1_000_000_000
_MAX_AGGREGATORS = 1_024
_MAX_SHARE = 1_000_000
_MAX_VERSION = 1 << 31
LONGEST_RELEASE = 40
MAX_COUNT = (1 << 63) - 1  # what SQLite keeps
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_GRANT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GPU_TYPE = re.compile(r"[A-Za-z0-9._-]{0,64}")
_RUN = re.compile(r"[A-Za-z0-9_-]{0,64}")
_SCRIPT = re.compile(r"[0-9a-f]{0,64}")
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9:._-]{0,254}")

_SATELLITE_STATES = {
    jobs_pb2.SATELLITE_STATE_PENDING: SatelliteState.PENDING,
    jobs_pb2.SATELLITE_STATE_WARMING: SatelliteState.WARMING,
    jobs_pb2.SATELLITE_STATE_TRAINING: SatelliteState.TRAINING,
    jobs_pb2.SATELLITE_STATE_LEAVING: SatelliteState.LEAVING,
}
_FAILURE_REASONS = {
    jobs_pb2.GrantFailed.REASON_NOT_STARTED: FailureReason.NOT_STARTED,
    jobs_pb2.GrantFailed.REASON_REFUSED: FailureReason.REFUSED,
    jobs_pb2.GrantFailed.REASON_LOST: FailureReason.LOST,
    jobs_pb2.GrantFailed.REASON_PREEMPTED: FailureReason.PREEMPTED,
    jobs_pb2.GrantFailed.REASON_WORKERS_FAILED: FailureReason.WORKERS_FAILED,
    jobs_pb2.GrantFailed.REASON_SLOW_GPU: FailureReason.SLOW_GPU,
}
_RESULTS = {
    jobs_pb2.CommandDone.OUTCOME_DONE: Result.DONE,
    jobs_pb2.CommandDone.OUTCOME_FAILED: Result.FAILED,
    jobs_pb2.CommandDone.OUTCOME_BUSY: Result.BUSY,
}


class Malformed(ValueError):
    """A message that cannot be true or is out of bounds; the text says which field, its value, and what is
    allowed."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """A leader's first message on its job. Nothing of it is proven yet."""

    key: JobKey
    workers: Range
    shape: Resources
    base_nodes: tuple[str, ...]
    release: str = ""
    """The leader's release; "": the leader is too old to report it."""
    fence: Fence = UNFENCED
    unit: int = 1
    """The number of workers that come and go together."""
    reserves: int = 0
    """The CPU cores that the job would reserve for its own Aggregators; 0: one for each node."""
    script: str = ""
    """A digest of the job's command and script; "": not known."""


def introduction(hello: jobs_pb2.Hello) -> Introduction:
    """The part of the first message that holds for the whole stream. Raises Malformed."""
    if not hello.job_id:
        raise Malformed("job_id is 0: a leader names the job that it leads")
    if not 1 <= hello.workers.min <= hello.workers.max <= MAX_WORKERS:
        said = f"{hello.workers.min}-{hello.workers.max}"
        raise Malformed(f"workers {said}: 1 <= MIN <= MAX <= {MAX_WORKERS} is allowed")
    shape = _worker(hello)
    if not shape.cpus:
        raise Malformed("shape.cpus is 0: a worker takes at least one CPU")
    if not 1 <= len(hello.base_nodes) <= MAX_NODES:
        raise Malformed(f"{len(hello.base_nodes)} base_nodes: 1 to {MAX_NODES} are allowed")
    return Introduction(
        key=JobKey(hello.job_id, hello.restart_count),
        workers=Range(hello.workers.min, hello.workers.max),
        shape=shape,
        base_nodes=tuple(matching("base_nodes", name, _NAME) for name in hello.base_nodes),
        release=one_line(hello.flexo_version, LONGEST_RELEASE),
        fence=Fence(matching("run", hello.run, _RUN), hello.term),
        unit=_unit(hello),
        reserves=at_most("reserves", hello.reserves, MAX_NODES),
        script=matching("script", hello.script, _SCRIPT),
    )


def _unit(hello: jobs_pb2.Hello) -> int:
    unit = hello.unit or 1
    if hello.workers.min % unit or hello.workers.max % unit:
        said = f"{hello.workers.min}-{hello.workers.max}"
        raise Malformed(f"unit {unit} of workers {said}: both are multiples of the unit")
    return int(unit)


def _worker(hello: jobs_pb2.Hello) -> Resources:
    if hello.HasField("worker"):
        return _resources("worker", hello.worker)
    said = hello.shape
    older = jobs_pb2.Resources(
        gpus=said.gpus, cpus=said.cpus, memory_mib=said.memory_mib, gpu_type=said.gpu_type
    )
    return _resources("shape", older)


def _resources(name: str, said: jobs_pb2.Resources) -> Resources:
    at_most(f"{name}.gpus", said.gpus, MAX_GPUS)
    at_most(f"{name}.gpu_parts", said.gpu_parts, _MAX_PARTS)
    at_most(f"{name}.cpus", said.cpus, MAX_CPUS)
    at_most(f"{name}.memory_mib", said.memory_mib, MAX_MEMORY_MIB)
    matching(f"{name}.gpu_type", said.gpu_type, _GPU_TYPE)
    if len(said.devices) > _MAX_DEVICES:
        raise Malformed(f"{len(said.devices)} kinds of {name}.devices: at most {_MAX_DEVICES} are allowed")
    for each in said.devices:
        matching(f"{name}.devices.name", each.name, _NAME)
        matching(f"{name}.devices.type", each.type, _GPU_TYPE)
        at_most(f"{name}.devices.count", each.count, MAX_GPUS)
        at_most(f"{name}.devices.parts", each.parts, _MAX_PARTS)
    try:
        return of_message(said)
    except BadAmount as error:
        raise Malformed(f"{name}: {error}") from error


def leader_report(
    job: Introduction, owner: Principal, report: jobs_pb2.Report, known_nodes: frozenset[str]
) -> LeaderReport:
    """A report of the leader of `job`, which `owner` has been proven to own. Raises Malformed."""
    most = min(MAX_NODES, 2 * job.workers.max, 2 * len(known_nodes))  # per node one leaves, one comes
    aggregation = _aggregation(job, report)
    most += 2 * max(aggregation.satellites, aggregation.most_satellites) if aggregation else 0
    if len(report.satellites) > most:
        raise Malformed(
            f"{len(report.satellites)} satellites: at most {most} are allowed to a job of {job.workers}"
            f" workers on {len(known_nodes)} nodes"
        )
    satellites = tuple(_satellite(satellite, job, known_nodes) for satellite in report.satellites)
    _refuse_twice("grant_id", [satellite.grant_id for satellite in satellites])
    submitted = [satellite.satellite_job_id for satellite in satellites if satellite.satellite_job_id]
    _refuse_twice("slurm_job_id", submitted)
    return LeaderReport(
        key=job.key,
        owner=owner,
        workers=job.workers,
        shape=job.shape,
        base_nodes=job.base_nodes,
        training_workers=at_most("workers", report.workers, MAX_WORKERS),
        generation=report.generation,
        batches_committed=at_most("batches_committed", report.batches_committed, MAX_COUNT),
        scalable=report.scalable,
        satellites=satellites,
        changing=report.changing,
        pending_command=one_line(report.pending_command),
        unscalable_why=one_line(report.unscalable_why),
        progress=_part("progress", report.progress),
        unit=job.unit,
        gpu_uses=_gpu_uses(report.gpu_uses, known_nodes),
        paused=report.paused,
        aggregation=aggregation,
        resizes=at_most("resizes", report.resizes, MAX_COUNT),
        paused_s=amount("paused_s", report.paused_s),
        script=job.script,
        tried=_tried(report),
    )


def _tried(report: jobs_pb2.Report) -> TriedBatches | None:
    if not report.HasField("tried"):
        return None
    said = report.tried
    if len(said.times) > _MAX_BATCH_TIMES:
        raise Malformed(f"{len(said.times)} tried.times: at most {_MAX_BATCH_TIMES} are allowed")
    times = tuple(
        BatchTime(
            samples=from_one("tried.times.samples", each.samples, _MAX_SAMPLES),
            step_s=_measured("tried.times.step_s", each.step_s),
            steps=at_most("tried.times.steps", each.steps, _MAX_SAMPLES),
        )
        for each in said.times
    )
    if any(not each.step_s for each in times):
        raise Malformed("tried.times.step_s is 0: a number above 0 is allowed")
    samples = [each.samples for each in times]
    if samples != sorted(set(samples)):
        raise Malformed(f"tried.times.samples {samples[:10]}: numbers that ascend are allowed")
    return TriedBatches(
        weights=at_most("tried.weights", said.weights, MAX_GRADIENTS),
        largest=at_most("tried.largest", said.largest, _MAX_SAMPLES),
        times=times,
        worker_s=amount("tried.worker_s", said.worker_s),
    )


def _gpu_uses(uses: Collection[jobs_pb2.GpuUse], known_nodes: frozenset[str]) -> tuple[GpuUse, ...]:
    if len(uses) > MAX_GPUS:
        raise Malformed(f"{len(uses)} gpu_uses: at most {MAX_GPUS} are allowed")
    for use in uses:
        if use.node not in known_nodes:
            said = one_line(use.node, 64)
            raise Malformed(f"the cluster has no node '{said}', where a GPU is said to be used")
    return tuple(
        GpuUse(
            node=use.node,
            gpu=at_most("gpu_uses.gpu", use.gpu, MAX_GPUS),
            utilization=_part("gpu_uses.utilization", use.utilization),
            memory_mib=at_most("gpu_uses.memory_mib", use.memory_mib, MAX_MEMORY_MIB),
            peak_mib=at_most("gpu_uses.peak_mib", use.peak_mib, MAX_MEMORY_MIB),
            slowdown=amount("gpu_uses.slowdown", use.slowdown),
            opportunistic_share=_part("gpu_uses.opportunistic_share", use.opportunistic_share),
            steady=use.steady,
        )
        for use in uses
    )


def _aggregation(job: Introduction, report: jobs_pb2.Report) -> AggregationUse | None:
    if not report.HasField("aggregation"):
        return None
    said = report.aggregation
    if len(said.used) > _MAX_AGGREGATORS:
        raise Malformed(f"{len(said.used)} aggregation.used: at most {_MAX_AGGREGATORS} are allowed")
    used = tuple(
        UsedAggregator(
            f"{host_in('aggregation.used.host', each.host)}:{port_in('aggregation.used.port', each.port)}",
            from_one("aggregation.used.share", each.share, _MAX_SHARE),
        )
        for each in said.used
    )
    if len({each.name for each in used}) != len(used):
        raise Malformed("aggregation.used names an Aggregator twice")
    nodes = at_most("aggregation.nodes", said.nodes, MAX_NODES)
    return AggregationUse(
        wants_pool=said.wants_pool,
        size=at_most("aggregation.bytes", said.bytes, MAX_GRADIENTS),
        iteration_s=amount("aggregation.iteration_s", said.iteration_s),
        nodes=nodes,
        version=at_most("aggregation.version", said.version, _MAX_VERSION),
        iterations=at_most("aggregation.iterations", said.iterations, MAX_COUNT),
        reserves=job.reserves or max(1, nodes),
        used=used,
        satellites=at_most("aggregation.satellites", said.satellites, job.workers.max),
        auto=said.auto,
        most_satellites=at_most("aggregation.most_satellites", said.most_satellites, job.workers.max),
        busy=amount("aggregation.busy", said.busy),
    )


def grant_failure(key: JobKey, failed: jobs_pb2.GrantFailed) -> GrantFailure:
    """A grant that a leader gives back. Raises Malformed."""
    reason = _FAILURE_REASONS.get(failed.reason)
    if reason is None:
        raise Malformed(
            f"grant_failed.reason {failed.reason} is none of {_names(jobs_pb2.GrantFailed.Reason)}"
        )
    grant_id = matching("grant_failed.grant_id", failed.grant_id, _GRANT_ID)
    return GrantFailure(key, grant_id, reason, one_line(failed.message))


def slow_gpu(key: JobKey, slow: jobs_pb2.SlowGpu, known_nodes: frozenset[str]) -> SlowGpuReport:
    """A GPU that a leader has found slow. Raises Malformed."""
    if slow.node not in known_nodes:
        raise Malformed(
            f"the cluster has no node '{one_line(slow.node, 64)}', where a GPU is said to be slow"
        )
    if len(slow.gpus) > MAX_GPUS:
        raise Malformed(f"{len(slow.gpus)} slow GPUs of one worker: at most {MAX_GPUS} are allowed")
    gpus = tuple(sorted({at_most("slow_gpu.gpus", gpu, MAX_GPUS) for gpu in slow.gpus}))
    return SlowGpuReport(key, slow.node, gpus, amount("slow_gpu.ratio", slow.ratio))


def failed_workers(key: JobKey, failed: jobs_pb2.WorkersFailed, known_nodes: frozenset[str]) -> FailedWorkers:
    """Workers that failed and were started again. Raises Malformed."""
    if failed.node not in known_nodes:
        raise Malformed(f"the cluster has no node '{one_line(failed.node, 64)}', where workers failed")
    workers = at_most("workers_failed.workers", failed.workers, MAX_WORKERS)
    lately = min(failed.lately, MAX_WORKERS)
    return FailedWorkers(key, failed.node, workers, one_line(failed.how, 64), failed.trained, lately)


def progress(said: jobs_pb2.CommandProgress, now: float) -> Progress:
    """A leader's message about a command under way. Raises Malformed."""
    return Progress(one_line(said.text), scaling_points(said.points, now))


def outcome(said: jobs_pb2.CommandDone, now: float) -> CommandOutcome:
    """A leader's last message about a command. Raises Malformed."""
    result = _RESULTS.get(said.outcome)
    if result is None:
        raise Malformed(
            f"command_done.outcome {said.outcome} is none of {_names(jobs_pb2.CommandDone.Outcome)}"
        )
    return CommandOutcome(result, one_line(said.text), scaling_points(said.points, now))


def scaling_points(points: Collection[jobs_pb2.ProfilePoint], now: float) -> tuple[ScalingPoint, ...]:
    """The measurements of a leader. Raises Malformed."""
    if len(points) > MAX_POINTS:
        raise Malformed(f"{len(points)} points of a profile: at most {MAX_POINTS} are allowed")
    if len({point.workers for point in points}) != len(points):
        raise Malformed("two points of a profile are of the same number of workers")
    return tuple(
        ScalingPoint(
            workers=at_most("points.workers", point.workers, MAX_WORKERS),
            samples_per_s=_measured("points.samples_per_s", point.samples_per_s),
            step_s=_measured("points.step_s", point.step_s),
            sync_s=amount("points.sync_s", point.sync_s),
            efficiency=amount("points.efficiency", point.efficiency),
            batches=point.batches,
            measured_at=now,
        )
        for point in points
    )


def to_leader(told: Orders | Command | AggregatorOffers) -> jobs_pb2.ToLeader:
    """Orders, a command or Aggregators, as a message to a leader."""
    if isinstance(told, AggregatorOffers):
        return _aggregators(told)
    return _orders(told) if isinstance(told, Orders) else _command(told)


def _aggregators(told: AggregatorOffers) -> jobs_pb2.ToLeader:
    assigned = [
        jobs_pb2.AssignedAggregator(host=each.host, port=each.port, token=each.token, share=each.share)
        for each in told.offers
    ]
    return jobs_pb2.ToLeader(aggregators=jobs_pb2.Aggregators(version=told.version, aggregators=assigned))


def _command(command: Command) -> jobs_pb2.ToLeader:
    order = command.order
    message = jobs_pb2.Command(id=command.command_id)
    if isinstance(order, ProfileOrder):
        message.profile.workers.min, message.profile.workers.max = order.workers.min, order.workers.max
        message.profile.batches = order.batches
    elif isinstance(order, CheckpointOrder):
        message.checkpoint.path = order.path
    else:
        message.cancel.SetInParent()
    return jobs_pb2.ToLeader(command=message)


def _orders(orders: Orders) -> jobs_pb2.ToLeader:
    return jobs_pb2.ToLeader(
        grants=jobs_pb2.Grants(
            grants=[
                jobs_pb2.Grant(
                    grant_id=offer.grant_id,
                    node=offer.node,
                    workers=offer.workers,
                    partition=offer.partition,
                    time_limit_s=offer.time_limit_s,
                    start_within_s=offer.start_within_s,
                    qos=offer.qos,
                    signature=offer.signature,
                    shared_gpus=[
                        jobs_pb2.Devices(name=each.name, type=each.type, count=1)
                        for each in offer.shared_gpus
                    ],
                )
                for offer in orders.grants
            ],
            batch=orders.batch,
            speeds=[jobs_pb2.NodeSpeed(node=each.node, speed=each.speed) for each in orders.speeds],
        )
    )


def _satellite(
    satellite: jobs_pb2.Satellite, job: Introduction, known_nodes: frozenset[str]
) -> SatelliteReport:
    state = _SATELLITE_STATES.get(satellite.state)
    if state is None:
        raise Malformed(f"satellite state {satellite.state} is none of {_names(jobs_pb2.SatelliteState)}")
    if satellite.node not in known_nodes:
        raise Malformed(
            f"the cluster has no node '{one_line(satellite.node, 64)}', where a satellite is said to be"
        )
    at_most("satellites.workers", satellite.workers, job.workers.max)
    if len(satellite.signature) > LONGEST_SIGNATURE:
        raise Malformed(
            f"a signature of {len(satellite.signature)} bytes: at most {LONGEST_SIGNATURE} are allowed"
        )
    return SatelliteReport(
        satellite_job_id=satellite.slurm_job_id,
        grant_id=matching("grant_id", satellite.grant_id, _GRANT_ID),
        node=satellite.node,
        workers=satellite.workers,
        state=state,
        signature=satellite.signature,
    )


def at_most(what: str, value: int, limit: int) -> int:
    """The value. Raises Malformed if it is above the limit."""
    if value > limit:
        raise Malformed(f"{what} is {value}: at most {limit} is allowed")
    return value


def from_one(what: str, value: int, limit: int) -> int:
    """The value. Raises Malformed unless it is from 1 to the limit."""
    if not 1 <= value <= limit:
        raise Malformed(f"{what} is {value}: 1 to {limit} is allowed")
    return value


def host_in(what: str, text: str) -> str:
    """A host's name or address. Raises Malformed."""
    return matching(what, text, _HOST)


def port_in(what: str, value: int) -> int:
    """A port. Raises Malformed."""
    return from_one(what, value, 65_535)


def _measured(what: str, value: float) -> float:
    """The value. Raises Malformed unless it is 0 or something that can be measured: policies divide by it."""
    if value and not _LEAST_MEASURED <= value <= _MOST_MEASURED:
        raise Malformed(f"{what} is {value}: 0, or {_LEAST_MEASURED:g} to {_MOST_MEASURED:g} is allowed")
    return value


def amount(what: str, value: float) -> float:
    """The value. Raises Malformed unless it is a finite number from 0."""
    if not 0 <= value < math.inf:  # also refuses what is not a number
        raise Malformed(f"{what} is {value}: a number from 0 is allowed")
    return value


def _part(what: str, value: float) -> float:
    if not 0 <= value <= 1:  # also refuses what is not a number
        raise Malformed(f"{what} is {value}: a number from 0 to 1 is allowed")
    return value


def matching(what: str, text: str, allowed: re.Pattern[str]) -> str:
    """The text. Raises Malformed if it does not match."""
    if allowed.fullmatch(text) is None:
        raise Malformed(f"{what} '{one_line(text, 64)}' does not match {allowed.pattern}")
    return text


def _refuse_twice(what: str, values: list[str] | list[int]) -> None:
    if len(set(values)) != len(values):
        raise Malformed(f"two satellites have the same {what}")


def _names(enum: object) -> str:
    keys: list[str] = enum.keys()[1:]  # type: ignore[attr-defined]  # EnumTypeWrapper; the first is UNSPECIFIED
    return ", ".join(keys)
