"""Two requests of an owner at the same instant count one after the other, as two in a row do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from controller_world import KEY, World

from flexo.control.scale_overrides import Busy, ScaleOverrides
from flexo.model.elastic import Cap, ElasticJob
from flexo.model.queue import JobKey

MEET_S = 0.5


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.job(workers="1-8")
    made.go(4)
    made.controller.scale(KEY, 2)
    made.go(60)
    return made


def at_once(first: Callable[[], object], second: Callable[[], object]) -> list[object]:
    """What each returned or raised."""
    ends: list[object] = []

    def run(ask: Callable[[], object]) -> None:
        try:
            ends.append(ask())
        except Busy as error:
            ends.append(error)

    threads = [threading.Thread(target=run, args=(ask,)) for ask in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.mark.parametrize("way", ["scale_out", "scale_in"])
def test_of_two_requests_that_both_look_before_either_is_written_the_second_is_busy(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Both threads meet where a request has checked the job and not set its cap yet."""
    (view,) = world.controller.jobs()
    assert view.job.granted_workers == 2
    meeting = threading.Barrier(2)
    granted = ElasticJob.granted_workers.fget
    assert granted is not None

    def meet(job: ElasticJob) -> int:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(MEET_S)
        return int(granted(job))

    monkeypatch.setattr(ElasticJob, "granted_workers", property(meet))
    ask = getattr(world.controller, way)
    ends = at_once(lambda: ask(KEY, 1), lambda: ask(KEY, 1))
    monkeypatch.undo()
    assert sorted(isinstance(end, Busy) for end in ends) == [False, True]
    world.go(60)
    (view,) = world.controller.jobs()
    assert view.job.granted_workers == (3 if way == "scale_out" else 1)


def test_the_event_store_has_the_cap_that_counts_however_slow_its_disk_is(world: World) -> None:
    """Two caps at once: the one that is in force is the one that outlives a restart."""

    class SlowFirst:
        """An event store whose first write takes longer than the second."""

        def __init__(self) -> None:
            self.kept: dict[JobKey, Cap | None] = {}
            self.first = threading.Event()

        def caps(self) -> dict[JobKey, Cap]:
            return {}

        def set_cap(self, key: JobKey, cap: Cap | None) -> None:
            if not self.first.is_set():
                self.first.set()
                threading.Event().wait(MEET_S)
            self.kept[key] = cap

    store = SlowFirst()
    overrides = ScaleOverrides(store, 0.0)  # type: ignore[arg-type]
    (view,) = world.controller.jobs()

    def second() -> None:
        store.first.wait()
        overrides.scale(view.job, 4)

    at_once(lambda: overrides.scale(view.job, 3), second)
    assert dict(overrides.caps()) == store.kept == {KEY: Cap(4)}
