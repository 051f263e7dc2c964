"""[aggregation] of flexod's configuration file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from flexo.sections import Allowed, Section, as_tuple


class AggregationSettings(Section):
    """[aggregation]: pool Aggregators, which sum the gradients of several jobs, and the limits of sharing."""

    enabled: Annotated[bool, Allowed("true or false")] = False
    """Whether flexod accepts pool Aggregators and assigns jobs to them. Otherwise each job has its own."""
    pool_users: Annotated[
        tuple[str, ...], BeforeValidator(as_tuple), Allowed('a list of user names, as in ["flexo"]')
    ] = ()
    """Users whose processes may be pool Aggregators, besides root and the account that flexod runs as. Such a
    process sees the gradients of all its jobs."""
    share: Annotated[Literal["user", "account", "all"], Allowed('"user", "account" or "all"')] = "user"
    """Whose jobs may share an Aggregator: those of one user, of one account, or all. Without accounting,
    users stand for accounts."""
    loss_limit: Annotated[
        float, Field(gt=0, le=0.5), Allowed("a part of a job's speed above 0, at most 0.5, as in 0.1")
    ] = 0.1
    """A job must lose less than this part of its speed by sharing. If it loses more, flexod undoes the last
    change."""
    period_s: Annotated[float, Field(ge=1, le=86400), Allowed("seconds, from 1 to 86400")] = 60.0
    """The time between two attempts to serve the same jobs with fewer Aggregators."""
    undo_iterations: Annotated[int, Field(ge=10, le=100_000), Allowed("iterations, from 10 to 100000")] = 100
    """flexod moves a job at most once in so many of its iterations, and undoes a change within so many."""
    rest_s: Annotated[float, Field(ge=0, le=604800), Allowed("seconds, from 0 to 604800")] = 1800.0
    """How long a job that was sent back to its own Aggregators is not assigned again."""
    drain_after_s: Annotated[float, Field(ge=0, le=604800), Allowed("seconds, from 0 to 604800")] = 0.0
    """flexod ends a pool Aggregator that no job has needed for so long; 0: never."""
    memory_mib: Annotated[int, Field(ge=1, le=1 << 24), Allowed("MiB, a whole number from 1 to 16777216")] = (
        1 << 20
    )
    """The most memory for buffers on one Aggregator, if the Aggregator itself does not offer less."""
    network_share: Annotated[float, Field(gt=0, le=1), Allowed("a part above 0, at most 1, as in 0.8")] = 0.8
    """The most of an Aggregator's bandwidth that its jobs may use."""
    quota_mib: Annotated[int, Field(ge=1, le=1 << 20), Allowed("MiB, a whole number from 1 to 1048576")] = (
        4096
    )
    """The most gradients of one iteration that a job may have summed by one pool Aggregator. Half precision
    counts as single precision. A larger job keeps its own Aggregators."""
