"""A training process without training: a real session, and a core that connects nobody.

It trains batches of 20 ms until the file `stop` is there, and writes down what becomes of it. Where a member
is lost it only hears so from the leader: there is no collective that could fail.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from horovod_elastic.core.interface import RankPlacement
from horovod_elastic.worker import session as sessions

FOLDER = Path(sys.argv[1])


class Broken(Exception):
    """What a failed collective raises."""


class Core:
    """Connects nobody; fails from `hang_up` to the next switch."""

    waited_s = 0.0
    outlives = False

    def __init__(self) -> None:
        self.broken = False
        self.generation = 0

    def prepare(self, place: RankPlacement) -> None: ...

    def switch(self, generation: int) -> None:
        self.broken, self.generation = False, generation

    def abandon(self, generation: int) -> None: ...

    def leave(self) -> None: ...

    def alone(self) -> None: ...

    def settle(self) -> None:
        pass

    def hang_up(self, generation: int) -> None:
        self.broken = self.broken or generation == self.generation


def log(event: str, **fields: object) -> None:
    line = {"event": event, "time": time.time(), "pid": os.getpid(), "node": os.environ["SLURMD_NODENAME"]}
    with (FOLDER / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({**line, **fields}) + "\n")


def train(session: sessions.Session, core: Core) -> None:
    while not (FOLDER / "stop").exists():
        if core.broken:
            raise Broken
        time.sleep(0.02)
        session.committed()
        log("batch", commits=session.commits, generation=session.generation)
        if word := session.at_boundary():
            if word.leave:
                session.leave()
            session.enter(word)
            log("enter", generation=session.generation)


def main() -> None:
    session = sessions.current()
    session.core = core = Core()
    session.connect()
    if session.warming:
        session.join()
    else:
        session.found()
        session.enter_loop()
    log("enter", generation=session.generation)
    while True:
        session.begins(session.commits)
        try:
            train(session, core)
        except Broken:
            session.recover()
            log("enter", generation=session.generation)
            continue
        session.finished()
        return


main()
