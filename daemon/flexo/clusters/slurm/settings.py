"""[slurm] of flexod's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from flexo.sections import PARTITION, AbsolutePath, Allowed, KindSection, absolute


class SlurmSettings(KindSection):
    """[slurm]: the cluster that flexod looks after."""

    conf: Annotated[AbsolutePath | None, Allowed("the absolute path of slurm.conf")] = None
    """Which slurm.conf; unset: where Slurm's own commands find it."""
    satellite_partition: Annotated[
        str, Field(pattern=PARTITION), Allowed('the name of one partition, as in "flex"')
    ] = "flex"
    """The preemptible partition that satellites are submitted to."""
    satellite_qos: Annotated[
        str, Field(pattern=rf"{PARTITION}|^$"), Allowed('the name of one QOS, or "": that of each base')
    ] = ""
    """The QOS that satellites are submitted with, for sites that preempt by QOS or bill by it; empty: the QOS
    of their base."""
    timeout_s: Annotated[float, Field(ge=1, le=600), Allowed("seconds, from 1 to 600")] = 20.0
    """How long one question to Slurm may take."""

    @field_validator("conf")
    @classmethod
    def _check_conf(cls, value: Path | None) -> Path | None:
        return absolute(value)
