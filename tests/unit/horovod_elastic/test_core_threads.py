"""Threads of a communicator that fail: works of all ranks fail then, and nobody waits without end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest

torch = pytest.importorskip("torch")


from horovod_elastic.core.c10d.communicator import Communicator  # noqa: E402
from horovod_elastic.core.c10d.requests import Operation, Request  # noqa: E402
from horovod_elastic.core.c10d.spoke import Spoke  # noqa: E402
from horovod_elastic.core.c10d.timeline import Timeline  # noqa: E402
from horovod_elastic.core.c10d.work import Work  # noqa: E402
from horovod_elastic.core.interface import RankPlacement  # noqa: E402
from horovod_elastic.rendezvous import Rendezvous  # noqa: E402

LONG_S = 30.0
HERE = "127.0.0.1"


@pytest.fixture
def two() -> Iterator[list[Communicator]]:
    """Of one generation, in this process."""
    server = Rendezvous(HERE, {"h:0": "0,2,0,2,0,1", "h:1": "1,2,1,2,0,1"})
    places = [RankPlacement(1, rank, 2, rank, 2, 0, 1, "h", server.address, server.port) for rank in range(2)]
    built = [Communicator(place, (), Timeline({})) for place in places]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Communicator.build, built))
        yield built
        list(pool.map(Communicator.close, built))
    server.close()


def ask(communicator: Communicator) -> Work:
    """For a small all-reduce, which is said a little later."""
    tensor = torch.ones(2)
    request = Request(Operation.ALLREDUCE, "a", dtype="torch.float32", shapes=((2,),))
    work = Work(request, (tensor,), (tensor,))
    with contextlib.suppress(RuntimeError):  # the other rank has failed meanwhile
        communicator.submit(work)
    return work


def test_a_rank_that_cannot_say_what_it_asks_for_fails_its_works_and_breaks_the_generation(
    two: list[Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> NoReturn:
        raise ArithmeticError("of the test")

    monkeypatch.setattr(Spoke, "steps", fails)
    work = ask(two[1])
    assert work.done_within(LONG_S)
    assert "ArithmeticError" in str(work.error)
    other = ask(two[0])
    while not two[0].is_broken():
        other.done_within(0.1)
    assert two[1].is_broken()
