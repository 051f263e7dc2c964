"""Turns of lending in a little cluster: who is lent, called back and vacated, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lent_world import RULES, World
from says import says

from flexo.loaning.demand import ReclaimRequest
from flexo.loaning.lending_cycle import LendingSettings
from flexo.loaning.reclaim_steps import Saving
from flexo.model.loans import LoanState
from flexo.model.nodes import NodeCondition
from flexo.model.queue import JobKey


@pytest.fixture
def world() -> World:
    return World()


def lend_all(world: World) -> None:
    """Five of six servers on loan, and in the partition."""
    world.demand.servers = 0.0
    world.cycle()
    world.cycle(1.0)
    assert len(world.lent) == 5
    assert world.borrowed == world.lent


def need(world: World, servers: float) -> None:
    """The next decision sees this demand."""
    world.demand.servers = servers
    world.cycle(60.0)


# Lending.


def test_idle_servers_are_lent_and_put_into_the_partition_with_one_edit(world: World):
    world.demand.servers = 2.0
    plan = world.cycle()
    assert world.lent == {"i1", "i2", "i3"}
    assert world.edits == [(world.now, frozenset({"i1", "i2", "i3"}))]
    assert [event.kind for event in plan.events] == ["lend"] * 3
    assert says(plan.events[0].text, "inference", "2.0 of its 6 servers")


def test_servers_that_are_in_use_down_or_drained_are_not_lent(world: World):
    world.inference(1, "i1")
    world.unusable = {"i2": "DOWN", "i3": "IDLE+DRAIN: bad fan"}
    world.demand.servers = 1.0
    world.cycle()
    assert world.lent == {"i4", "i5"}  # of four usable ones one is in use, and one is headroom


def test_servers_of_the_type_that_is_lent_already_come_first_then_those_of_the_commoner_type(world: World):
    world.servers = {"i1": "A2", "i2": "T4", "i3": "T4", "i4": "A2", "i5": "T4", "i6": "T4"}
    world.demand.servers = 3.0
    world.cycle()
    assert world.lent == {"i2", "i3"}
    need(world, 1.0)
    assert world.lent == {"i2", "i3", "i5", "i6"}


def test_nothing_is_decided_between_two_intervals(world: World):
    world.demand.servers = 4.0
    world.cycle()
    world.demand.servers = 0.0
    world.cycle(30.0)
    assert world.lent == {"i1"}
    world.cycle(30.0)
    assert len(world.lent) == 5


def test_nothing_is_lent_while_an_inference_job_waits_for_servers(world: World):
    world.inference(1)
    world.cycle()
    assert world.lent == set()


def test_edits_are_at_least_a_minute_apart_and_hold_all_that_has_come_up(world: World):
    world.settings = LendingSettings(rules=replace(RULES, interval_s=10.0))
    world.restart()
    world.demand.servers = 4.0
    world.cycle()
    begun = world.now
    world.demand.servers = 2.0
    world.cycles(58.0)
    assert len(world.edits) == 1
    assert world.lent == {"i1", "i2", "i3"}
    world.cycles(4.0)
    assert [at - begun for at, _ in world.edits] == [0.0, 60.0]
    assert world.borrowed == {"i1", "i2", "i3"}


def test_a_static_partition_is_never_edited_and_loans_are_gated_all_the_same(world: World):
    world.settings = LendingSettings(rules=RULES, static=True)
    world.borrowed = frozenset(world.servers)
    world.restart()
    world.demand.servers = 3.0
    world.cycle()
    assert world.lent == {"i1", "i2"}
    assert world.edits == []
    world.satellite(50, "i1")
    need(world, 6.0)
    world.cycles(4.0)
    assert world.lent == set()
    assert world.closed == set()
    assert world.edits == []
    assert world.past["i1"].workers_scaled_in == 2


# Missing and impossible demand.


def test_without_demand_nothing_more_is_lent_nothing_is_called_back_and_it_is_said_once(world: World):
    need(world, 3.0)
    world.demand.servers = None
    world.cycles(300.0)
    assert world.lent == {"i1", "i2"}
    [text] = world.events("demand")
    assert says(text, "demand", "nothing more is lent", "300 s")
    assert "nothing more is lent" in world.plans[-1].reading.trouble
    need(world, 3.0)
    assert world.plans[-1].reading.trouble == ""
    assert world.events("demand")[-1] == "demand: all is well again"


def test_without_demand_servers_are_called_back_for_inference_jobs_that_wait(world: World):
    lend_all(world)
    world.inference(1, "i6")
    world.inference(2)
    world.demand.servers = None
    world.cycle(60.0)
    assert len(world.closed) == 1


@pytest.mark.parametrize(
    ("servers", "word"),
    [(-1.0, "a number from 0"), (float("nan"), "a number from 0"), (float("inf"), "from 0")],
)
def test_demand_that_cannot_be_counts_as_missing(world: World, servers: float, word: str):
    world.demand.servers = servers
    world.cycle()
    assert world.lent == set()
    assert word in world.plans[-1].reading.trouble


def test_demand_from_the_future_counts_as_missing(world: World):
    world.demand.at = world.now + 500.0
    world.cycle()
    assert world.lent == set()
    assert "clock" in world.plans[-1].reading.trouble


def test_demand_above_the_size_of_the_cluster_calls_back_all_and_says_so(world: World):
    lend_all(world)
    need(world, 50.0)
    assert world.lent == set()
    assert says(" ".join(world.events("demand")), "the test", "50.0 servers", 6)


# Calling back.


def test_rising_demand_closes_the_cheapest_servers_and_scales_in_at_once(world: World):
    lend_all(world)
    world.base(10, "i1", "i2")
    world.satellite(50, "i3", workers=3)
    world.satellite(51, "i4", workers=1)
    need(world, 3.0)
    assert world.closed == {"i4", "i5"} | {"i3"}
    assert world.lent == {"i1", "i2"}
    assert {(order.node, order.force) for order in world.plans[-1].scale_in} == {("i3", False), ("i4", False)}
    assert world.loan("i3").deadline_at == world.now + RULES.reclaim_s
    world.cycles(70.0)
    assert world.preempted == []
    assert world.borrowed == {"i1", "i2"}
    assert world.past["i3"].reclaim_s == pytest.approx(2.0)
    assert any(says(text, "i3", "2 s", "3 min", "deadline") for text in world.events("returned"))


def test_a_closed_server_leaves_the_partition_with_the_next_edit_and_its_loan_ends_after_that(world: World):
    lend_all(world)
    edits = len(world.edits)
    world.demand.servers = 5.0
    world.cycle(60.0)
    assert len(world.edits) == edits + 1
    assert world.borrowed == set()
    assert world.closed == {"i1", "i2", "i3", "i4", "i5"}
    world.cycle(2.0)
    assert world.closed == set()
    assert world.demand.heeded[-1] == ()


def test_the_source_is_told_of_an_empty_server_before_the_partition_is_edited(world: World):
    lend_all(world)
    world.refuses_edits = True
    need(world, 6.0)
    assert world.closed
    assert world.demand.heeded[-1] == ()


def test_a_base_is_preempted_only_late_and_only_if_servers_without_one_are_not_enough(world: World):
    lend_all(world)
    world.base(10, "i1")
    world.base(11, "i2", "i3")
    need(world, 3.0)  # three have to come: i4 and i5 are empty
    called_at = world.now
    assert world.closed == {"i2", "i4", "i5"} or world.closed == {"i3", "i4", "i5"}
    world.cycles(119.0)
    assert world.preempted == []
    world.cycles(3.0)
    assert world.preempted == [11]
    assert world.now - called_at <= 122.0
    world.cycles(10.0)
    assert not world.past[min(world.past.keys() & {"i2", "i3"})].late


def test_servers_emptied_because_their_base_went_for_another_are_counted_and_remembered(world: World):
    lend_all(world)
    world.base(10, "i1", "i2", "i3")
    world.base(11, "i3")
    world.satellite(50, "i2", base=10, workers=1)
    world.satellite(51, "i4", base=10, workers=1)
    world.base(12, "i4")
    world.base(13, "i5")
    world.demand.calls = (ReclaimRequest("c1", world.now, world.now + 100.0, "the peak", ("i1",)),)
    world.cycles(50.0)
    assert world.preempted == [10]
    loan = world.loan("i1") if "i1" in world.closed else world.past["i1"]
    assert (loan.bases_preempted, loan.servers_emptied_beside) == (1, 1), "i2; 11 is on i3 still, 12 on i4"
    assert any("that empties i2 as well" in text for text in world.events("preempt"))
    world.restart(world.plans[-1].loans)
    world.cycles(70.0)
    assert (world.past["i1"].bases_preempted, world.past["i1"].servers_emptied_beside) == (1, 1)


def test_a_server_that_two_preemptions_empty_together_counts_once(world: World):
    lend_all(world)
    world.base(10, "i1", "i3")
    world.base(11, "i2", "i3")
    for node in ("i4", "i5"):
        world.base(100 + int(node[1:]), node)
    calls = ReclaimRequest("c1", world.now, world.now + 100.0, "the peak", ("i1", "i2"))
    world.demand.calls = (calls,)
    world.cycles(120.0)
    assert sorted(world.preempted) == [10, 11]
    assert [world.past[node].servers_emptied_beside for node in ("i1", "i2")] == [0, 1]


def test_a_base_that_ends_by_itself_is_not_preempted(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    world.cycles(60.0)
    world.end(100 + int(node[1:]))
    world.cycles(200.0)
    assert world.preempted == []


def test_another_server_that_comes_free_goes_back_in_place_of_one_with_a_base(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    other = min(world.lent)
    world.end(100 + int(other[1:]))
    world.cycles(4.0)
    assert node in world.lent
    assert other not in world.lent
    world.cycles(200.0)
    assert world.preempted == []
    assert any(says(text, other, "in its place") for text in world.events("reopen"))


def test_a_call_is_taken_back_when_demand_falls_before_anything_was_preempted(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    need(world, 0.0)
    assert world.closed == set()
    assert node in world.lent
    world.cycles(120.0)
    assert node in world.borrowed
    assert world.preempted == []


def test_a_call_stands_once_a_base_has_been_preempted_for_it(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    world.cycles(121.0)
    assert len(world.preempted) == 1
    need(world, 0.0)
    assert node in world.past


def test_a_base_that_can_is_asked_for_a_checkpoint_first_and_then_preempted(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    key = JobKey(100 + int(node[1:]))
    world.saving = Saving(able=frozenset({key}))
    world.cycles(62.0)
    asked = [order.job for plan in world.plans for order in plan.save]
    assert asked == [key]
    assert world.preempted == []
    assert world.loan(node).state is LoanState.PREEMPTING
    world.cycles(60.0)
    assert world.preempted == [key.job_id]


def test_satellites_that_do_not_heed_are_cancelled_shortly_before_the_deadline(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.satellite(50 + int(node[1:]), node)
    world.leaves_after_s = 1e9
    need(world, 5.0)
    deadline_at = world.loan("i1").deadline_at
    world.cycles(160.0)
    assert world.closed == {"i1", "i2", "i3", "i4", "i5"}
    world.cycles(10.0)
    assert world.now < deadline_at
    assert not any(loan.late for loan in world.past.values())
    assert len(world.past) == 5
    assert len(world.events("escalate")) == 5


def test_a_base_that_does_not_go_is_told_again_by_force(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    job_id = 100 + int(node[1:])
    stubborn = world.jobs[job_id]
    for _ in range(100):
        world.cycle(2.0)
        world.jobs[job_id] = stubborn
    orders = [order for plan in world.plans for order in plan.preempt]
    assert next(order.force for order in orders) is False
    assert orders[-1].force
    assert len(orders) <= 5  # not every two seconds
    assert world.loan(node).state is LoanState.ESCALATED
    assert len(world.events("preempt")) == 1


# What the inference cluster demands back itself.


WHY = "a big model is loaded"


def call(world: World, seconds: float = 100.0, call_id: str = "c1", **what) -> None:
    asked = ReclaimRequest(call_id, world.now, world.now + seconds, WHY, **what)
    world.demand.calls = (*world.demand.calls, asked)


def test_named_servers_come_back_by_their_own_deadline(world: World):
    lend_all(world)
    world.satellite(50, "i2")
    call(world, nodes=("i2",))
    world.cycle(2.0)
    assert world.closed == {"i2"}
    assert world.loan("i2").deadline_at == world.now + 98.0
    assert world.loan("i2").why_back == WHY
    world.cycles(70.0)
    assert "i2" in world.past


def test_a_number_of_servers_is_chosen_by_what_they_cost(world: World):
    lend_all(world)
    for node in ("i1", "i2", "i3"):
        world.base(100 + int(node[1:]), node)
    call(world, servers=2)
    world.cycle(2.0)
    assert world.closed == {"i4", "i5"}
    world.cycle(2.0)
    assert len(world.closed | world.past.keys()) == 2  # the same call again calls nothing more back


def test_servers_already_on_their_way_back_count_for_a_call(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    call(world, 50.0, servers=1)
    world.cycle(2.0)
    assert world.closed == {node}
    assert world.loan(node).deadline_at == world.now + 48.0
    assert any("wanted back earlier" in text for text in world.events("call back"))


def test_nothing_is_lent_while_a_call_is_open(world: World):
    call(world, servers=1)
    world.cycle()
    assert world.lent == set()
    assert any(says(text, "1 more", "on loan") for text in world.events("demand"))


def test_a_server_that_is_demanded_and_not_on_loan_is_said_once(world: World):
    call(world, nodes=("i9", "t1"))
    world.cycle()
    world.cycles(10.0)
    assert len([text for text in world.events() if "is not on loan" in text]) == 2


def test_what_was_said_of_a_call_is_forgotten_with_it(world: World):
    lend_all(world)
    for number in range(3):
        call = ReclaimRequest(f"c{number}", world.now, world.now + 60.0, "the peak", ("i6",))
        world.demand.calls = (call,)
        world.cycles(4.0)
        world.demand.calls = (replace(call, call_id="again"),)
        world.cycles(4.0)
    said = [text for text in world.events("demand") if "i6 is demanded back" in text]
    assert len(said) == 6


def test_a_server_in_two_calls_comes_back_by_the_earlier_deadline(world: World):
    lend_all(world)
    world.base(10, "i1")
    call(world, 100.0, "c1", nodes=("i1",))
    call(world, 80.0, "c2", nodes=("i1",))
    world.cycle(2.0)
    world.cycle(2.0)
    assert world.loan("i1").deadline_at == pytest.approx(world.now + 76.0)
    assert len([text for text in world.events("call back") if says(text, "i1", WHY, "98 s")]) == 1


def test_a_withdrawn_call_is_one_for_demand_from_then_on_and_can_be_taken_back(world: World):
    lend_all(world)
    world.base(10, "i1")
    call(world, 300.0, nodes=("i1",))
    world.cycle(2.0)
    assert "i1" in world.closed
    world.demand.calls = ()
    need(world, 0.0)
    assert "i1" in world.lent


# What goes wrong.


def test_a_clock_that_is_set_moves_the_deadlines_with_it(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    world.now += 7200.0
    world.cycle(2.0)
    assert world.preempted == []
    assert world.loan(node).deadline_at == pytest.approx(world.now + 178.0)
    assert any("set forward by 7200 s" in text for text in world.events("repair"))
    world.now -= 90_000.0
    world.cycle(2.0)
    assert world.loan(node).deadline_at == pytest.approx(world.now + 176.0)
    world.cycles(125.0)
    assert len(world.preempted) == 1
    assert not world.past[node].late


def test_a_look_at_slurm_that_takes_long_is_no_clock_that_was_set(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    deadline_at = world.loan(node).deadline_at
    looked = world.view()
    world.pass_time(15.0)  # what Slurm's commands took after the look's time was noted
    plan = world.lending.cycle(looked)
    assert not [event for event in plan.events if event.kind == "repair"]
    assert {loan.node: loan.deadline_at for loan in plan.loans}[node] == deadline_at


def test_time_that_really_passes_is_no_jump(world: World):
    lend_all(world)
    world.cycle(7200.0)
    assert not world.events("repair")


def test_a_restart_of_slurmctld_empties_the_partition_and_it_is_filled_again(world: World):
    lend_all(world)
    world.borrowed = frozenset()
    world.cycle(1.0)
    assert len(world.lent) == 5
    assert world.borrowed == frozenset()
    world.cycles(60.0)
    assert world.borrowed == world.lent
    (text,) = world.events("repair")
    assert says(text, "restart of the cluster")


def test_a_partition_that_is_emptied_again_and_again_is_left_empty(world: World):
    lend_all(world)
    for _ in range(5):
        world.borrowed = frozenset()
        world.cycles(70.0)
    assert world.borrowed == frozenset()
    assert world.lent == set()
    world.cycles(600.0)
    assert world.borrowed == frozenset()


def test_a_server_taken_out_by_hand_goes_back_and_is_left_alone_for_an_hour(world: World):
    lend_all(world)
    world.satellite(50, "i2")
    world.borrowed -= {"i2"}
    world.cycles(120.0)
    assert "i2" in world.past
    assert "by hand" in world.past["i2"].why_back
    assert len(world.lent) == 5
    assert "i2" not in world.borrowed
    world.cycles(3600.0, 30.0)
    assert "i2" not in world.lent | world.closed


def test_a_server_put_in_by_hand_counts_as_lent(world: World):
    need(world, 5.0)
    world.borrowed = frozenset({"i4"})
    world.cycle(2.0)
    assert world.lent == {"i4"}
    assert "by hand" in world.loan("i4").why
    need(world, 6.0)
    assert world.closed == {"i4"}


def test_a_training_node_in_the_partition_is_said_and_left_there(world: World):
    world.borrowed = frozenset({"t1"})
    world.demand.servers = 3.0
    world.cycles(120.0)
    assert world.borrowed == {"t1", "i1", "i2"}
    assert world.lent == {"i1", "i2"}
    [text] = [text for text in world.events("repair") if says(text, "t1")]
    assert says(text, "borrowed partition", "left there")


def test_a_server_that_goes_down_on_loan_is_given_back(world: World):
    lend_all(world)
    world.unusable["i3"] = "DOWN+NOT_RESPONDING"
    world.cycles(70.0)
    assert "i3" in world.past
    assert "DOWN" in world.past["i3"].why_back
    assert "i3" not in world.borrowed


def test_a_server_that_slurm_keeps_or_cleans_up_stays_on_loan(world: World):
    lend_all(world)
    world.unusable = {"i1": "IDLE+PLANNED", "i2": "MIXED+COMPLETING", "i3": "held by one job"}
    world.conditions = {"i3": frozenset({NodeCondition.EXCLUSIVE})}
    world.cycles(30.0)
    assert len(world.lent) == 5


def test_servers_that_a_restarted_slurmctld_has_not_heard_of_yet_stay_on_loan(world: World):
    lend_all(world)
    lent = set(world.lent)
    world.unusable = dict.fromkeys(lent, "UNKNOWN") | {"i2": "UNKNOWN+NOT_RESPONDING"}
    world.cycles(30.0)
    assert world.lent == lent
    world.unusable = {"i3": "UNKNOWN+DRAIN: bad fan"}
    world.cycles(70.0)
    assert "bad fan" in world.past["i3"].why_back


def test_a_server_that_slurm_has_given_to_inference_itself_is_called_back(world: World):
    lend_all(world)
    world.inference(7, "i2", gpus=1)
    world.cycle(2.0)
    assert world.closed == {"i2"}
    assert "inference job 7 runs there" in world.loan("i2").why_back


def test_a_server_that_vanishes_from_the_cluster_takes_its_loan_with_it(world: World):
    lend_all(world)
    del world.servers["i3"]
    world.borrowed -= {"i3"}
    world.cycle(2.0)
    assert "i3" in world.past
    assert "i3" not in world.lent | world.closed
    assert any(says(text, "i3", "gone", "loan") for text in world.events("repair"))


def test_a_server_that_leaves_the_inference_partition_on_loan_goes_out_of_the_borrowed_one(world: World):
    lend_all(world)
    world.elsewhere = {"i3"}
    world.cycles(70.0)
    assert says(world.past["i3"].why_back, "not in", "inference partition")
    assert "i3" not in world.borrowed
    assert world.lent == world.borrowed
    assert not [text for text in world.events("repair") if "i3" in text]


def test_what_is_changed_by_hand_in_the_partition_of_satellites_is_put_right_with_the_next_edit():
    world = World(LendingSettings(rules=RULES, satellite_partition="borrowed-flex"))
    world.cycles(70.0)
    assert world.for_satellites == world.borrowed == world.lent != set()
    edits = len(world.edits)
    world.cycles(70.0)
    assert len(world.edits) == edits
    world.for_satellites = frozenset({"i1", "t1"})
    world.cycles(4.0)
    assert world.for_satellites == world.borrowed == world.lent
    assert len(world.edits) == edits + 1
    assert len(world.events("repair")) == 1


class Broken:
    """A forecast that fails, or expects what cannot be."""

    def __init__(self, highest: float | None) -> None:
        self.value = highest

    def note(self, at: float, servers: float) -> None:
        pass

    def band(self, now: float, until: float) -> Broken:
        return self

    @property
    def highest(self) -> float:
        if self.value is None:
            raise ZeroDivisionError("no day is that short")
        return self.value


@pytest.mark.parametrize("highest", [None, float("nan"), float("inf")])
def test_a_forecast_that_fails_lends_nothing_more_and_keeps_no_server_from_coming_back(world, highest):
    world.demand.servers = 3.0
    world.cycles(4.0)
    assert world.lent == {"i1", "i2"}
    world.forecast = Broken(highest)
    world.restart(world.plans[-1].loans)
    world.demand.servers = 0.0
    world.cycles(130.0)
    assert world.lent == {"i1", "i2"}
    assert "so nothing more is lent" in world.plans[-1].reading.trouble
    world.demand.servers = 6.0
    world.cycles(130.0)
    assert world.lent == world.borrowed == set()


def test_edits_that_are_refused_are_tried_again_each_minute_and_nobody_loses_a_server(world: World):
    world.refuses_edits = True
    world.cycle()
    world.cycles(125.0)
    assert len(world.edits) == 3
    assert world.borrowed == frozenset()
    world.refuses_edits = False
    world.cycles(60.0)
    assert world.borrowed == world.lent


def test_a_cluster_without_the_partitions_is_in_trouble_and_nothing_is_lent(world: World):
    world.settings = LendingSettings(partition="lent", rules=RULES)
    world.restart()
    plan = world.cycle()
    assert says(plan.reading.trouble, "no partition lent")
    world.settings = LendingSettings(inference_partition="serve", rules=RULES)
    world.restart()
    assert "no partition serve" in world.cycle().reading.trouble


@pytest.mark.parametrize("missing", ["borrowed", "infer"])
def test_what_is_called_back_comes_in_time_though_a_partition_has_been_removed(world: World, missing: str):
    lend_all(world)
    world.base(10, "i1")
    world.satellite(50, "i2")
    demand = ReclaimRequest("c1", world.now, world.now + 200.0, "the peak", ("i1", "i2"))
    world.demand.calls = (demand,)
    world.cycle(1.0)
    assert world.closed == {"i1", "i2"}
    world.missing = {missing}
    edits = len(world.edits)
    world.cycle(1.0)
    assert f"no partition {missing}" in world.plans[-1].reading.trouble
    world.cycles(150.0)
    assert world.preempted == [10]
    assert "g50" not in world.grants
    assert world.demand.calls == (), "the scheduler was told of both"
    assert len(world.edits) == edits
    world.missing = set()
    world.cycles(130.0)
    assert world.past.keys() >= {"i1", "i2"}
    assert world.lent == world.borrowed != set()
    assert world.plans[-1].reading.trouble == ""


def test_a_call_back_is_heeded_while_the_borrowed_partition_is_missing(world: World):
    lend_all(world)
    world.satellite(50, "i2")
    world.missing = {"borrowed"}
    world.cycle(1.0)
    need(world, 6.0)
    world.cycles(5.0)
    assert "g50" not in world.grants
    assert world.lent == set()


def test_a_partition_that_is_set_down_is_said_and_gets_nothing_more(world: World):
    world.up = False
    world.cycles(70.0)
    assert world.lent == set()
    assert says(world.plans[-1].reading.trouble, "partition borrowed", "down")
    world.up = True
    world.cycles(70.0)
    assert len(world.lent) == 5
    assert world.plans[-1].reading.trouble == ""


def test_a_satellite_is_not_cancelled_in_every_turn(world: World):
    lend_all(world)
    world.satellite(50, "i1")
    world.leaves_after_s = 1e9
    need(world, 6.0)
    stubborn = world.jobs[50], world.grants["g50"]
    for _ in range(120):
        world.cycle(2.0)
        world.jobs[50], world.grants["g50"] = stubborn
    forced = [order for plan in world.plans for order in plan.scale_in if order.force]
    assert 1 <= len(forced) <= 4


def test_a_job_that_starts_on_a_closed_server_before_the_edit_has_to_go_too(world: World):
    lend_all(world)
    world.refuses_edits = True
    need(world, 6.0)
    assert world.closed == {"i1", "i2", "i3", "i4", "i5"}
    world.base(77, "i1")
    world.cycles(185.0)
    assert world.preempted == [77]


# A restart of flexod.


def test_after_a_restart_the_event_store_says_since_when_and_why(world: World):
    need(world, 3.0)
    since, why = world.loan("i1").since_at, world.loan("i1").why
    world.cycle(1.0)
    world.restart(world.plans[-1].loans)
    world.cycle(100.0)
    assert (world.loan("i1").since_at, world.loan("i1").why) == (since, why)
    assert world.lent == {"i1", "i2"}


def test_after_a_restart_a_server_taken_out_by_hand_is_left_alone_still(world: World):
    lend_all(world)
    world.borrowed -= {"i2"}
    world.cycles(120.0)
    assert "i2" in world.past
    world.restart(world.plans[-1].loans)
    world.cycles(3300.0, 30.0)
    assert "i2" not in world.lent | world.closed
    world.cycles(400.0, 30.0)
    assert world.plans[-1].left_alone == ()


def test_a_clock_set_back_while_flexod_was_away_leaves_no_server_alone_for_longer(world: World):
    lend_all(world)
    world.borrowed -= {"i2"}
    world.cycles(120.0)
    world.now -= 500_000.0
    world.restart(world.plans[-1].loans)
    world.cycle(2.0)
    (left_alone,) = world.plans[-1].left_alone
    assert left_alone.until_at <= world.now + 3600.0


def test_after_a_restart_without_a_event_store_loans_are_seen_in_the_partition(world: World):
    need(world, 3.0)
    world.cycle(1.0)
    world.restart()
    world.cycle(100.0)
    assert world.lent == {"i1", "i2"}
    assert world.loan("i1").since_at == world.now
    assert says(world.loan("i1").why, "memory", "gone")


def test_after_a_restart_a_call_back_stands_with_its_deadline(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    deadline_at = world.loan(node).deadline_at
    world.restart(world.plans[-1].loans)
    world.cycle(5.0)
    assert world.closed == {node}
    assert world.loan(node).deadline_at == deadline_at
    world.cycles(130.0)
    assert len(world.preempted) == 1
    assert not world.past[node].late


def test_after_a_restart_a_demand_for_a_server_is_not_taken_back_before_it_is_said_again(world: World):
    lend_all(world)
    world.base(10, "i1")
    deadline_at = world.now + 300.0
    world.demand.calls = (ReclaimRequest("c1", world.now, deadline_at, "the peak", ("i1",)),)
    world.cycle(1.0)
    world.demand.calls = ()
    world.restart(world.plans[-1].loans)
    world.cycles(70.0)
    assert world.closed == {"i1"}
    assert world.loan("i1").deadline_at == deadline_at


def test_a_call_back_whose_memory_is_lost_is_seen_by_what_still_trains_there(world: World):
    lend_all(world)
    world.base(10, "i1")
    need(world, 6.0)
    world.cycle(1.0)
    assert "i1" not in world.borrowed
    world.restart()
    world.cycle(5.0)
    assert world.closed == {"i1"}
    assert world.loan("i1").deadline_at == world.now + RULES.reclaim_s
    world.cycles(200.0)
    assert world.preempted == [10]
    assert not world.closed


def test_loans_that_came_back_while_flexod_was_away_are_not_taken_up_again(world: World):
    need(world, 3.0)
    world.cycle(1.0)
    loans = world.plans[-1].loans
    world.borrowed = frozenset({"i1"})
    world.restart(loans)
    world.demand.servers = 6.0
    world.cycle(30.0)
    assert "i2" in world.past
    assert any(says(text, "came back", "away") for text in world.events("returned"))


def test_a_loan_with_workers_still_there_is_put_back_when_both_were_restarted(world: World):
    need(world, 3.0)
    world.cycle(1.0)
    world.satellite(50, "i1")
    loans = world.plans[-1].loans
    world.borrowed = frozenset()
    world.restart(loans)
    world.cycle(10.0)
    world.cycle(60.0)
    assert "i1" in world.lent
    assert "i1" in world.borrowed


def test_a_call_back_that_is_remembered_without_a_deadline_gets_one(world: World):
    lend_all(world)
    world.base(10, "i1")
    strange = replace(world.loan("i1"), state=LoanState.RECLAIMING, why_back="its state is not known")
    world.restart((strange,))
    world.cycle(1.0)
    assert world.loan("i1").deadline_at == world.now + RULES.reclaim_s
    (text,) = (text for text in world.events("repair") if "i1" in text)
    assert says(text, "i1", "state", "3 min")
    world.cycles(200.0)
    assert world.preempted == [10]
    assert not world.past["i1"].late


def test_of_two_loans_of_one_server_the_later_counts(world: World):
    need(world, 4.0)
    world.cycle(1.0)
    (loan,) = world.plans[-1].loans
    world.restart((replace(loan, since_at=5.0, why="old"), loan))
    world.cycle(1.0)
    assert [each.why for each in world.plans[-1].loans] == [loan.why]
    assert any(says(text, "i1", "two loans", "later") for text in world.events("repair"))


def test_a_clock_set_back_while_flexod_was_away_puts_no_deadline_off(world: World):
    lend_all(world)
    for node in world.borrowed:
        world.base(100 + int(node[1:]), node)
    need(world, 1.0)
    (node,) = world.closed
    world.now -= 50_000.0
    world.restart(world.plans[-1].loans)
    world.cycle(2.0)
    assert world.loan(node).deadline_at == world.now + RULES.reclaim_s
    assert all(loan.since_at <= world.now for loan in world.plans[-1].loans)
    world.cycles(130.0)
    assert len(world.preempted) == 1


def test_a_dry_run_says_what_it_would_do_and_does_nothing():
    world = World(dry_run=True)
    world.demand.servers = 3.0
    world.cycles(200.0)
    assert world.edits == []
    assert world.plans[-1].loans == ()
    [text] = world.events("demand")
    assert says(text, "would lend 2 servers", "3.0 of its 6 servers", "no forecast", "4.0 with headroom")
    world.borrowed = frozenset({"i1"})
    world.satellite(50, "i1")
    need(world, 6.0)
    assert world.plans[-1].scale_in == ()
    assert not world.closed
    assert any("would call" in text for text in world.events("demand"))
