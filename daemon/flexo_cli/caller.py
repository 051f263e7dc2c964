"""The user who calls a command, and what of flexod's status such a user is shown."""

from __future__ import annotations

import os
import pwd
from typing import Final

from flexo.words import needs_restart
from flexo_protos.v1 import admin_pb2

_ROOT: Final = 0


def own_name() -> str:
    """The caller's user name; its uid if it has none, as Slurm prints it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def sees_all(privacy: admin_pb2.Privacy, uid: int, user: str) -> bool:
    """Whether a user is root, or flexod names the user as one who sees everything."""
    return uid == _ROOT or user in privacy.readers


def restart_notice(reply: admin_pb2.GetStatusReply) -> str:
    """The settings that need a restart of flexod, in a sentence. "": none do, or the caller does not see
    everything."""
    if not reply.needs_restart or not sees_all(reply.privacy, os.getuid(), own_name()):
        return ""
    return needs_restart(reply.needs_restart)
