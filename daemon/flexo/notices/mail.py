"""Sends notices by mail, through the site's mail server."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate

import structlog

from flexo.notices.notice import Notice, Undelivered
from flexo.notices.settings import NoticesSettings

_log = structlog.get_logger("flexo.notices")

WITHIN_S = 10.0
"""The time in which the server has to answer each command."""


def send(settings: NoticesSettings, notice: Notice) -> None:
    """Send a notice as one mail to all receivers. Raises Undelivered if nobody gets it.

    Receivers that the server refuses are named in the log: sending again would reach the others again.
    """
    host, _, port = settings.mail_server.rpartition(":")
    try:
        with _connected(settings, host.strip("[]"), int(port)) as server:
            refused = server.send_message(_message(settings, notice))
    except (OSError, ValueError, smtplib.SMTPException) as error:
        why = str(error) or type(error).__name__
        raise Undelivered(f"the mail server {settings.mail_server} did not take a notice: {why}") from error
    if refused:
        _log.warning(
            "the mail server refuses receivers", server=settings.mail_server, refused=sorted(refused)
        )


def _connected(settings: NoticesSettings, host: str, port: int) -> smtplib.SMTP:
    authorities = str(settings.authorities) if settings.authorities else None
    if settings.mail_tls == "none":
        return smtplib.SMTP(host, port, timeout=WITHIN_S)
    context = ssl.create_default_context(cafile=authorities)
    if settings.mail_tls == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=WITHIN_S, context=context)
    server = smtplib.SMTP(host, port, timeout=WITHIN_S)
    try:
        server.starttls(context=context)  # it raises where the server has no TLS
    except BaseException:
        server.close()
        raise
    return server


def _message(settings: NoticesSettings, notice: Notice) -> EmailMessage:
    message = EmailMessage()
    message["From"] = settings.mail_from
    message["To"] = ", ".join(settings.mail_to)
    message["Date"] = formatdate(localtime=True)
    message["Subject"] = notice.subject
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no holiday reply, please
    message.set_content("\n".join(notice.lines()) + "\n")
    return message
