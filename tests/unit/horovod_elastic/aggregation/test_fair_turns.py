"""An Aggregator's core is shared fairly, whatever jobs ask for."""

from __future__ import annotations

import threading
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.aggregation.turns import FairTurns

QUANTUM = 10


class Play:
    """Jobs that ask at once while somebody has the turn, and the order in which they get it."""

    def __init__(self, wanted: list[tuple[str, int]]) -> None:
        self.turns = FairTurns(QUANTUM)
        self.order: list[tuple[str, int]] = []
        self._inside = threading.Lock()
        holds, leave = threading.Event(), threading.Event()

        def hold() -> None:
            with self.turns.turn("first", 1):
                holds.set()
                leave.wait()

        threads = [threading.Thread(target=hold)]
        threads[0].start()
        holds.wait()
        for job, cost in wanted:
            threads.append(threading.Thread(target=self._ask, args=(job, cost)))
            threads[-1].start()
            while self.turns._waiting.get(job) is None or self._asked() < len(threads) - 1:
                pass
        leave.set()
        for thread in threads:
            thread.join()

    def _asked(self) -> int:
        return sum(map(len, self.turns._waiting.values()))

    def _ask(self, job: str, cost: int) -> None:
        with self.turns.turn(job, cost):
            assert self._inside.acquire(blocking=False), "one turn at a time"
            self.order.append((job, cost))
            self._inside.release()


def test_jobs_take_turns_however_many_parts_one_of_them_has() -> None:
    play = Play([("greedy", 10)] * 6 + [("modest", 10)] * 2)

    assert [job for job, _ in play.order[:4]] == ["greedy", "modest", "greedy", "modest"]


def test_large_parts_get_no_more_than_small_ones() -> None:
    play = Play([("large", 30)] * 3 + [("small", 5)] * 12)

    spent: Counter[str] = Counter()
    for job, cost in play.order:
        spent[job] += cost
        if min(spent["large"], spent["small"]) < 60:
            assert abs(spent["large"] - spent["small"]) <= 30 + 2 * QUANTUM


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=12))
def test_everybody_gets_each_turn_once_and_each_job_in_its_order(wanted: list[tuple[str, int]]) -> None:
    play = Play(wanted)

    assert Counter(play.order) == Counter(wanted)
    assert play.turns.served == 1 + sum(cost for _, cost in wanted)
    for job in "abc":
        assert [each for each in play.order if each[0] == job] == [each for each in wanted if each[0] == job]
