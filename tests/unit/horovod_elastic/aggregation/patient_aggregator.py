"""An Aggregator that waits longer than usual, so that a busy machine alone ends no sums.

First argument: a seed for pauses where its threads meet, or "none".
"""

from __future__ import annotations

import functools
import random
import sys
import time
from typing import Any

from horovod_elastic.aggregation import __main__ as program
from horovod_elastic.aggregation import adding, frames, key_state, outbox, root_link, session

AWAY_S, COME_BACK_S = 20.0, 3.0
seed = sys.argv.pop(1)
drawn = random.Random(seed)


def with_pauses(owner: Any, *names: str) -> None:
    for name in names:
        setattr(owner, name, _paused(getattr(owner, name)))


def _paused(call: Any) -> Any:
    @functools.wraps(call)
    def paused(*args: Any, **kwargs: Any) -> Any:
        pause()
        result = call(*args, **kwargs)
        pause()
        return result

    return paused


def pause() -> None:
    if drawn.random() < 0.02:
        time.sleep(drawn.choice([0.0, 0.0005, 0.002, 0.01]))


def main() -> int:
    root_link.AWAY_S, session.COME_BACK_S = AWAY_S, COME_BACK_S
    if seed != "none":
        with_pauses_everywhere()
    return program.main()


def with_pauses_everywhere() -> None:
    sys.setswitchinterval(1e-4)
    with_pauses(adding, "add_up")
    with_pauses(frames, "fill", "send", "receive")
    with_pauses(key_state.KeyState, "node_ready", "claim", "arrives", "done", "pushes", "received")
    with_pauses(outbox.Outbox, "add", "end")
    with_pauses(session.Session, "drop", "close", "hear_result", "reached_root", "forget_root")
    with_pauses(session.Session, "migrate", "all_met", "_migrate_if_due", "_hear_met")


if __name__ == "__main__":
    sys.exit(main())
