"""flexod's replies as JSON. Keys are never renamed or removed."""

from __future__ import annotations

from collections.abc import Sequence

from flexo_cli import flexods, job_words, loans
from flexo_cli.output import Json
from flexo_protos.v1 import admin_pb2


def job_as_json(job: admin_pb2.ElasticJob) -> dict[str, Json]:
    """One job of `flexo jobs`."""
    return {
        "job_id": job.job_id,
        "restart_count": job.restart_count,
        "name": job.name or None,
        "user": job.user,
        "account": job.account or None,
        "partition": job.partition or None,
        "min": job.min,
        "max": job.max,
        "workers": job.workers,
        "granted": job.granted,
        "gpus_per_worker": job_words.gpus_per_worker(job),
        "wanted": job.wanted or None,
        "attached": job.attached,
        "scalable": job.scalable,
        "suspended": job.suspended,
        "batches_committed": job.batches_committed,
        "pending_command": job.pending_command or None,
        "errand": job.pending_command or None,  # the key's name until 0.1, kept for one release
        "batch": job.batch or None,
        "progress": job.progress or None,
        "left_s": job.left_s if job.left_by else None,
        "left_by": job.left_by or None,
        "reasons": list(job.reasons),
        "scaling": [point_as_json(point) for point in job.scaling],
        "base_nodes": list(job.base_nodes),
        "grants": [_grant_as_json(grant) for grant in job.grants],
        "opportunistic": job.opportunistic,
        "paused": job.paused,
        "shared_gpus": [
            {
                "node": shared.node,
                "gpu": shared.gpu,
                "holder": shared.holder,
                "guest": shared.guest or None,
                "utilization": shared.utilization,
                "slowdown": shared.slowdown,
                "opportunistic_share": shared.opportunistic_share,
            }
            for shared in job.shared_gpus
        ],
        "aggregation": _aggregation_as_json(job.aggregation) if job.HasField("aggregation") else None,
        "started_at": job.started_at or None,
        "resizes": job.resizes,
        "paused_s": job.paused_s,
        "tried_worker_s": job.tried_worker_s,
    }


def waiting_as_json(job: admin_pb2.WaitingJob) -> dict[str, Json]:
    """One pending job of `flexo jobs`."""
    return {
        "job_id": job.job_id,
        "restart_count": job.restart_count,
        "name": job.name or None,
        "user": job.user,
        "account": job.account or None,
        "partition": job.partition or None,
        "min": job.min,
        "max": job.max,
        "reason": job.reason or None,
        "waits_for": job.waits_for or None,
        "place": job.place or None,
        "submitted_at": job.submitted_at or None,
        "starts_at": job.starts_at or None,
    }


def _grant_as_json(grant: admin_pb2.GrantView) -> dict[str, Json]:
    return {
        "grant_id": grant.grant_id,
        "node": grant.node,
        "workers": grant.workers,
        "state": grant.state,
        "slurm_job_id": grant.slurm_job_id or None,
        "since_at": grant.since_at,
        "shared_gpus": list(grant.shared_gpus),
    }


def _aggregation_as_json(use: admin_pb2.JobAggregation) -> dict[str, Json]:
    return {
        "auto": use.auto,
        "wants_pool": use.wants_pool,
        "satellites": use.satellites,
        "grants": [_grant_as_json(grant) for grant in use.grants],
        "state": use.state or None,
        "aggregators": [{"name": each.name, "share": each.share} for each in use.aggregators],
        "alone_s": use.alone_s or None,
        "now_s": use.now_s or None,
        "loss": use.loss if use.alone_s and use.now_s else None,
    }


_LISTS = ("satellite_partitions", "troubles", "needs_restart")
"""The fields of a status that are lists of texts."""


def status_as_json(
    reply: admin_pb2.GetStatusReply, beside: Sequence[flexods.OneOfThem] = ()
) -> dict[str, Json]:
    """The whole of `flexo status`. `beside`: the answers of all flexods, if there are several."""
    nested = ("slow_gpus", "lending", "availability", "pool", "privacy", *_LISTS)
    plain = {key.name: getattr(reply, key.name) for key in reply.DESCRIPTOR.fields if key.name not in nested}
    slow: list[Json] = [
        {
            "node": gpu.node,
            "gpus": list(gpu.gpus),
            "ratio": gpu.ratio,
            "job_id": gpu.job_id,
            "seen_at": gpu.seen_at,
            "until_at": gpu.until_at,
        }
        for gpu in reply.slow_gpus
    ]
    lending = loans.lending_as_json(reply.lending) if reply.HasField("lending") else None
    availability = flexods.as_json(reply.availability, beside) if reply.HasField("availability") else None
    pool = _pool_as_json(reply.pool) if reply.HasField("pool") else None
    nested_views: dict[str, Json] = {"lending": lending, "availability": availability, "pool": pool}
    lists: dict[str, Json] = {name: list(getattr(reply, name)) for name in _LISTS}
    privacy = _privacy_as_json(reply.privacy)
    return {
        **plain,
        "slow_gpus": slow,
        **nested_views,
        "privacy": privacy,
        **lists,
    }


def _privacy_as_json(view: admin_pb2.Privacy) -> dict[str, Json]:
    return {"jobs": view.jobs, "nodes": view.nodes, "restricted": view.restricted}


def _pool_as_json(view: admin_pb2.PoolView) -> dict[str, Json]:
    return {
        "aggregators": [_aggregator_as_json(each) for each in view.aggregators],
        "wanted": view.wanted,
        "jobs": view.jobs,
        "reverts": view.reverts,
    }


def _aggregator_as_json(each: admin_pb2.PoolAggregatorView) -> dict[str, Json]:
    plain = {key.name: getattr(each, key.name) for key in each.DESCRIPTOR.fields if key.name != "job_ids"}
    found = {
        "job_ids": list(each.job_ids),
        "slurm_job_id": each.slurm_job_id or None,
        "node": each.node or None,
    }
    return {**plain, **found}


def point_as_json(point: admin_pb2.ScalingPoint) -> dict[str, Json]:
    """One size of a profile."""
    return {
        "workers": point.workers,
        "samples_per_s": point.samples_per_s or None,
        "step_s": point.step_s,
        "sync_s": point.sync_s,
        "efficiency": point.efficiency,
        "batches": point.batches,
        "measured_at": point.measured_at,
    }


def end_as_json(end: admin_pb2.JobEnd) -> dict[str, Json]:
    """The end of a job, for `flexo why`."""
    return {
        "restart_count": end.restart_count,
        "state": end.state or None,
        "exit_code": end.exit_code or None,
        "started_at": end.started_at or None,
        "ended_at": end.ended_at or None,
        "known_by": end.known_by or None,
        "base_workers": end.base_workers or None,
        "most_workers": end.most_workers or None,
        "gpus_per_worker": end.gpus_per_worker or None,
        "resizes": end.resizes,
        "paused_s": end.paused_s,
        "tried_worker_s": end.tried_worker_s,
    }


def event_as_json(event: admin_pb2.Event) -> dict[str, Json]:
    """One event of `flexo events`."""
    return {
        "number": event.number or None,
        "at": event.at,
        "kind": event.kind,
        "job_id": event.job_id or None,
        "restart_count": event.restart_count if event.job_id else None,
        "text": event.text,
    }


def node_as_json(node: admin_pb2.NodeView) -> dict[str, Json]:
    """One node of `flexo top`."""
    return {
        "name": node.name,
        "gpus": job_words.gpus_of(node.capacity, node.gpus),
        "gpus_allocated": job_words.gpus_of(node.allocated, node.gpus_allocated),
        "gpu_type": node.gpu_type or None,
        "unusable": node.unusable or None,
        "partitions": list(node.partitions),
    }
