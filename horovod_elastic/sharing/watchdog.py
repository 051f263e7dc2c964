"""Says what is too old to be believed, and ends a job whose supervisor is gone.

A dead coordinator, or a guarantee job that is stopped, writes its page no longer. Every reader looks at
the page's age itself. So nothing that dies or hangs can leave a gate open.
"""

from __future__ import annotations

import os
import signal
import sys

from horovod_elastic.sharing.pages import Page, now

STALE_S = 1.0
"""A page that is older closes the gate."""
STALE_NS = int(STALE_S * 1e9)
BEAT_S = 0.2
"""Writers of pages say that they live this often."""


def is_stale(page: Page) -> bool:
    """Whether nothing that the page says may be believed."""
    return now() - page.words[1] > STALE_NS


def end_without_supervisor() -> None:
    """End this process at once: nobody would stop it any more if it reached no gate."""
    sys.stderr.write("flexo: the supervisor of this opportunistic job is gone, so the job ends\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
