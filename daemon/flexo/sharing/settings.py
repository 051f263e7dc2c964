"""[sharing] of flexod's configuration file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexo.sections import PARTITION, Allowed, Section


class SharingSettings(Section):
    """[sharing]: which jobs let workers of opportunistic jobs use their GPUs, and how Slurm grants these."""

    partition: Annotated[
        str,
        Field(pattern=rf"{PARTITION}|^$"),
        Allowed('the name of one partition, as in "shared", or "": no GPUs are shared'),
    ] = ""
    """The partition that satellites of opportunistic jobs are submitted to; empty: no GPUs are shared."""
    across_accounts: Annotated[bool, Allowed("true or false")] = False
    """Whether jobs of different accounts share a GPU. Otherwise both are of one account."""
    wait_s: Annotated[float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400")] = 60.0
    """How long an opportunistic job with `auto` tries idle GPUs before it takes those of other jobs. An
    opportunistic job below its minimum gives its satellites back after the same time."""

    @property
    def enabled(self) -> bool:
        """Whether GPUs are shared."""
        return bool(self.partition)
