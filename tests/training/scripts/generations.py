"""The generation that a script's worker is in, for scripts that write it down for the tests that read it."""

import sys


def world():
    """The generation; 0 for practice and steps without effect."""
    session = sys.modules.get("horovod_elastic.worker.session")
    loop = sys.modules.get("horovod_elastic.worker.ddp.training_loop")
    return session.current().generation if session and not loop.current().is_muted else 0
