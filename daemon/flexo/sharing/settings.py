"""The section [sharing] of flexod's configuration: the second jobs on GPUs that other jobs hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from flexo.sections import Allowed, Section, as_tuple


class SharingSettings(Section):
    """[sharing]: opportunistic jobs on GPUs that other jobs hold. It is off without `partition`."""

    partition: Annotated[str, Allowed('the name of a partition, as in "shared"')] = ""
    """The partition of satellites on shared GPUs; "": no GPU is shared."""
    accounts: Annotated[
        tuple[str, ...], BeforeValidator(as_tuple), Allowed('a list of accounts, as in ["physics"]')
    ] = ()
    """Accounts whose jobs all share their GPUs. Other jobs say `--elastic-cohost`."""
    across_accounts: Annotated[bool, Allowed("true or false")] = False
    """Whether a job may use the GPUs of another account's job."""
    wait_s: Annotated[float, Field(ge=0, le=86400), Allowed("seconds, from 0 to 86400")] = 60.0
    """How long an opportunistic job with `auto` is first tried with GPUs of its own. After this time without
    its minimum, a job of either kind also gives back the satellites that it has."""
