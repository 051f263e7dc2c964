"""[loaning] of flexod's configuration file."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from flexo.sections import PARTITION, Allowed, Section, as_tuple


class LoaningSettings(Section):
    """[loaning]: when servers of the inference cluster are lent to training, and how they come back."""

    enabled: Annotated[bool, Allowed("true or false")] = False
    """Lend servers at all."""
    inference_partition: Annotated[
        str, Field(pattern=PARTITION), Allowed('the name of one partition, as in "infer"')
    ] = "infer"
    """The inference cluster's partition: its nodes are the servers that may be lent."""
    partition: Annotated[
        str, Field(pattern=PARTITION), Allowed('the name of one partition, as in "borrowed"')
    ] = "borrowed"
    """The partition that servers are put into while on loan: bases of fungible jobs are submitted there."""
    satellite_partition: Annotated[
        str, Field(pattern=rf"{PARTITION}|^$"), Allowed('the name of one partition, or "": that of bases')
    ] = ""
    """Where satellites on servers on loan are submitted; empty: to `partition`."""
    static: Annotated[bool, Allowed("true or false")] = False
    """The partition holds all inference servers and is never edited: grants alone decide who uses them."""
    edit_command: Annotated[
        tuple[str, ...],
        BeforeValidator(as_tuple),
        Allowed('a list of words, as in ["sudo", "-n", "-u", "slurm", "/usr/sbin/flexo-partition"]'),
    ] = ()
    """Words of the command that edits the partition; empty: `scontrol`, which takes SlurmUser or root."""
    edit_interval_s: Annotated[float, Field(ge=1, le=3600), Allowed("seconds, from 1 to 3600")] = 60.0
    """Between two edits, at least."""
    interval_s: Annotated[float, Field(ge=1, le=3600), Allowed("seconds, from 1 to 3600")] = 60.0
    """Between two decisions."""
    headroom_servers: Annotated[float, Field(ge=0, le=100_000), Allowed("servers, from 0 to 100000")] = 1.0
    """Servers kept idle beyond what inference needs; also parts of one."""
    headroom_share: Annotated[float, Field(ge=0, le=10), Allowed("a share, from 0 to 10, as in 0.1")] = 0.0
    """The same, as a part of what it needs. Both are added."""
    hysteresis_servers: Annotated[float, Field(ge=0, le=1000), Allowed("servers, from 0 to 1000")] = 0.5
    """So much more has to be spare before a server is lent."""
    most_servers: Annotated[
        int | None, Field(ge=0, le=100_000), Allowed("whole servers, from 0 to 100000")
    ] = None
    """Servers on loan at once; unset: no limit."""
    most_per_interval: Annotated[int, Field(ge=1, le=100_000), Allowed("whole servers, from 1 to 100000")] = 4
    """Servers lent in one interval. Calling back has no limit."""
    rest_s: Annotated[float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400")] = 300.0
    """After a call back nothing is lent for so long."""
    reclaim_s: Annotated[float, Field(ge=30, le=86400), Allowed("seconds, from 30 to 86400")] = 180.0
    """How long servers have to become empty when demand calls them back."""
    preempt_within_s: Annotated[
        float, Field(ge=1, le=86400), Allowed("seconds, from 1 to 86400, at most reclaim_s")
    ] = 60.0
    """So long before the deadline bases are preempted. A base needs Slurm's KillWait (30 s by default) and
    its epilog to end: longer than both."""
    save_within_s: Annotated[
        float, Field(ge=0, le=86400), Allowed("seconds, from 0; with preempt_within_s at most reclaim_s")
    ] = 60.0
    """So long before that bases are asked for a checkpoint. Counts only where `checkpoint` is set."""
    force_within_s: Annotated[
        float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400, at most preempt_within_s")
    ] = 15.0
    """So long before the deadline satellites are cancelled that have not left."""
    checkpoint: Annotated[
        str, Allowed('an absolute path with %j in it, and maybe %u, as in "/scratch/%u/flexo-%j.pt"; or ""')
    ] = ""
    """Where bases write a checkpoint before they are preempted, with `%j` for the job's id and `%u` for its
    user; empty: nowhere."""
    source: Annotated[
        Literal["partition", "prometheus", "push"], Allowed('"partition", "prometheus" or "push"')
    ] = "partition"
    """The source of the inference cluster's demand."""
    inference_users: Annotated[
        tuple[str, ...], BeforeValidator(as_tuple), Allowed('a list of user names, as in ["triton"]')
    ] = ()
    """Users that may push demand, besides administrators."""
    stale_s: Annotated[float, Field(ge=1, le=86400), Allowed("seconds, from 1 to 86400")] = 120.0
    """How old what the source says may be."""
    prometheus_url: Annotated[
        str,
        Field(pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$"),
        Allowed('the address of a Prometheus server without a password, as in "http://metrics:9090"'),
    ] = ""
    """The Prometheus server that is asked."""
    prometheus_query: Annotated[
        str, Allowed('PromQL with one value, as in "sum(servers_busy)", and prometheus_url beside it')
    ] = ""
    """The query."""
    servers_per_unit: Annotated[
        float, Field(gt=0, le=100_000), Allowed("a number above 0, at most 100000, as in 0.125")
    ] = 1.0
    """Servers for each 1 that the query gives: 0.125 where it counts GPUs, eight to a server."""
    every_s: Annotated[float, Field(ge=1, le=3600), Allowed("seconds, from 1 to 3600")] = 15.0
    """Between two questions to Prometheus."""
    forecast: Annotated[Literal["seasonal", "lstm", "none"], Allowed('"seasonal", "lstm" or "none"')] = (
        "seasonal"
    )
    """How demand is forecast: by season, by a neural network (`lstm`, needs PyTorch), or not at all."""

    @field_validator("preempt_within_s")
    @classmethod
    def _check_preempt(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("reclaim_s", value):
            raise ValueError("above reclaim_s")
        return value

    @field_validator("save_within_s")
    @classmethod
    def _check_save(cls, value: float, info: ValidationInfo) -> float:
        if value + info.data.get("preempt_within_s", 0.0) > info.data.get("reclaim_s", math.inf):
            raise ValueError("too early")
        return value

    @field_validator("force_within_s")
    @classmethod
    def _check_force(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("preempt_within_s", value):
            raise ValueError("above preempt_within_s")
        return value

    @field_validator("checkpoint")
    @classmethod
    def _check_checkpoint(cls, value: str) -> str:
        others = value.replace("%j", "").replace("%u", "")
        if value and (not value.startswith("/") or "%j" not in value or "%" in others):
            raise ValueError("not such a path")
        return value

    @field_validator("prometheus_query")
    @classmethod
    def _check_query(cls, value: str, info: ValidationInfo) -> str:
        asked = info.data.get("source") == "prometheus"
        if asked and not (value and info.data.get("prometheus_url", "-")):
            raise ValueError("nothing to ask")
        return value
