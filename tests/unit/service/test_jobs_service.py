"""A leader's stream with flexod: who may attach, what is believed, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace

import grpc
import grpc.aio
import pytest
import structlog
from service_doubles import ATTACH, House, cluster, end_of, hello, house, slurm_job

from flexo.control.batch_trials import TrialOrder
from flexo.control.leaders import GrantOffer, Orders
from flexo.model.aggregation import AggregatorOffer, AggregatorOffers
from flexo.model.elastic import FailureReason
from flexo.model.measured import FailedWorkers, ScriptKey
from flexo.model.queue import JobKey, JobState, Principal, QueuedJob, SatelliteTag
from flexo.model.ranges import Range
from flexo.service import leader_registry
from flexo.service.budgets import STANDARD, Budgets, TokenBucket
from flexo.service.jobs_service import ServiceTimeouts
from flexo.service.leader_registry import LeaderBusy, NoLeader
from flexo.service.pending_commands import CheckpointOrder, CommandOutcome, PendingCommand, Progress, Result
from flexo_protos.v1 import jobs_pb2 as pb

KEY = JobKey(7)
BOB = Principal("2000")
OFFER = GrantOffer("g1", "n2", 3, "flex", 300, 40)


def run(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 20))


async def attached(a_house: House, uid: int = 1000, job_id: int = 7) -> grpc.aio.StreamStreamCall:
    call = a_house.dial(uid)
    await call.write(hello(job_id))
    message = await call.read()
    assert message.WhichOneof("body") == "welcome"
    return call


async def refusal(a_house: House, first: pb.FromLeader, uid: int = 1000) -> tuple[grpc.StatusCode, str]:
    call = a_house.dial(uid)
    await call.write(first)
    return await end_of(call)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


def test_a_leader_is_welcomed_and_its_hello_counts_as_a_report() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = h.dial()
            await call.write(hello())
            welcome = (await call.read()).welcome
            assert welcome.report_interval_s == 5
            (report,) = h.registry.reports()
            assert (report.key, report.owner, report.training_workers) == (KEY, Principal("1000"), 2)
            assert h.registry.wake.is_set()

    run(story)


@pytest.mark.parametrize("uid", [1001, 0])
def test_another_users_job_is_refused_also_to_root(uid: int) -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            code, text = await refusal(h, hello(), uid)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert f"uid {uid}" in text
            assert h.registry.reports() == ()

    run(story)


@pytest.mark.parametrize("credential", ["", "1000 /flexo.v1.AdminService/GetStatus", "nonsense"])
def test_a_credential_that_proves_nothing_for_this_method_is_refused(credential: str) -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            code, _ = await end_of(h.dial(credential=credential))
            assert code is grpc.StatusCode.UNAUTHENTICATED

    run(story)


def test_a_call_without_any_credential_is_refused_and_told_the_metadata_key() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            code, text = await end_of(h.stub.Attach())
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert "flexo-munge" in text

    run(story)


def test_a_credential_is_good_for_one_stream() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            credential = f"1000 {ATTACH}#x"
            first = h.dial(credential=credential)
            await first.write(hello())
            await first.read()
            code, _ = await end_of(h.dial(credential=credential))
            assert code is grpc.StatusCode.UNAUTHENTICATED

    run(story)


def test_a_job_that_slurm_does_not_have_is_refused_once_the_cluster_has_been_looked_at_again() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = h.dial()
            await call.write(hello(99))
            await until(h.registry.wake.is_set)
            await asyncio.sleep(0.3)
            assert not call.done()
            h.observed.observation = cluster(at=time.time() + 1)
            code, text = await end_of(call)
            assert code is grpc.StatusCode.NOT_FOUND
            assert "99" in text

    run(story)


def test_a_job_that_has_just_started_is_found_by_the_next_look() -> None:
    async def story() -> None:
        async with house(slurm_job(state=JobState.PENDING)) as h:
            call = h.dial()
            await call.write(hello())
            await asyncio.sleep(0.1)
            h.observed.observation = cluster(slurm_job(), at=time.time() + 1)
            assert (await call.read()).WhichOneof("body") == "welcome"

    run(story)


def test_while_the_cluster_cannot_be_seen_a_leader_is_told_to_come_again() -> None:
    async def story() -> None:
        async with house() as h:
            h.observed.observation = None
            code, text = await refusal(h, hello())
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "try again" in text

    run(story)


def test_the_leader_of_an_earlier_run_of_a_requeued_job_is_refused() -> None:
    async def story() -> None:
        async with house(slurm_job(restart_count=1)) as h:
            code, text = await refusal(h, hello())
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "restart 1" in text

    run(story)


def test_a_satellite_cannot_lead_a_job_of_its_own() -> None:
    async def story() -> None:
        async with house(slurm_job(satellite=SatelliteTag(JobKey(3), "g", 1))) as h:
            code, text = await refusal(h, hello())
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "satellite of job 3" in text

    run(story)


def test_the_range_that_slurm_recorded_wins_over_the_leaders_word() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = h.dial()
            await call.write(hello(workers=pb.WorkerRange(min=1, max=5000)))
            await call.read()
            (report,) = h.registry.reports()
            assert report.workers == Range(2, 8)

    run(story)


def test_the_leader_of_a_job_that_was_not_submitted_as_elastic_is_told_so() -> None:
    async def story() -> None:
        async with house(slurm_job(elastic=None)) as h:
            code, text = await refusal(h, hello())
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "without --elastic" in text

    run(story)


def test_the_nodes_of_the_base_are_slurms_not_the_leaders() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = h.dial()
            await call.write(hello(base_nodes=["n1", "n3"]))
            await call.read()
            (report,) = h.registry.reports()
            assert report.base_nodes == ("n1",)
            code, text = await refusal(h, hello(base_nodes=["elsewhere"]))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "no node elsewhere" in text

    run(story)


@pytest.mark.parametrize("first", [pb.FromLeader(), pb.FromLeader(report=pb.Report()), hello(0)])
def test_a_stream_that_does_not_begin_with_a_proper_hello_is_refused(first: pb.FromLeader) -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            code, _ = await refusal(h, first)
            assert code is grpc.StatusCode.INVALID_ARGUMENT

    run(story)


def test_a_stream_without_hello_is_closed() -> None:
    async def story() -> None:
        async with house(slurm_job(), timeouts=ServiceTimeouts(hello_within_s=0.1)) as h:
            code, text = await end_of(h.dial())
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "Hello" in text

    run(story)


def test_one_user_cannot_take_up_the_server_with_streams_that_say_nothing() -> None:
    async def story() -> None:
        # two, and one for the job that runs
        async with house(slurm_job(), slurm_job(8, owner=BOB), budgets=Budgets(unattached=2)) as h:
            silent = [h.dial() for _ in range(3)]
            await asyncio.sleep(0.2)
            code, text = await refusal(h, hello())
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "uid 1000" in text
            await attached(h, 2000, 8)
            silent[0].cancel()
            await asyncio.sleep(0.2)
            await attached(h)

    run(story)


def test_one_look_at_the_cluster_is_sorted_once_for_all_streams_that_wait() -> None:
    class Counted(tuple):  # type: ignore[type-arg]
        looked = 0

        def __iter__(self) -> Iterator[QueuedJob]:
            Counted.looked += 1
            return super().__iter__()

    async def story() -> None:
        timeouts = ServiceTimeouts(observed_within_s=1.0)
        async with house(slurm_job(), timeouts=timeouts) as h:
            h.observed.observation = replace(cluster(at=0.0), jobs=Counted([slurm_job()]))
            ends = await asyncio.gather(*(refusal(h, hello(99)) for _ in range(20)))
            assert {code for code, _ in ends} == {grpc.StatusCode.DEADLINE_EXCEEDED}
            assert Counted.looked == 1

    run(story)


@pytest.mark.thorough
def test_a_leader_that_spoke_while_flexod_was_busy_is_not_dropped() -> None:
    async def story() -> None:
        async with house(slurm_job(), timeouts=ServiceTimeouts(report_interval_s=0.3)) as h:
            call = await attached(h)
            for workers in (3, 4):
                await call.write(pb.FromLeader(report=pb.Report(workers=workers)))
                await asyncio.sleep(0)
                time.sleep(1.5)
            await until(lambda: [report.training_workers for report in h.registry.reports()] == [4])

    run(story)


def test_bytes_of_a_leader_beyond_its_budget_wait_and_the_leader_stays() -> None:
    async def story() -> None:
        budgets = Budgets(bytes_burst=4000, bytes_per_s=20_000.0)
        async with house(slurm_job(), budgets=budgets) as h:
            call = await attached(h)
            began = time.monotonic()
            why = "x" * 4000
            for workers in range(10):
                await call.write(pb.FromLeader(report=pb.Report(workers=workers, unscalable_why=why)))
            await until(lambda: [report.training_workers for report in h.registry.reports()] == [9])
            assert time.monotonic() - began > 1.0

    run(story)


@pytest.mark.thorough
def test_who_says_nonsense_again_and_again_waits_before_he_is_heard_and_others_do_not() -> None:
    async def story() -> None:
        budgets = Budgets(misbehaved_burst=2, misbehaved_per_s=1.0)
        async with house(slurm_job(), slurm_job(8, owner=BOB), budgets=budgets) as h:
            began = time.monotonic()
            for _ in range(4):
                code, _ = await refusal(h, pb.FromLeader())
                assert code is grpc.StatusCode.INVALID_ARGUMENT
            await attached(h, 2000, 8)
            assert time.monotonic() - began < 2.0
            await attached(h)
            assert time.monotonic() - began > 1.0

    run(story)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (hello(8), grpc.StatusCode.PERMISSION_DENIED),
        (hello(9), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_a_leader_that_is_refused_again_and_again_waits_too_and_the_log_names_some(
    first: pb.FromLeader, code: grpc.StatusCode
) -> None:
    async def story() -> None:
        budgets = Budgets(misbehaved_burst=2, misbehaved_per_s=1.0)
        jobs = slurm_job(), slurm_job(8, owner=BOB), slurm_job(9, satellite=SatelliteTag(KEY, "g1", 1))
        async with house(*jobs, budgets=budgets) as h:
            began = time.monotonic()
            assert [(await refusal(h, first))[0] for _ in range(4)] == [code] * 4
            await attached(h)
            assert time.monotonic() - began > 1.0

    run(story)


def test_streams_that_are_refused_write_no_more_than_some_lines() -> None:
    async def story() -> None:
        async with house(slurm_job(8, owner=BOB), budgets=Budgets(misbehaved_burst=1000)) as h:
            for _ in range(150):
                await refusal(h, hello(8))

    with structlog.testing.capture_logs() as logged:
        run(story)
    assert 0 < len(logged) < 130


def test_a_leader_that_attaches_again_and_again_waits_and_others_do_not() -> None:
    async def story() -> None:
        budgets = Budgets(attached_burst=3, attached_per_s=0.5)
        async with house(slurm_job(), slurm_job(8, owner=BOB), budgets=budgets) as h:
            began = time.monotonic()
            for _ in range(3):
                await attached(h)
            await attached(h, 2000, 8)
            assert time.monotonic() - began < 1.5
            await attached(h)
            assert time.monotonic() - began > 1.5

    run(story)


def test_of_a_leader_that_attaches_again_and_again_the_log_names_some_and_others_all() -> None:
    async def story() -> None:
        async with house(slurm_job(), slurm_job(8, owner=BOB)) as h:
            for _ in range(60):
                (await attached(h)).cancel()
            await attached(h, 2000, 8)

    with structlog.testing.capture_logs() as logged:
        run(story)
    named = [entry["job"] for entry in logged if entry["event"] == "leader attached"]
    assert 0 < named.count("7") < 30
    assert named.count("8") == 1


def test_an_honest_leader_may_attach_again_and_again_without_waiting() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            began = time.monotonic()
            for _ in range(100):
                (await attached(h)).cancel()
            assert time.monotonic() - began < 0.2 * 100

    run(story)


def test_a_report_holds_no_more_satellites_than_the_job_may_have() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            satellites = [
                pb.Satellite(slurm_job_id=100 + number, grant_id=f"g{number}", node="n1", workers=1, state=1)
                for number in range(10_000)
            ]
            await call.write(pb.FromLeader(report=pb.Report(satellites=satellites)))
            code, text = await end_of(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert "10000 satellites" in text
            assert "2-8" in text

    run(story)


def test_a_second_leader_of_the_same_job_replaces_the_first_which_is_told_so() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            first = await attached(h)
            second = await attached(h)
            code, text = await end_of(first)
            assert code is grpc.StatusCode.ABORTED
            assert "another leader of job 7" in text
            await second.write(pb.FromLeader(report=pb.Report(workers=6)))
            await until(lambda: [report.training_workers for report in h.registry.reports()] == [6])

    run(story)


@pytest.mark.parametrize(
    ("said", "then", "counts"),
    [
        (("r", 5), ("r", 4), "the first"),
        (("r", 5), ("r", 5), "the second"),  # the same leader, whose connection had broken
        (("r", 5), ("r", 6), "the second"),
        (("r", 5), ("s", 1), "the second"),  # the job script's next `flexo run`
        (("r", 5), ("", 0), "the second"),  # a release before fencing terms
        (("", 0), ("r", 1), "the second"),
    ],
)
def test_a_leader_of_a_lower_fencing_term_does_not_displace_the_one_that_leads(
    said: tuple[str, int], then: tuple[str, int], counts: str
) -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            calls = [h.dial(), h.dial()]
            for call, (run_, term), workers in zip(calls, (said, then), (3, 4), strict=True):
                await call.write(hello(run=run_, term=term, report=pb.Report(workers=workers)))
                if call is calls[0]:
                    await call.read()
            refused = calls[1] if counts == "the first" else calls[0]
            code, text = await end_of(refused)
            assert code is grpc.StatusCode.ABORTED
            assert counts == "the second" or ("term 5" in text and "term 4" in text)
            workers = 3 if counts == "the first" else 4
            assert [report.training_workers for report in h.registry.reports()] == [workers]

    run(story)


def test_a_stale_leader_is_refused_also_while_no_other_one_is_attached() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            newer = h.dial()
            await newer.write(hello(run="r", term=5))
            await newer.read()
            await newer.done_writing()
            await until(lambda: h.registry.reports() == ())
            code, _ = await refusal(h, hello(run="r", term=4))
            assert code is grpc.StatusCode.ABORTED
            assert h.registry.reports() == ()

    run(story)


def test_the_fences_of_jobs_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with house(*(slurm_job(number) for number in (7, 8, 9))) as h:
            for number in (7, 8, 9):
                call = h.dial()
                await call.write(hello(number, run="r", term=5))
                await call.read()
            assert sorted(h.registry._fences) == [JobKey(8), JobKey(9)]

    monkeypatch.setattr(leader_registry, "MOST_FENCES", 2)
    run(story)


def test_grants_are_told_whenever_they_change_and_only_then() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            await asyncio.to_thread(h.registry.tell, KEY, Orders((OFFER,), 64))
            grants = (await call.read()).grants
            told = [(grant.grant_id, grant.workers, grant.time_limit_s) for grant in grants.grants]
            assert (told, grants.batch) == ([("g1", 3, 300)], 64)
            await asyncio.to_thread(h.registry.tell, KEY, Orders((OFFER,), 64))
            await asyncio.to_thread(h.registry.tell, KEY, Orders(()))
            message = await call.read()
            assert message.WhichOneof("body") == "grants"
            assert list(message.grants.grants) == []

    run(story)


def test_a_leader_hears_no_grants_before_the_controller_knows_its_job() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call.read(), 0.3)

    run(story)


def test_telling_a_leader_that_has_gone_is_no_error() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            h.registry.tell(JobKey(99), Orders((OFFER,)))

    run(story)


def test_a_grant_that_failed_reaches_the_controller_once() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            failed = pb.GrantFailed(grant_id="g1", reason=pb.GrantFailed.REASON_NOT_STARTED, message="slow")
            await call.write(pb.FromLeader(grant_failed=failed))
            found: list[object] = []
            await until(lambda: bool(found.extend(h.registry.take_failures()) or found))
            (failure,) = found
            assert failure.reason is FailureReason.NOT_STARTED  # type: ignore[attr-defined]
            assert h.registry.take_failures() == ()

    run(story)


def test_failed_workers_reach_the_controller_once() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            said = pb.WorkersFailed(node="n1", workers=2, how="exit code 1\n")
            await call.write(pb.FromLeader(workers_failed=said))
            found: list[FailedWorkers] = []
            await until(lambda: bool(found.extend(h.registry.take_failed_workers()) or found))
            assert [(each.job, each.node, each.workers) for each in found] == [(KEY, "n1", 2)]
            assert "\n" not in found[0].how
            assert h.registry.take_failed_workers() == ()

    run(story)


def test_a_slow_gpu_reaches_the_controller_once() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            h.registry.wake.clear()
            await call.write(pb.FromLeader(slow_gpu=pb.SlowGpu(node="n1", gpus=[2], ratio=1.9)))
            await until(h.registry.wake.is_set)
            (slow,) = h.registry.take_slow_gpus()
            assert (slow.job, slow.node, slow.gpus) == (KEY, "n1", (2,))
            assert h.registry.take_slow_gpus() == ()

    run(story)


async def told_to_checkpoint(h: House) -> tuple[grpc.aio.StreamStreamCall, PendingCommand]:
    call = await attached(h)
    pending = h.registry.connection_of(KEY).begin(CheckpointOrder("/a/b"))
    command = (await call.read()).command
    assert (command.id, command.checkpoint.path) == (pending.command.command_id, "/a/b")
    return call, pending


def test_a_command_goes_to_the_leader_and_its_words_come_back() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call, pending = await told_to_checkpoint(h)
            number = pending.command.command_id
            await call.write(pb.FromLeader(command_progress=pb.CommandProgress(id=number + 1, text="other")))
            await call.write(pb.FromLeader(command_progress=pb.CommandProgress(id=number, text="at it")))
            done = pb.CommandDone(id=number, outcome=pb.CommandDone.OUTCOME_DONE, text="written")
            await call.write(pb.FromLeader(command_done=done))
            assert await pending.next_word() == Progress("at it")
            assert await pending.next_word() == CommandOutcome(Result.DONE, "written")
            h.registry.connection_of(KEY).begin(CheckpointOrder("/a/c"))

    run(story)


def test_a_leader_has_one_thing_to_do_at_a_time() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            await told_to_checkpoint(h)
            with pytest.raises(LeaderBusy, match="try again later"):
                h.registry.connection_of(KEY).begin(CheckpointOrder("/a/c"))

    run(story)


def test_a_command_that_nobody_waits_for_any_more_is_cancelled() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call, pending = await told_to_checkpoint(h)
            h.registry.connection_of(KEY).give_up(pending)
            command = (await call.read()).command
            assert (command.id, command.WhichOneof("body")) == (pending.command.command_id, "cancel")

    run(story)


def test_whoever_waits_for_a_leader_that_goes_is_told_so() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call, pending = await told_to_checkpoint(h)
            call.cancel()
            word = await pending.next_word()
            assert isinstance(word, CommandOutcome)
            assert word.result is Result.LOST
            with pytest.raises(NoLeader, match="job 7"):
                h.registry.connection_of(KEY)

    run(story)


def test_goodbye_ends_the_stream_well_and_the_leader_is_gone() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            await call.write(pb.FromLeader(goodbye=pb.Goodbye(reason="trained")))
            code, _ = await end_of(call)
            assert code is grpc.StatusCode.OK
            assert h.registry.reports() == ()

    run(story)


def test_a_leader_whose_connection_breaks_is_gone() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            h.registry.wake.clear()
            call.cancel()
            await until(lambda: h.registry.reports() == ())
            assert h.registry.wake.is_set()

    run(story)


def test_a_leader_that_goes_quiet_for_three_intervals_is_dropped() -> None:
    async def story() -> None:
        async with house(slurm_job(), timeouts=ServiceTimeouts(report_interval_s=0.1)) as h:
            call = await attached(h)
            code, text = await end_of(call)
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "no report" in text
            assert h.registry.reports() == ()

    run(story)


def test_a_leader_that_floods_is_closed_and_the_others_go_on() -> None:
    async def story() -> None:
        async with house(slurm_job(), slurm_job(8)) as h:
            good = await attached(h, job_id=8)
            bad = await attached(h)
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):  # noqa: PT012
                for _ in range(100_000):
                    await bad.write(pb.FromLeader(report=pb.Report(workers=3)))
            # gRPC's client says INTERNAL when one of its own writes meets the closed stream first.
            assert await bad.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
            assert [report.key for report in h.registry.reports()] == [JobKey(8)]
            await good.write(pb.FromLeader(report=pb.Report(workers=5)))
            await until(lambda: [report.training_workers for report in h.registry.reports()] == [5])

    run(story)


def test_a_message_over_the_size_limit_is_refused() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            code, _ = await refusal(h, hello(base_nodes=["n" * 1000] * 1100))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(story)


@pytest.mark.parametrize("again", [hello(), pb.FromLeader(grant_failed=pb.GrantFailed())])
def test_a_message_that_makes_no_sense_ends_the_stream_and_says_why(again: pb.FromLeader) -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            await call.write(again)
            code, text = await end_of(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text
            assert h.registry.reports() == ()

    run(story)


def test_when_flexod_stops_leaders_hear_that_the_grants_stand() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            h.service.close()
            code, text = await end_of(call)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "grants stand" in text

    run(story)


def test_a_report_that_changes_nothing_for_a_policy_wakes_nobody() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            h.registry.wake.clear()
            await call.write(pb.FromLeader(report=pb.Report(workers=2, batches_committed=9)))
            await until(lambda: [report.batches_committed for report in h.registry.reports()] == [9])
            assert not h.registry.wake.is_set()
            await call.write(pb.FromLeader(report=pb.Report(workers=2, scalable=True)))
            await until(h.registry.wake.is_set)

    run(story)


def test_the_bucket_lets_a_burst_through_and_then_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bucket = TokenBucket(20, STANDARD.messages_burst)
    assert sum(bucket.take() for _ in range(1000)) == STANDARD.messages_burst
    now[0] += 1
    assert sum(bucket.take() for _ in range(1000)) == 20


def test_a_leader_hears_its_aggregators_once_and_again_when_they_change() -> None:
    async def story() -> None:
        async with house(slurm_job()) as h:
            call = await attached(h)
            offers = AggregatorOffers(1, (AggregatorOffer("c1", 7000, "token", 1),))
            for told in (offers, offers, AggregatorOffers(2)):
                h.registry.assign(KEY, told)
            h.registry.assign(JobKey(99), offers)
            first = (await call.read()).aggregators
            last = first if first.version == 2 else (await call.read()).aggregators
            assert last.version == 2
            h.registry.tell(KEY, Orders((OFFER,)))
            assert (await call.read()).WhichOneof("body") == "grants"

    run(story)


def test_a_welcome_asks_for_trials_of_the_script_of_the_jobs_user() -> None:
    asked: list[ScriptKey] = []

    def trials(script: ScriptKey) -> TrialOrder:
        asked.append(script)
        return TrialOrder(wanted=True, known_weights=9)

    async def story() -> None:
        async with house(slurm_job(), trials=trials) as h:
            call = h.dial()
            await call.write(hello(script="ab" * 32))
            welcome = (await call.read()).welcome
            assert (welcome.try_batches, welcome.known_weights) == (True, 9)
            call.cancel()

    run(story)
    assert asked == [ScriptKey("ann", "ab" * 32, "")]
