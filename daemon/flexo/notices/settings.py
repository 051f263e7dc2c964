"""[notices] of flexod's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from flexo.sections import AbsolutePath, Allowed, Section, absolute, as_tuple, host_and_port
from flexo_protos.http_exchange import SAFE_ADDRESS

Kind = Literal["grow", "shrink", "lost", "end"]
_MAILBOX = r"[A-Za-z0-9_.+=-]+@[A-Za-z0-9.-]+"
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class NoticesSettings(Section):
    """[notices]: which events flexod tells others about, and how. A dry run tells nobody."""

    kinds: Annotated[
        tuple[Kind, ...],
        BeforeValidator(as_tuple),
        Allowed('a list of "grow", "shrink", "lost" and "end"'),
    ] = ("grow", "shrink", "lost", "end")
    """The kinds of events."""
    webhook: Annotated[
        str,
        Field(pattern=f"^({SAFE_ADDRESS})?$"),
        Allowed('an address with https, as in "https://chat.example.org/hook/x"; on this host also http'),
    ] = ""
    """Where flexod posts events as JSON; empty: nowhere."""
    webhook_every_s: Annotated[float, Field(ge=0.1, le=86400), Allowed("seconds, from 0.1 to 86400")] = 5.0
    """The least time between two posts. Events that come meanwhile go together."""
    mail_server: Annotated[str, Allowed('"host:port" of a mail server, as in "mail.example.org:587"')] = ""
    """The server that takes flexod's mails; empty: no mails."""
    mail_tls: Annotated[
        Literal["starttls", "tls", "none"],
        Allowed('"starttls", "tls" from the beginning, or, with a mail_server on this host, "none"'),
    ] = "starttls"
    """How the connection to it is encrypted."""
    mail_from: Annotated[
        str, Field(pattern=rf"^({_MAILBOX})?$"), Allowed('one address, as in "flexod@example.org"')
    ] = ""
    """The sender."""
    mail_to: Annotated[
        tuple[Annotated[str, Field(pattern=rf"^{_MAILBOX}$")], ...],
        BeforeValidator(as_tuple),
        Allowed('a list of addresses, as in ["gpus@example.org"], beside mail_server and mail_from'),
    ] = ()
    """The receivers."""
    mail_every_s: Annotated[float, Field(ge=0.1, le=86400), Allowed("seconds, from 0.1 to 86400")] = 300.0
    """The least time between two mails. Events that come meanwhile go together."""
    authorities: Annotated[AbsolutePath | None, Allowed("the absolute path of a file with certificates")] = (
        None
    )
    """The authorities that sign the certificates of both servers; unset: those of the system."""

    @field_validator("mail_server")
    @classmethod
    def _check_server(cls, value: str) -> str:
        return host_and_port(value) if value else value

    @field_validator("mail_tls")
    @classmethod
    def _check_tls(cls, value: str, info: ValidationInfo) -> str:
        host = info.data.get("mail_server", "").rpartition(":")[0]
        if value == "none" and host not in _LOCAL_HOSTS:
            raise ValueError("a mail would cross the network unencrypted")
        return value

    @field_validator("mail_to")
    @classmethod
    def _check_mail(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("mail_server") and not (value and info.data.get("mail_from")):
            raise ValueError("a mail needs a sender and receivers")
        return value

    @field_validator("authorities")
    @classmethod
    def _check_authorities(cls, value: Path | None) -> Path | None:
        return absolute(value)
