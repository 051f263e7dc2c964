"""The messages between a job's leader and its ApplicationMaster, made and read."""

from __future__ import annotations

from flexo_protos.hadoop.ipc_pb2 import Token
from flexo_protos.v1 import jobs_pb2, yarn_pb2
from flexo_yarn.records import application_text, read_application
from horovod_elastic.platforms.base import GrantedWorkers
from horovod_elastic.platforms.yarn.flex_application import FlexState


def of_grant(grant: GrantedWorkers) -> jobs_pb2.Grant:
    """The message of a grant; flexod's signature is for flexod alone."""
    return jobs_pb2.Grant(
        grant_id=grant.grant_id,
        node=grant.node,
        workers=grant.workers,
        partition=grant.partition,
        time_limit_s=grant.time_limit_s,
        start_within_s=grant.start_within_s,
        qos=grant.qos,
    )


def read_grant(message: jobs_pb2.Grant) -> GrantedWorkers:
    """The inverse of `of_grant`."""
    return GrantedWorkers(
        grant_id=message.grant_id,
        node=message.node,
        workers=message.workers,
        partition=message.partition,
        time_limit_s=message.time_limit_s,
        start_within_s=message.start_within_s,
        qos=message.qos,
    )


def of_state(state: FlexState | None) -> yarn_pb2.MasterState:
    """The message of what the next attempt of the ApplicationMaster needs; None: of no application."""
    if state is None:
        return yarn_pb2.MasterState()
    flex = yarn_pb2.FlexApplication(
        application=application_text(state.application),
        token=state.token.SerializeToString(),
        ends_at=state.ends_at,
        grants=map(of_grant, state.grants),
    )
    return yarn_pb2.MasterState(flex=flex)


def read_state(message: yarn_pb2.MasterState) -> FlexState | None:
    """The inverse of `of_state`."""
    if not message.HasField("flex"):
        return None
    flex = message.flex
    return FlexState(
        read_application(flex.application),
        Token.FromString(flex.token),
        flex.ends_at,
        tuple(map(read_grant, flex.grants)),
    )
