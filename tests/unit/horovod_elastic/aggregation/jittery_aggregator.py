"""An Aggregator that now and then pauses where its threads meet. First argument: a seed."""

from __future__ import annotations

import functools
import random
import sys
import time
from typing import Any

from horovod_elastic.aggregation import __main__ as program
from horovod_elastic.aggregation import adding, frames, key_state, outbox, session

drawn = random.Random(int(sys.argv.pop(1)))


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
    sys.setswitchinterval(1e-4)
    with_pauses(adding, "add_up")
    with_pauses(frames, "fill", "send", "receive")
    with_pauses(key_state.KeyState, "node_ready", "claim", "arrives", "done", "pushes", "received")
    with_pauses(outbox.Outbox, "add", "end")
    with_pauses(session.Session, "drop", "close", "hear_result", "reached_root", "forget_root")
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
