"""`flexo cost`: the GPU hours of a base and of satellites, and what resizes lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from admin_server import serving
from busy_flexod import BusyFlexod, job
from command_line import Run
from says import says

from flexo_cli.cost import satellite_worker_s
from flexo_protos.v1 import admin_pb2 as pb

HOUR = 3600.0


def begins(at: float, node: str, workers: int, kind: str = "grow", restart: int = 0) -> pb.Event:
    grant = pb.GrantChange(node=node, workers=workers, begins=True)
    return pb.Event(at=at, kind=kind, job_id=7, restart_count=restart, grant=grant)


def ends(at: float, node: str, workers: int, kind: str = "shrink") -> pb.Event:
    grant = pb.GrantChange(node=node, workers=workers, begins=False)
    return pb.Event(at=at, kind=kind, job_id=7, grant=grant)


class Recording(BusyFlexod):
    """Has the events of job 7, which has ended unless it is among its jobs."""

    def __init__(self) -> None:
        super().__init__(jobs=0)
        self.events: list[pb.Event] = []
        """The oldest first."""
        self.explained = pb.ExplainJobReply()

    def ListEvents(self, request, context):  # noqa: N802
        return pb.ListEventsReply(
            events=[each for each in reversed(self.events) if each.kind in request.kinds]
        )

    def ExplainJob(self, request, context):  # noqa: N802
        return self.explained


@pytest.fixture
def flexod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    service = Recording()
    with serving(service, monkeypatch):
        yield service


def test_satellites_count_from_their_grants_until_the_first_event_that_ends_them() -> None:
    events = [
        begins(0, "n1", 4),
        begins(10, "n2", 2),
        begins(15, "n2", 2, "adopt"),  # flexod has begun anew: it is the same grant
        ends(20, "n1", 4),
        ends(25, "n1", 4, "left"),
        pb.Event(at=30, kind="grow", text="run an Aggregator on n3"),
    ]
    assert satellite_worker_s(events, 110) == 4 * 20 + 2 * 100


def test_a_job_that_has_ended(flexod: Recording, flexo_run: Run) -> None:
    end = pb.JobEnd(
        state="COMPLETED", started_at=1000, ended_at=1000 + 5 * HOUR, base_workers=2, gpus_per_worker=2,
        resizes=4, paused_s=36,
    )  # fmt: skip
    flexod.explained = pb.ExplainJobReply(sentences=["it ended"], end=end)
    flexod.events = [begins(1000, "n1", 6, restart=1), begins(1000, "n1", 3), ends(1000 + HOUR, "n1", 3)]
    code, out, _ = flexo_run("cost", "7")
    assert code == 0
    assert says(out, "COMPLETED after 5 h", "20.0 GPU hours: 2 workers of 2 GPUs", "36.0 s in 4 resizes")
    assert says(out, "6.00 GPU hours on satellites, their starts included, 23% of all", "26.0 GPU hours")
    found = json.loads(flexo_run("cost", "7", "--json")[1])
    assert (found["base_worker_hours"], found["satellite_worker_hours"]) == (10, 3)
    assert found["lost_worker_hours"] == pytest.approx(13 * 36 / (5 * HOUR))
    assert found["ended_at"] == 1000 + 5 * HOUR


def test_a_job_that_runs_counts_until_now(flexod: Recording, flexo_run: Run) -> None:
    now = time.time()
    flexod.jobs = [job(7, started_at=now - 2 * HOUR)]
    flexod.events = [begins(now - HOUR, "n1", 4)]
    found = json.loads(flexo_run("cost", "7", "--json")[1])
    assert found["base_worker_hours"] == pytest.approx(4, rel=0.01)
    assert found["satellite_worker_hours"] == pytest.approx(4, rel=0.01)
    assert (found["state"], found["ended_at"]) == (None, None)


def test_without_gpus_it_counts_workers(flexod: Recording, flexo_run: Run) -> None:
    end = pb.JobEnd(state="FAILED", started_at=1000, ended_at=1000 + HOUR, base_workers=2)
    flexod.explained = pb.ExplainJobReply(sentences=["it ended"], end=end)
    out = flexo_run("cost", "7")[1]
    assert says(out, "2.00 worker hours")
    assert "GPU" not in out


def test_what_its_leader_did_not_say_of_resizes_is_not_known(flexod: Recording, flexo_run: Run) -> None:
    end = pb.JobEnd(state="FAILED", started_at=1000, ended_at=1000 + HOUR, base_workers=2)
    flexod.explained = pb.ExplainJobReply(sentences=["it ended"], end=end)
    flexod.events = [begins(1000, "n1", 1)]
    assert says(flexo_run("cost", "7")[1], "lost", "not known")
    assert json.loads(flexo_run("cost", "7", "--json")[1])["lost_worker_hours"] is None


@pytest.mark.parametrize(
    ("explained", "named"),
    [
        (pb.ExplainJobReply(headline="0 of 2-8 workers: pending (Priority)"), "pending"),
        (pb.ExplainJobReply(sentences=["gone"]), "does not know"),
        (pb.ExplainJobReply(sentences=["job 7 is not elastic", "it waits"]), "job 7 is not elastic"),
    ],
)
def test_a_job_without_a_start_is_refused(
    flexod: Recording, flexo_run: Run, explained: pb.ExplainJobReply, named: str
) -> None:
    flexod.explained = explained
    code, out, err = flexo_run("cost", "7")
    assert (code, out) == (1, "")
    assert named in err


def test_trials_of_several_batches_are_charged(flexod: Recording, flexo_run: Run) -> None:
    end = pb.JobEnd(
        state="COMPLETED", started_at=1000, ended_at=1000 + 5 * HOUR, base_workers=2, gpus_per_worker=2,
        tried_worker_s=0.1 * HOUR,
    )  # fmt: skip
    flexod.explained = pb.ExplainJobReply(sentences=["it ended"], end=end)
    assert says(flexo_run("cost", "7")[1], "tried", "0.20 GPU hours (1.0% of all)")
    assert json.loads(flexo_run("cost", "7", "--json")[1])["tried_worker_hours"] == pytest.approx(0.1)
