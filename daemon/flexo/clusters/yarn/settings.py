"""[yarn] of flexod's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from flexo.sections import PARTITION, AbsolutePath, Allowed, KindSection, absolute


class YarnSettings(KindSection):
    """[yarn]: the cluster that flexod looks after."""

    conf: Annotated[AbsolutePath | None, Allowed("the absolute path of Hadoop's configuration")] = None
    """The folder with core-site.xml and yarn-site.xml; unset: $HADOOP_CONF_DIR, else /etc/hadoop/conf."""
    user: Annotated[str, Allowed("the name of a user")] = ""
    """As whom flexod calls the ResourceManager, where there is no Kerberos; empty: its own account. The user
    needs the right to administer the flex queue."""
    keytab: Annotated[AbsolutePath | None, Allowed("the absolute path of a keytab")] = None
    """Where there is Kerberos: the keytab of `principal`. Unset: the ticket cache of flexod's account, which
    somebody else must keep fresh."""
    principal: Annotated[
        str | None, Allowed('a principal such as "flexo@EXAMPLE.COM", together with keytab')
    ] = None
    """As whom flexod calls the ResourceManager, where there is Kerberos: it needs the right of `user`."""
    flex_queue: Annotated[
        str, Field(pattern=PARTITION), Allowed('the name of one queue below root, as in "flex"')
    ] = "flex"
    """The preemptible queue of satellites."""
    timeout_s: Annotated[float, Field(ge=1, le=600), Allowed("seconds, from 1 to 600")] = 10.0
    """How long one question to the ResourceManager may take."""

    @field_validator("conf", "keytab")
    @classmethod
    def _check_path(cls, value: Path | None) -> Path | None:
        return absolute(value)

    @field_validator("principal")
    @classmethod
    def _check_both(cls, value: str | None, info: ValidationInfo) -> str | None:
        if bool(value) != (info.data.get("keytab") is not None):
            raise ValueError("keytab and principal go together")
        return value
