"""Each invariant of chaos on a whole cluster: violated in a made-up run, and found; not so in a good one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from chaos.checker import Record, record
from chaos.system import bounds, job_checks
from chaos.system.evidence import Evidence, Strike, Submitted, Training, Use
from chaos.system.judge import INVARIANTS, judge
from chaos.system.looks import Held, Look, SlurmJob, Tag
from chaos.system.plan import Deed, Elastic, Ordinary, Target
from says import says

pytestmark = pytest.mark.thorough

BASE, SATELLITE, RIGID, INFERENCE = 1, 2, 3, 4
ELASTIC = Submitted(Elastic("elastic1", 2, 4, 1), BASE, 0.0)
FUNGIBLE = Submitted(Elastic("elastic1", 2, 4, 1, fungible=True), BASE, 0.0)
TRAINS = Submitted(Ordinary("rigid1", 0.0, 10, inference=False, nodes=4), RIGID, 0.0)
SERVES = Submitted(Ordinary("inference1", 0.0, 10, inference=True), INFERENCE, 0.0)
PLAIN = SlurmJob(0, "", "RUNNING", "None", "train", 0, "0:0")
base = replace(PLAIN, job_id=BASE, name="elastic1", held=(Held("i2", (0, 1)),), partition="borrowed")
satellite = replace(
    PLAIN,
    job_id=SATELLITE,
    name="flexo-1",
    partition="flex",
    held=(Held("t2", (0, 1)),),
    tag=Tag(BASE, 0, "g1"),
)
rigid = replace(PLAIN, job_id=RIGID, name="rigid1", held=tuple(Held(f"t{n}", (0, 1)) for n in (1, 2, 3, 4)))
inference = replace(PLAIN, job_id=INFERENCE, name="inference1", partition="infer", held=(Held("i1", (0, 1)),))


def ended(job: SlurmJob, state: str = "COMPLETED", code: str = "0:0") -> SlurmJob:
    return replace(job, state=state, exit_code=code, held=())


def waiting(job: SlurmJob, reason: str = "Resources") -> SlurmJob:
    return replace(job, state="PENDING", reason=reason, held=())


def looks(*stretches: tuple[int, Iterable[SlurmJob]], borrowed: Iterable[str] = ()) -> tuple[Look, ...]:
    """(seconds, jobs): a look a second."""
    found: list[Look] = []
    for seconds, jobs in stretches:
        found += [Look(float(len(found) + at), tuple(jobs), frozenset(borrowed)) for at in range(seconds)]
    return tuple(found)


def at(seconds: float, target: Target, lasts_s: float = 0.0, **more: Any) -> Strike:
    return Strike(seconds, seconds + lasts_s, target, Deed.KILL, "it", **more)


def invariants(evidence: Evidence) -> set[str]:
    return {violation.invariant for violation in judge(evidence)}


def violated(evidence: Evidence, *facts: str) -> bool:
    """Whether one invariant does not hold, and its name has these words."""
    names = invariants(evidence)
    return len(names) == 1 and says(names.pop(), *facts)


@dataclass
class Logs:
    """Workers' logs of a job: `world` trains an epoch, a mini-batch a second, samples dealt out by rank."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    now: float = 0.0
    step: int = 0
    total: int = 0

    def world(self, *workers: int, again_from: int | None = None) -> Logs:
        self.step = self.step if again_from is None else again_from
        place = {"world": f"w{len(self.lines)}", "size": len(workers)}
        for rank, pid in enumerate(workers):
            self.log("enter", pid, **place, rank=rank, step=self.step)
        return self.epoch(workers, place)

    def epoch(self, workers: tuple[int, ...], place: dict[str, Any]) -> Logs:
        number = self.step // 10
        for step in range(10):
            self.step, self.now = self.step + 1, self.now + 1.0
            samples = list(range(job_checks.SAMPLES))[step::10]
            self.total += sum(samples)
            for rank, pid in enumerate(workers):
                share = samples[rank :: len(workers)]
                self.log("batch", pid, **place, rank=rank, step=self.step, epoch=number, samples=share)
        return self

    def pause(self, seconds: float) -> Logs:
        self.now += seconds
        return self

    def log(self, event: str, pid: int, **fields: Any) -> None:
        self.lines.append({"event": event, "time": self.now, "pid": pid, **fields})

    def done(self, *workers: int, off_by: int = 0) -> Logs:
        for pid in workers:
            epochs = self.step // 10
            self.log("done", pid, step=self.step, epochs=epochs, total=self.total + off_by, parameters="same")
        return self

    @property
    def record(self) -> Record:
        return record(self.lines)


def trained(logs: Logs, *strikes: Strike, job: Submitted = ELASTIC, seen: tuple[Look, ...] = ()) -> Evidence:
    """An elastic job that ended well by Slurm's word, with these logs."""
    return Evidence(
        seen or looks((5, [base]), (2, [ended(base)])),
        strikes,
        (job,),
        {BASE: Training(logs.record, logs.now)},
    )


GOOD = trained(Logs().world(10, 11).world(10, 11, 12).world(10, 11).done(10, 11))


def test_a_good_run_violates_nothing() -> None:
    assert judge(GOOD) == ()
    jobs = [base, satellite, waiting(rigid), inference]
    seen = looks((20, jobs), (5, [ended(job) for job in (base, satellite, rigid, inference)]))
    others = Evidence(seen, submitted=(ELASTIC, TRAINS, SERVES))
    assert judge(others) == ()
    assert len(INVARIANTS) == 15


def test_a_gpu_that_two_running_jobs_hold_is_found() -> None:
    other = replace(rigid, held=(Held("t2", (1,)),))
    assert violated(Evidence(looks((2, [satellite, other]))), "GPU", "given")
    assert judge(Evidence(looks((2, [satellite, replace(other, state="COMPLETED")])))) == ()


def test_a_gpu_that_a_node_does_not_have_is_found() -> None:
    assert violated(Evidence(looks((2, [replace(rigid, held=(Held("t2", (2,)),))]))), "GPU", "given")


def test_two_satellites_of_one_grant_are_found() -> None:
    twin = replace(satellite, job_id=9, held=(Held("t3", (0, 1)),))
    assert violated(Evidence(looks((2, [base, satellite, twin]))), "grant", "given")
    other = replace(twin, tag=Tag(BASE, 0, "g2"))
    assert judge(Evidence(looks((2, [base, satellite, other])))) == ()


def test_a_satellite_that_outlives_its_base_by_more_than_a_lease_is_found() -> None:
    long, short = int(bounds.OWNERLESS_S) + 5, int(bounds.OWNERLESS_S) - 5
    for ownerless in ([ended(base), satellite], [satellite], [replace(base, restarts=1), satellite]):
        assert violated(Evidence(looks((long, ownerless))), "satellite", "outlives")
        assert judge(Evidence(looks((short, ownerless)))) == ()


def test_a_job_that_outranks_satellites_and_waits_too_long_for_them_is_found() -> None:
    long = int(bounds.TAKEN_BACK_S) + 5
    seen = looks((long, [satellite, waiting(rigid)]), (1, [ended(rigid)]))
    assert violated(Evidence(seen, submitted=(TRAINS,)), "outranks satellites")


def test_an_inference_job_whose_server_does_not_come_back_is_found() -> None:
    long = int(bounds.TAKEN_BACK_S) + 5
    wants = Submitted(Ordinary("inference1", 0.0, 10, inference=True, server="i2"), INFERENCE, 0.0)
    seen = looks((long, [base, waiting(inference)]), (1, [ended(inference)]))
    assert violated(Evidence(seen, submitted=(wants,)), "outranks satellites")


def test_waiting_for_firm_jobs_or_for_slurm_itself_is_nobodys_fault() -> None:
    long = int(bounds.TAKEN_BACK_S) + 5
    firm = replace(satellite, partition="train", tag=None)
    for jobs in ([firm, waiting(rigid)], [satellite, waiting(rigid, "BeginTime")]):
        seen = looks((long, jobs), (1, [ended(rigid)]))
        assert judge(Evidence(seen, submitted=(TRAINS,))) == ()
    seen = looks((long, [satellite, waiting(rigid)]), (1, [ended(rigid)]))
    assert judge(Evidence(seen, (at(10, Target.SLURMCTLD, 30.0),), (TRAINS,))) == ()
    assert judge(Evidence(seen, (at(10, Target.FLEXOD, 30.0),), (TRAINS,))) != ()


def test_a_job_that_slurm_does_not_know_any_more_or_has_not_ended_is_found() -> None:
    gone = Evidence(looks((3, [rigid]), (2, [])), submitted=(TRAINS,))
    assert violated(gone, "no job", "lost")
    assert violated(Evidence(looks((3, [rigid])), submitted=(TRAINS,)), "no job", "lost")
    reused = replace(ended(rigid), name="other")
    assert violated(replace(gone, looks=looks((3, [rigid]), (2, [reused]))), "no job", "lost")
    assert judge(replace(gone, strikes=(at(5, Target.SLURMCTLD),))) == ()
    assert judge(replace(gone, strikes=(at(50, Target.SLURMCTLD),))) != ()


def test_a_job_that_does_not_end_with_0_is_found() -> None:
    for end in (ended(rigid, "FAILED", "1:0"), ended(rigid, "COMPLETED", "0:9")):
        assert violated(Evidence(looks((2, [end])), submitted=(TRAINS,)), "job", "ends with 0")


def test_a_base_that_is_preempted_or_requeued_is_found() -> None:
    taken = looks((3, [base]), (3, [ended(base, "PREEMPTED")]))
    assert any(says(name, "no base", "taken") for name in invariants(Evidence(taken, submitted=(ELASTIC,))))
    back = ended(replace(base, restarts=1))
    assert violated(Evidence(looks((3, [base]), (3, [back])), submitted=(ELASTIC,)), "no base", "taken")


def test_a_fungible_base_may_go_only_if_inference_wants_a_server() -> None:
    back = ended(replace(base, restarts=1))
    assert violated(Evidence(looks((3, [base]), (3, [back])), submitted=(FUNGIBLE,)), "no base", "taken")
    wanted = looks((3, [base, waiting(inference)]), (3, [back, ended(inference)]))
    assert judge(Evidence(wanted, submitted=(FUNGIBLE, SERVES))) == ()
    long = int(bounds.WANTED_S) + 5
    served = looks((long, [base, replace(inference, held=())]), (3, [back, ended(inference)]))
    assert violated(Evidence(served, submitted=(FUNGIBLE, SERVES)), "no base", "taken")


def test_another_node_among_the_lent_ones_is_found() -> None:
    assert violated(Evidence(looks((2, []), borrowed=("i1", "t1"))), "only inference servers")


def test_a_server_that_stays_lent_while_inference_runs_there_is_found() -> None:
    long = int(bounds.CLOSED_S) + 5
    seen = (*looks((long, [inference]), borrowed=("i1",)), *looks((long + 2, [ended(inference)]))[long:])
    assert violated(Evidence(seen, submitted=(SERVES,)), "server", "no longer lent")
    assert judge(Evidence(seen, (at(20, Target.FLEXOD, 20.0),), (SERVES,))) == ()
    assert judge(Evidence(looks((long, [ended(inference)]), borrowed=("i1",)), submitted=(SERVES,))) == ()


def test_a_stranger_that_has_the_number_of_a_forgotten_job_is_not_taken_for_it() -> None:
    long = int(bounds.TAKEN_BACK_S + bounds.CLOSED_S)
    forgotten = at(bounds.SLURM_FORGETS_S / 2, Target.SLURMCTLD)
    other = replace(satellite, job_id=INFERENCE, held=(Held("i1", (0,)),))
    for stranger in (other, waiting(other, "Priority")):
        seen = looks((long, [base, stranger]), (2, [ended(base), ended(other)]), borrowed=("i1",))
        assert judge(Evidence(seen, (forgotten,), (SERVES,))) == ()


def test_a_job_whose_end_slurm_has_forgotten_is_not_lost() -> None:
    seen = looks((5, [inference]))
    ends = {INFERENCE: 2.0}
    soon, late = (2.0 + bounds.SLURM_FORGETS_S * share for share in (0.5, 1.5))
    assert violated(Evidence(seen, (), (SERVES,), ordinary_ends=ends), "lost")
    assert violated(Evidence(seen, (at(late, Target.SLURMCTLD),), (SERVES,), ordinary_ends=ends), "lost")
    assert violated(Evidence(seen, (at(soon, Target.SLURMCTLD),), (SERVES,)), "lost")
    assert judge(Evidence(seen, (at(soon, Target.SLURMCTLD),), (SERVES,), ordinary_ends=ends)) == ()


def test_two_processes_on_one_gpu_are_found() -> None:
    one, two = Use("a", 1, "t1", 0, 10.0, 20.0), Use("b", 2, "t1", 0, 15.0, 30.0)
    brief = Use("c", 3, "t1", 0, 11.0, 14.0)
    (violation,) = judge(replace(GOOD, uses=(two, one)))
    assert says(violation.what, "a and b", "GPU 0 of t1", "5.0 s")
    assert violated(replace(GOOD, uses=(one, brief)), "GPU", "used")
    assert judge(replace(GOOD, uses=(one, replace(two, gpu=1)))) == ()
    assert judge(replace(GOOD, uses=(one, replace(two, node="t2")))) == ()
    assert judge(replace(GOOD, uses=(one, replace(two, since=20.5)))) == ()


def test_more_workers_than_the_largest_size_are_found() -> None:
    workers = (10, 11, 12, 13, 14)
    assert violated(trained(Logs().world(*workers).done(*workers)), "sizes")


def test_fewer_workers_than_the_smallest_size_are_found_unless_one_was_hit() -> None:
    logs = Logs().world(10, 11).world(10).done(10)
    assert violated(trained(logs), "sizes")
    assert judge(trained(logs, at(9, Target.WORKER, job_id=BASE))) == ()
    assert violated(trained(logs, at(9, Target.WORKER, job_id=BASE + 1)), "sizes")
    assert violated(trained(logs, at(9, Target.FLEXOD)), "sizes")


def test_a_sample_that_is_lost_and_a_step_that_is_done_again_long_after_any_hit_are_found() -> None:
    lost = Logs().world(10, 11).done(10, 11, off_by=0)
    lost.lines[5] = lost.lines[5] | {"samples": []}
    assert violated(trained(lost), "every sample")
    again = Logs().world(10, 11).world(10, 11)
    again.step = again.total = 0
    again.world(10, 11).done(10, 11)
    hit = at(19, Target.AGENT, job_id=BASE)
    assert judge(trained(again, hit)) == ()
    for other in ((), (replace(hit, job_id=BASE + 1),), (at(25, Target.AGENT, job_id=BASE),)):
        assert violated(trained(again, *other), "only hits")
    late = replace(hit, at=19 - bounds.RECOVERS_S - 5, until=19 - bounds.RECOVERS_S - 5)
    assert violated(trained(again, late), "only hits")


def test_a_step_is_lost_to_slurm_where_it_was_killed_just_after_a_satellite_came() -> None:
    again = Logs().world(10, 11).world(10, 11)
    again.step = again.total = 0
    again.world(10, 11).done(10, 11)
    came = looks((5, [base]), (3, [base, satellite]), (20, [ended(base), ended(satellite)]))
    killed = at(8, Target.SLURMCTLD)
    assert judge(trained(again, killed, seen=came)) == ()
    for strike in (
        replace(killed, at=16.0, until=16.0),
        replace(killed, deed=Deed.HOLD),
        replace(killed, at=4.0),
    ):
        assert violated(trained(again, strike, seen=came), "only hits")


def test_beginning_again_is_found_unless_nobody_was_left_or_slurm_requeued_it() -> None:
    logs = Logs().world(10, 11)
    logs.step = logs.total = 0
    logs.world(20, 21).done(20, 21)
    hit = at(5, Target.WORKER, job_id=BASE)
    assert violated(trained(logs, hit), "begins again")
    assert judge(trained(logs, replace(hit, orphaned=True))) == ()
    requeued = looks(
        (3, [base, waiting(inference)]), (9, [ended(replace(base, restarts=1)), ended(inference)])
    )
    allowed = trained(logs, job=FUNGIBLE, seen=requeued)
    assert judge(replace(allowed, submitted=(FUNGIBLE, SERVES))) == ()


def test_training_that_stands_still_is_found_sooner_where_no_process_of_the_job_was_hit() -> None:
    short, long = bounds.UNTOUCHED_STANDS_STILL_S + 2, bounds.STANDS_STILL_S + 2
    hit = at(12, Target.AGENT, job_id=BASE)
    for seconds, strikes, right in [
        (short - 5, (), True),
        (short, (), False),
        (short, (at(12, Target.FLEXOD, 60.0),), False),
        (short, (hit,), True),
        (long, (hit,), False),
    ]:
        logs = Logs().world(10, 11).pause(seconds).world(10, 11).done(10, 11)
        evidence = trained(logs, *strikes)
        assert judge(evidence) == () if right else violated(evidence, "training goes on")


def test_a_daemon_that_died_and_what_is_left_are_found() -> None:
    assert violated(replace(GOOD, deaths=("flexod has ended",)), "no daemon")
    assert violated(replace(GOOD, remains=("process 7 of elastic1",)), "nothing", "left")
