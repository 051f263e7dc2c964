"""The page of value: GPU hours on satellites by account, idle GPUs with their reasons, and the CSV."""

from __future__ import annotations

import asyncio
import csv
import time

import pytest
from flexod_double import NOW, FlexodDouble, client_of, event, job, serving
from says import says
from signed_in import Browser, until

from flexo_cli.live.picture import Picture
from flexo_protos.v1 import admin_pb2 as pb
from flexo_web.explained import Explained
from flexo_web.feed import Client
from flexo_web.harvest import Harvest, Owner
from flexo_web.idle import IdleLedger, Reason, idle_gpus

HOUR_S = 3600.0


def grown(at: float, number: int, job_id: int, node: str = "t2", workers: int = 2) -> pb.Event:
    return event(at, "grow", f"grow by {workers} workers on {node}: x", node, workers, True, number, job_id)


def ended(at: float, number: int, job_id: int, **known: object) -> pb.Event:
    told = event(at, "end", "the job ended", number=number, job_id=job_id)
    told.end.MergeFrom(pb.JobEnd(**known))
    return told


def picture(nodes: list[pb.NodeView], jobs: list[pb.ElasticJob], at: float = 1000.0) -> Picture:
    listed = pb.ListJobsReply(jobs=jobs)
    return Picture(at, pb.GetStatusReply(), listed, pb.ListNodesReply(nodes=nodes), pb.ListLoansReply())


def rows(browser: Browser) -> list[list[str]]:
    return list(csv.reader(browser().get("/value.csv").text.splitlines()))


def harvested(browser: Browser) -> float:
    return sum(float(row[3]) for row in rows(browser) if row[1] == "harvested")


def test_gpu_hours_of_satellites_are_summed_by_account_of_running_and_ended_jobs(
    flexod: FlexodDouble, browser: Browser
) -> None:
    now = time.time()
    flexod.jobs = [job(17, account="physics", gpus_per_worker=2)]
    flexod.events = [
        grown(now - 50 * HOUR_S, 1, 9),
        ended(now - 40 * HOUR_S, 2, 9, user="bob", account="chem", gpus_per_worker=1.0),
        grown(now - 4 * HOUR_S, 3, 17),
        event(now - HOUR_S, "shrink", "give back 2 workers on t2: x", "t2", 2, number=4),
    ]
    user = browser()
    until(lambda: "physics" in user.get("/value").text)
    text = user.get("/value").text
    physics, chem = text[text.index(">physics<") :][:900], text[text.index(">chem<") :][:900]
    assert physics.count(">12.0<") == 3  # 2 workers of 2 GPUs for 3 hours
    assert [">0<" in chem, chem.count(">20.0<")] == [True, 2]
    assert "<dt>In 7 days</dt><dd>32.0 GPU hours</dd>" in text


def test_a_satellite_that_was_given_back_counts_until_then_and_each_event_is_read_once(
    flexod: FlexodDouble, browser: Browser
) -> None:
    now = time.time()
    flexod.jobs = [job(17, account="physics")]
    back = event(now - HOUR_S, "shrink", "give back 2 workers on t2: x", "t2", 2, number=2)
    flexod.events = [grown(now - 2 * HOUR_S, 1, 17), back]
    flexod.events += [event(now, "scale", "x", number=number) for number in range(3, 9)]
    assert harvested(browser) == pytest.approx(2.0, abs=0.01)


def test_a_long_history_is_read_page_by_page(flexod: FlexodDouble, browser: Browser) -> None:
    now = time.time()
    flexod.jobs = [job(17, account="physics")]
    flexod.events = [grown(now - 10 * HOUR_S, 1, 17)]
    flexod.events += [event(now - 60, "left", "of another satellite", number=2 + n) for n in range(2500)]
    asked = flexod.asked["ListEvents"]
    assert harvested(browser) == pytest.approx(20.0, abs=0.1)
    assert flexod.asked["ListEvents"] - asked >= 3, "pages of jobs ask for their newest events, too"


def test_an_event_store_that_was_begun_anew_is_read_anew() -> None:
    flexod, clock = FlexodDouble(), [NOW]
    mine = Owner("ada", "physics", 1.0)

    async def read(harvest: Harvest) -> float:
        clock[0] += 60
        harvest.look()
        await harvest.wait()
        return sum(row.month for row in harvest.by_account(lambda key: mine, NOW, ""))

    async def story() -> None:
        with serving(flexod) as address:
            harvest = Harvest(Client(lambda: client_of(address)), lambda: clock[0])
            flexod.events = [grown(NOW - 4 * HOUR_S, 50, 17)]
            assert await read(harvest) == pytest.approx(8.0)
            flexod.present = False
            assert await read(harvest) == pytest.approx(8.0)
            assert "gone for a while" in harvest.trouble
            flexod.present = True
            flexod.events = [grown(NOW - HOUR_S, 1, 17)]
            await read(harvest)
            assert await read(harvest) == pytest.approx(2.0)
            assert harvest.trouble == ""

    asyncio.run(story())


def test_an_account_that_a_spreadsheet_would_calculate_stays_text(
    flexod: FlexodDouble, browser: Browser
) -> None:
    flexod.jobs = [job(17, account="=cmd|' /C calc'!A0")]
    flexod.events = [grown(time.time() - HOUR_S, 1, 17)]
    assert {row[2] for row in rows(browser) if row[1] == "harvested"} == {"'=cmd|' /C calc'!A0"}


def test_each_idle_gpu_has_the_reason_for_which_no_job_has_it() -> None:
    nodes = [
        pb.NodeView(name="t1", gpus=4, gpus_allocated=4),
        pb.NodeView(name="t2", gpus=4, unusable="DOWN: fan"),
        pb.NodeView(name="t3", gpus=4, gpus_allocated=1),
        pb.NodeView(name="t4", gpus=2),
    ]
    why = "4 of 8 workers: job 31 (pending, bob) is about to start on t3; t9 failed it"
    found = idle_gpus(picture(nodes, [job(17, reasons=[why])]), Explained())
    assert [(idle.gpus, idle.nodes, idle.reason, idle.job_id) for idle in found] == [
        (4, ("t2",), Reason.UNUSABLE, 0),
        (3, ("t3",), Reason.RESERVED, 17),
        (2, ("t4",), Reason.UNFIT, 17),
    ]
    assert found[1].text == "job 31 (pending, bob) is about to start on t3"


def test_a_reason_for_idle_gpus_leads_to_its_event_whether_it_is_about_a_node_or_a_job() -> None:
    nodes = [
        pb.NodeView(name="t2", gpus=4, unusable="DOWN: fan", idle_event=5, partitions=["train"]),
        pb.NodeView(name="i1", gpus=3, idle_event=6, partitions=["infer"]),
        pb.NodeView(name="t4", gpus=2, partitions=["train"]),
    ]
    seen = picture(nodes, [])
    seen.status.satellite_partitions.append("train")
    seen.jobs.waiting.append(waiting(31, reason_event=7))
    found = {idle.nodes[0]: idle.event for idle in idle_gpus(seen, Explained())}
    assert found == {"t2": 5, "i1": 6, "t4": 7}


def test_a_node_has_no_reason_that_is_about_another_one() -> None:
    """In a lab, the inference node's idle GPUs read as if job 17 excluded them, which it did with t3."""
    nodes = [
        pb.NodeView(name="i1", gpus=3, partitions=["infer"]),
        pb.NodeView(name="t3", gpus=3, partitions=["train", "flex"]),
        pb.NodeView(name="t4", gpus=2, partitions=["train", "flex"]),
    ]
    starved = job(17, reasons=["4 of 8 workers: t3 has idle GPUs, but the job excludes this node"])
    for known in ([], ["flex", "lent"]):
        seen = picture(nodes, [starved])
        seen.status.satellite_partitions.extend(known)
        found = {node: idle for idle in idle_gpus(seen, Explained()) for node in idle.nodes}
        assert found["t3"].text == "t3 has idle GPUs, but the job excludes this node"
        assert (found["t4"].reason, found["t4"].text, found["t4"].job_id) == (Reason.UNFIT, "", 17)
        assert "t3" not in found["i1"].text
        assert (found["i1"].reason is Reason.OUTSIDE) == bool(known)
    assert says(found["i1"].text, "no partition of satellites", "flex", "lent")


def test_nodes_are_inside_where_the_cluster_does_not_say_who_is_in_which_partition() -> None:
    seen = picture([pb.NodeView(name="t4", gpus=2)], [])
    seen.status.satellite_partitions.append("flex")
    assert [idle.reason for idle in idle_gpus(seen, Explained())] == [Reason.NOBODY]


@pytest.mark.parametrize(
    "changes", [{"granted": 8}, {"wanted": 4}, {"suspended": True}], ids=["full", "capped", "suspended"]
)
def test_gpus_are_idle_for_nobody_where_no_job_could_use_more(changes: dict[str, object]) -> None:
    (idle,) = idle_gpus(picture([pb.NodeView(name="t4", gpus=2)], [job(17, **changes)]), Explained())
    assert idle.reason is Reason.NOBODY


def waiting(number: int, **changes: object) -> pb.WaitingJob:
    plain = pb.WaitingJob(job_id=number, user="ada", min=8, max=9, partition="train", place=1)
    plain.MergeFrom(pb.WaitingJob(**changes))
    return plain


@pytest.mark.parametrize(
    ("jobs", "order", "facts"),
    [
        ([waiting(31)], [], ("1 job waits", "job 31", "8 workers")),
        ([waiting(31), waiting(32, place=2)], [31, 32], ("2 jobs wait", "job 31")),
        ([waiting(31)], [31, 5], ("2 jobs wait", "job 31")),
        ([], [5, 6], ("2 jobs", "--elastic", "wait")),
        ([waiting(31, partition="debug,train")], [], ("1 job waits",)),
    ],
)
def test_gpus_that_are_idle_while_jobs_wait_do_not_read_as_if_nobody_wanted_them(
    jobs: list[pb.WaitingJob], order: list[int], facts: tuple[str, ...]
) -> None:
    """Two jobs waited for 8 and 9 GPUs, and 2 idle ones read "no elastic job could use more"."""
    seen = picture([pb.NodeView(name="t4", gpus=2, partitions=["train"])], [])
    seen.jobs.waiting.extend(jobs)
    seen.nodes.order.extend(order)
    (idle,) = idle_gpus(seen, Explained())
    assert idle.reason is Reason.WAITING
    assert says(idle.text, *facts)
    assert idle.job_id == (31 if jobs else 0)


@pytest.mark.parametrize("changes", [{"partition": "other"}, {"place": 0}], ids=["elsewhere", "held"])
def test_a_job_that_could_not_start_there_anyhow_is_no_reason(changes: dict[str, object]) -> None:
    seen = picture([pb.NodeView(name="t4", gpus=2, partitions=["train"])], [])
    seen.jobs.waiting.append(pb.WaitingJob(**{"job_id": 31, "min": 8, "place": 1, **changes}))
    assert [idle.reason for idle in idle_gpus(seen, Explained())] == [Reason.NOBODY]


def test_idle_hours_are_booked_for_the_same_reason_as_now_says() -> None:
    ledger = IdleLedger()
    for at in (1000.0, 1060.0):
        seen = picture([pb.NodeView(name="t4", gpus=2)], [], at)
        seen.jobs.waiting.append(waiting(31))
        ledger.add(seen)
    assert [each.reason for each in ledger.hours] == [Reason.WAITING]


def test_idle_hours_count_only_while_flexod_is_seen() -> None:
    ledger, nodes = IdleLedger(), [pb.NodeView(name="t4", gpus=2)]
    for at in (1000.0, 1001.0, 1060.0, 1120.0, 9000.0, 9060.0):
        ledger.add(picture(nodes, [], at))
    assert sum(each.gpu_hours for each in ledger.hours) == pytest.approx(2 * 180 / HOUR_S)
    assert ledger.seen_s == 180
    assert ledger.since_at == 1000.0


def test_a_clock_that_was_set_back_makes_no_idle_hours() -> None:
    ledger, nodes = IdleLedger(), [pb.NodeView(name="t4", gpus=2)]
    for at in (9000.0, 1000.0, 1030.0):
        ledger.add(picture(nodes, [], at))
    assert ledger.seen_s == 30


def test_the_first_page_says_which_gpus_are_idle_and_why(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.nodes[2].unusable = "DOWN: fan"
    text = browser().get("/").text
    idle = text[text.index('id="idle"') :]
    assert "the node is unusable" in idle
    assert "DOWN: fan" in idle
