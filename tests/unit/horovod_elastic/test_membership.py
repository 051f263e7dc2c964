"""Each rule of membership by an example."""

from __future__ import annotations

from typing import TypeVar

import pytest
from says import says
from world import World, check_places, training_world

from horovod_elastic.leader.membership.change import PREPARE_BOUND_S, RETRY_S, K
from horovod_elastic.leader.membership.commands import (
    Abandon,
    Command,
    End,
    Go,
    Leave,
    Propose,
    Start,
    Withdraw,
)
from horovod_elastic.leader.membership.membership import ARRIVAL_BOUND_S
from horovod_elastic.leader.membership.roster import (
    EXIT_BOUND_S,
    LEAVE_BOUND_S,
    LONG_LIFE_S,
    WARM_UP_BOUND_S,
    WorkerStatus,
)
from horovod_elastic.leader.membership.staff import RESTARTS_PER_SLOT
from horovod_elastic.leader.membership.states import WorkerState
from horovod_elastic.phase import Phase

_Command = TypeVar("_Command")


def of_kind(commands: list[Command], kind: type[_Command]) -> list[_Command]:
    return [command for command in commands if isinstance(command, kind)]


def test_founders_wait_for_each_other_and_are_placed_by_node() -> None:
    world = World({"b1": 2, "b2": 1})
    world.join("b1", 2)
    world.ready("w2")
    world.ready("w1")
    assert not world.forms
    world.join("b2", 1)
    world.ready("w3")
    assert [(p.worker_id, p.local_rank, p.cross_rank, p.cross_size) for p in world.forms[0].places] == [
        ("w1", 0, 0, 2),
        ("w2", 1, 0, 1),
        ("w3", 0, 1, 2),
    ]


def test_rank_0_begins_on_the_first_node_whichever_agent_came_first() -> None:
    world = World({"b1": 1, "b2": 1})
    world.join("b2", 1)
    world.join("b1", 1)
    world.ready("w1")
    world.ready("w2")
    assert [place.agent for place in world.forms[0].places] == ["b1", "b2"]


def test_a_newcomer_joins_at_the_commit_after_it_is_ready_and_not_before() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 2)
    world.ready("w2")
    world.commit()
    assert len(world.forms) == 1, "the other worker of its node is still importing"
    trained = world.processes["w1"].commits
    world.ready("w3")
    world.commit()
    assert [place.worker_id for place in world.forms[1].places] == ["w1", "w2", "w3"]
    assert world.forms[1].commits == trained + K, "after k more mini-batches"


def test_newcomers_are_told_a_rank_that_is_not_0_and_the_size_that_is_to_be() -> None:
    world = training_world({"b1": 1})
    starts = of_kind(world.members.agent_joined("s1", 2, False, 0.0), Start)
    assert [
        (
            s.projected_rank.rank,
            s.projected_rank.size,
            s.projected_rank.local_rank,
            s.projected_rank.local_size,
        )
        for s in starts
    ] == [
        (1, 3, 0, 2),
        (2, 3, 1, 2),
    ]
    assert all(start.newcomer for start in starts)


def test_a_satellite_that_comes_before_the_first_generation_warms_up_like_any_other() -> None:
    world = World({"b1": 1})
    world.join("s1", 1)
    world.join("b1", 1)
    assert [p.newcomer for p in world.processes.values()] == [True, False]
    world.ready("w1")
    world.ready("w2")
    assert [place.worker_id for place in world.forms[0].places] == ["w2"]
    world.enter_loop("w2")
    world.commit()
    assert [place.worker_id for place in world.forms[1].places] == ["w2", "w1"]


def test_a_script_that_is_not_in_its_loop_is_not_interrupted() -> None:
    world = World({"b1": 1})
    world.join("b1", 1)
    world.ready("w1")
    world.join("s1", 1)
    world.ready("w2")
    assert list(world.prepared) == [1]
    world.enter_loop("w1")
    assert list(world.prepared) == [1, 2]


def test_a_released_agent_trains_until_the_boundary_and_is_dismissed_after_its_workers() -> None:
    world = training_world({"b1": 1}, "s1", slots=2)
    world.release("s1")
    world.flush()
    assert len(world.training()) == 3
    assert "s1" not in world.dismissed
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w1"]
    assert world.told_to_leave == {"w2", "w3"}
    assert "s1" in world.dismissed
    assert world.end is None


def test_a_released_agent_that_still_warms_up_goes_at_once() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 2)
    world.ready("w2")
    world.release("s1")
    assert "w3" not in world.processes, "one that starts is killed"
    world.flush()
    assert "w2" in world.told_to_leave
    assert "s1" in world.dismissed
    assert list(world.prepared) == [1]


def test_release_and_arrival_of_newcomers_are_one_change() -> None:
    world = training_world({"b1": 1}, "s1")
    world.join("s2", 1)
    world.release("s1")
    world.ready("w3")
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w1", "w3"]


def test_who_has_committed_most_becomes_rank_0() -> None:
    world = training_world({"b1": 2}, "s1")
    world.exit("w1", -9)
    world.processes["w3"].part.commits += 1
    world.steps.append(world.processes["w3"].commits)
    world.commit()
    form = world.forms[-1]
    assert [place.worker_id for place in form.places][:2] == ["w3", "w2"]
    check_places(form.places)


def test_a_worker_that_died_is_started_again_in_its_slot_and_ranks_stay_in_the_cores_order() -> None:
    world = training_world({"b1": 2})
    world.exit("w1", -9)
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w2"]
    again = world.members.worker("w3")
    assert again is not None
    assert (again.agent, again.slot, again.newcomer) == ("b1", 0, True)
    world.ready("w3")
    world.commit()
    places = {place.worker_id: (place.rank, place.local_rank) for place in world.forms[-1].places}
    assert places == {"w2": (0, 0), "w3": (1, 1)}


def test_a_worker_that_is_started_again_is_told_the_local_rank_that_it_will_have() -> None:
    world = training_world({"b1": 2}, "s1", slots=2)
    world.exit("w3", -9)
    world.commit()
    (worker_id,) = [w for w in world.of("s1") if w != "w4"]
    projected_rank = world.outlooks[worker_id]
    world.ready(worker_id)
    world.commit()
    (place,) = [place for place in world.forms[-1].places if place.worker_id == worker_id]
    assert (projected_rank.rank, projected_rank.local_rank) == (place.rank, place.local_rank)


def of_torch(world: World) -> None:
    """Its workers run a script of torch.distributed."""
    for worker_id, process in world.processes.items():
        process.layout, process.told_first = "one", world.outlooks[worker_id].rank == 0
        world.stand(worker_id)
    world.flush()


def test_the_successor_of_a_worker_that_was_told_rank_0_is_told_so_and_gets_it() -> None:
    """Scripts keep the rank that they were told first, and rank 0 writes their checkpoints."""
    world = training_world({"b1": 2}, "s1")
    of_torch(world)
    world.exit("w1", -9)
    world.commit()
    (successor,) = [w for w in world.of("b1") if w != "w2"]
    assert world.outlooks[successor].rank == 0
    of_torch(world)
    world.ready(successor)
    world.commit()
    assert world.forms[-1].places[0].worker_id == successor


def test_where_another_worker_dies_its_successor_is_not_told_rank_0() -> None:
    world = training_world({"b1": 2}, "s1")
    of_torch(world)
    world.exit("w2", -9)
    world.commit()
    (successor,) = [w for w in world.of("b1") if w != "w1"]
    assert world.outlooks[successor].rank > 0


def test_a_newcomer_with_another_layout_is_sent_away_and_the_others_do_not_notice() -> None:
    world = training_world({"b1": 2})
    of_torch(world)
    world.join("s1", 1)
    (newcomer,) = world.of("s1")
    world.processes[newcomer].layout = "another"
    generation = world.members.generation
    world.ready(newcomer)
    world.commit()
    assert world.members.generation == generation
    assert len(world.training()) == 2


def test_a_newcomer_after_whose_join_a_collective_fails_is_sent_away() -> None:
    """It may take part in other collectives than the others, and nobody died. The others train on."""
    world = training_world({"b1": 2}, "s1")
    of_torch(world)
    world.commit()
    (newcomer,) = world.of("s1")
    for worker_id in list(world.training()):
        world.fail(worker_id)
    world.quieten()
    assert newcomer not in world.processes
    assert len(world.training()) == 2
    for worker_id in list(world.training()):
        world.fail(worker_id)
    world.quieten()
    assert len(world.training()) == 2, "only newcomers are sent away"


@pytest.mark.parametrize("layout", ["one", ""])
def test_a_newcomer_stays_if_another_worker_was_lost_or_its_script_is_horovods(layout: str) -> None:
    world = training_world({"b1": 2}, "s1")
    if layout:
        of_torch(world)
    world.commit()
    (newcomer,) = world.of("s1")
    if layout:
        world.exit("w2", -9)
    for worker_id in list(world.training()):
        world.fail(worker_id)
    world.quieten()
    assert newcomer in world.processes


def test_an_agents_workers_have_ranks_that_follow_each_other_whoever_came_last() -> None:
    """A founder that is replaced while a satellite trains must not end up behind the satellite."""
    world = training_world({"b1": 2}, "s1", slots=2)
    world.exit("w2", -9)
    world.commit()
    world.ready("w5")
    world.commit()
    assert [place.agent for place in world.forms[-1].places] == ["b1", "b1", "s1", "s1"]
    assert [place.worker_id for place in world.forms[-1].places] == ["w1", "w5", "w3", "w4"]


def test_below_the_minimum_and_up_again_elsewhere_all_take_part_in_one_sync() -> None:
    """Stock Horovod deadlocks: survivors leave the broadcast out that the newcomer waits in."""
    world = training_world({"b1": 1, "b2": 1})
    world.lose("b2")
    world.commit()
    assert len(world.training()) == 1
    world.join("s9", 1)
    for worker_id in world.of("s9"):
        world.ready(worker_id)
    world.commit()
    go = world.forms[-1].go
    assert go is not None
    assert go.sync
    assert {call.worker_id for call in go.calls} == {"w1", *world.of("s9")} == set(world.training())


def test_a_slot_whose_workers_keep_dying_is_given_up_and_a_satellite_with_it() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 2)
    world.ready("w2")
    for _ in range(RESTARTS_PER_SLOT + 1):
        world.exit(next(w for w in world.of("s1") if w != "w2"), -9)
    world.flush()
    assert "w2" in world.told_to_leave
    assert "s1" in world.dismissed
    assert world.end is None


def test_a_new_worker_that_exits_by_itself_is_started_again_once_and_in_the_next_satellite_not_at_all() -> (
    None
):
    world = training_world({"b1": 1})
    for satellite, starts in (("s1", 2), ("s2", 1), ("s3", 1)):
        world.join(satellite, 1)
        for _ in range(starts):
            assert satellite not in world.dismissed
            (worker,) = world.of(satellite)
            world.exit(worker, 1)
        world.flush()
        assert satellite in world.dismissed
    assert [(each.node, each.exit_code, each.again) for each in world.failed] == [
        ("s1", 1, True),
        ("s1", 1, False),
        ("s2", 1, False),
        ("s3", 1, False),
    ]
    assert world.end is None
    world.join("s4", 3)
    (first,) = world.of("s4")  # one shows whether they still fail
    world.ready(first)
    assert len(world.of("s4")) == 3
    world.commit()
    assert world.training().keys() == {"w1"}
    for each in world.of("s4"):
        world.ready(each)
    world.commit()
    assert len(world.training()) == 4
    world.join("s5", 1)
    world.exit(world.of("s5")[0], 1)
    assert world.of("s5")


def test_a_worker_that_failed_after_it_had_trained_is_told_of_as_well() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 1)
    world.ready("w2")
    world.commit()
    assert len(world.training()) == 2
    world.exit("w2", 1)
    (failed,) = world.failed
    assert (failed.node, failed.trained, failed.again) == ("s1", True, True)


def test_the_worker_that_failed_first_is_why_a_job_ends() -> None:
    world = training_world({"n1-7": 1, "n2-7": 1})
    world.exit("w2", 1)
    world.exit("w1", 1)
    assert world.end is not None
    assert says(world.end.why, "rank 1 on n2", "exit code 1")
    assert world.end.exit_code == 1


def test_a_founder_that_fails_before_training_is_named() -> None:
    world = World({"n1-7": 1, "n2-7": 1})
    world.join("n1-7", 1)
    world.join("n2-7", 1)
    world.exit("w2", 3)
    assert world.end is not None
    assert says(world.end.why, "rank 1 on n2", "before training", "exit code 3")


def test_deaths_long_after_each_other_do_not_use_up_a_slot_of_the_base() -> None:
    world = training_world({"b1": 2})
    for _ in range(2 * RESTARTS_PER_SLOT):
        world.now += LONG_LIFE_S
        victim = next(w for w in world.of("b1") if w != "w1")
        world.exit(victim, -9)
        world.flush()
        (replacement,) = [w for w in world.of("b1") if w != "w1"]
        assert replacement != victim
        world.ready(replacement)
        world.commit()
    assert world.end is None


def test_newcomers_that_never_got_the_model_do_not_go_on_without_it() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 1)
    world.ready("w2")
    for _ in range(K):
        world.step("w1")
        world.flush()
    assert world.processes["w2"].part.generation == 2, "it waits for the model"
    world.exit("w1", -9)
    world.flush()
    world.step("w2")
    world.flush()
    assert world.end is not None
    assert world.end.exit_code == 137


def test_a_killed_worker_that_was_replaced_does_not_fail_the_job() -> None:
    world = training_world({"b1": 2})
    world.exit("w2", -9)
    world.commit()
    world.ready("w3")
    world.commit()
    world.finish()
    world.quieten()
    assert world.end == End(0, "the script ended")


@pytest.mark.parametrize(("codes", "expected"), [((3, 1), 3), ((1, 3), 3), ((-6, 3), 3), ((-9, 1), 137)])
def test_the_job_ends_with_the_exit_code_of_the_cause_not_of_bystanders(
    codes: tuple[int, int], expected: int
) -> None:
    world = World({"b1": 2})
    world.join("b1", 2)
    world.ready("w1")
    world.ready("w2")
    world.exit("w1", codes[0])
    assert world.end is None, "the others get time to say what they saw"
    world.exit("w2", codes[1])
    assert world.end is not None
    assert world.end.exit_code == expected


def test_a_rigid_script_does_not_hang_when_one_of_its_workers_failed() -> None:
    world = World({"b1": 2})
    world.join("b1", 2)
    world.ready("w1")
    world.ready("w2")
    world.exit("w1", 3)
    world.tick(EXIT_BOUND_S + 1)
    assert world.end is not None
    assert world.end.exit_code == 3


def test_a_worker_that_fails_before_its_loop_ends_the_job_although_others_are_in_theirs() -> None:
    world = World({"b1": 2})
    world.join("b1", 2)
    world.ready("w1")
    world.ready("w2")
    world.enter_loop("w1")
    world.exit("w2", 3)
    world.commit()
    assert world.end is not None
    assert world.end.exit_code == 3


def test_a_failure_before_hvd_init_ends_the_job_at_once() -> None:
    world = World({"b1": 2})
    world.join("b1", 2)
    world.exit("w2", 3)
    assert world.end is not None
    assert world.end.exit_code == 3
    assert not world.processes


def test_programs_that_never_call_horovod_all_run_to_their_end() -> None:
    world = World({"b1": 1, "b2": 1})
    world.join("b1", 1)
    world.exit("w1", 0)
    assert world.end is None, "the other node has not even said hello"
    world.join("b2", 1)
    world.exit("w2", 0)
    assert world.end == End(0, "the script ended")


def test_nobody_waits_in_hvd_init_for_one_that_has_ended() -> None:
    world = World({"b1": 2})
    world.join("b1", 2)
    world.exit("w1", 0)
    world.ready("w2")
    assert world.end is not None
    assert world.end.exit_code == 1
    assert "hvd.init" in world.end.why


def outliving_world() -> World:
    """A job of three workers that go on without one that dies."""
    world = training_world({"b1": 2, "b2": 1})
    world.outlives = True
    world.train(1)
    return world


def test_who_outlives_a_worker_trains_on_until_the_next_generation() -> None:
    world = outliving_world()
    commits = world.members.commits
    dead = next(w for w, process in world.processes.items() if process.part.rank == 1)
    world.exit(dead, -9)
    assert not world.members.broken
    assert world.members.size == 2
    world.train(3)
    assert len(world.forms) > 1, "a generation without it"
    assert dead not in world.forms[1].members()
    assert not any(process.part.phase is Phase.ARRIVED for process in world.processes.values())
    assert world.members.commits > commits


def test_the_same_workers_get_another_generation_if_their_sums_are_to_be_made_elsewhere() -> None:
    world = training_world({"b1": 2})
    before = world.forms[-1].members()
    world.obey(world.members.renew(world.now))
    world.train(2)
    assert len(world.forms) == 2
    assert world.forms[-1].members() == before
    world.train(2)
    assert len(world.forms) == 2, "once"


def test_rank_0_is_outlived_by_nobody() -> None:
    world = outliving_world()
    first = next(w for w, process in world.processes.items() if process.part.rank == 0)
    world.exit(first, -9)
    assert world.members.broken


def test_a_worker_that_dies_while_another_enters_the_generation_breaks_it() -> None:
    """The one on its way cannot know yet that somebody is gone."""
    world = outliving_world()
    late = next(w for w, process in world.processes.items() if process.part.rank == 1)
    world.members.worker(late).entered = 0  # type: ignore[union-attr]
    dead = next(w for w, process in world.processes.items() if process.part.rank == 2)
    world.exit(dead, -9)
    assert world.members.broken


def test_a_worker_that_is_lost_as_the_others_finish_does_not_fail_the_job() -> None:
    world = training_world({"b1": 1, "b2": 1})
    world.members.agent_lost("b2", "its agent has said nothing", world.now)
    world.processes["w1"].part.finish()
    world.stand("w1")
    world.flush()
    world.exit("w1", 0)
    assert world.end == End(0, "the script ended")


def test_when_the_script_ends_newcomers_go_and_those_who_finished_may_tidy_up() -> None:
    world = training_world({"b1": 2})
    world.join("s1", 2)
    world.ready("w3")
    world.finish()
    assert "w3" in world.told_to_leave
    assert "w4" not in world.processes
    assert "s1" in world.dismissed
    world.exit("w2", 0)
    assert world.end is None, "w1 still writes its checkpoint"
    world.exit("w1", 0)
    assert world.end == End(0, "the script ended")


def test_a_failure_while_tidying_up_is_the_jobs() -> None:
    world = training_world({"b1": 1})
    world.finish()
    world.exit("w1", 5)
    assert world.end is not None
    assert world.end.exit_code == 5


@pytest.mark.parametrize(("exit_code", "job_ends_with"), [(-9, 0), (143, 0), (-11, 139), (5, 5)])
def test_a_satellite_that_the_cluster_takes_while_the_job_ends_does_not_fail_the_job(
    exit_code: int, job_ends_with: int
) -> None:
    world = training_world({"b1": 1}, "s1")
    world.finish()
    world.exit("w2", exit_code)
    world.exit("w1", 0)
    assert world.end is not None
    assert world.end.exit_code == job_ends_with


def test_a_worker_of_the_base_that_is_killed_while_it_tidies_up_fails_the_job() -> None:
    world = training_world({"b1": 2})
    world.finish()
    world.exit("w2", -9)
    world.exit("w1", 0)
    assert world.end is not None
    assert world.end.exit_code == 137


def test_one_that_finished_is_not_killed_when_the_others_have_to_start_over() -> None:
    world = training_world({"b1": 3})
    world.processes["w1"].part.finish()
    world.stand("w1")
    world.flush()
    world.exit("w2", -9)
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w3"]
    world.finish()
    world.exit("w3", 0)
    assert world.end is None
    world.exit("w1", 0)
    assert world.end is not None
    assert world.end.exit_code == 0


@pytest.mark.parametrize(("exit_code", "job_ends_with"), [(1, 0), (-6, 0), (5, 5)])
def test_one_that_waited_at_the_end_and_lost_a_peer_fails_no_job_that_goes_on_without_it(
    exit_code: int, job_ends_with: int
) -> None:
    """It was in hvd.join. What a script says with an exit code of its own counts."""
    world = training_world({"b1": 3})
    world.processes["w1"].part.finish()
    world.stand("w1")
    world.flush()
    world.exit("w2", -9)
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w3"]
    world.exit("w1", exit_code)
    world.finish()
    world.exit("w3", 0)
    assert world.end is not None
    assert world.end.exit_code == job_ends_with


def test_satellites_are_dismissed_as_soon_as_they_have_finished() -> None:
    world = training_world({"b1": 1}, "s1")
    world.finish()
    world.exit("w2", 0)
    assert "s1" in world.dismissed
    assert world.end is None


def test_a_second_training_function_survives_failures_like_the_first() -> None:
    world = training_world({"b1": 2})
    world.finish()
    for worker_id in ("w1", "w2"):
        process = world.processes[worker_id]
        process.part.phase, process.part.in_loop = Phase.TRAINING, False
        world.enter_loop(worker_id)
    world.exit("w2", -9)
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w1"]


def test_an_orphan_whose_agent_is_gone_is_told_to_leave_when_it_turns_up() -> None:
    world = training_world({"b1": 1}, "s1")
    world.members.agent_lost("s1", "connection lost", 0.0)
    arrived = WorkerStatus(Phase.ARRIVED, generation=2, called=2)
    (leave,) = of_kind(world.members.worker_stands("w2", arrived, 0.0), Leave)
    assert leave.worker_id == "w2"


def test_a_standing_from_before_the_word_was_heard_changes_nothing() -> None:
    world = training_world({"b1": 2})
    world.exit("w2", -9)
    world.commit()
    assert world.members.size == 1
    late = WorkerStatus(Phase.ARRIVED, generation=1, called=1, in_loop=True)
    world.obey(world.members.worker_stands("w1", late, world.now))
    assert [worker.state for worker in world.members.present()] == [WorkerState.TRAINING]


def test_those_who_do_not_come_back_from_a_broken_generation_are_killed() -> None:
    world = training_world({"b1": 1}, "s1", "s2")
    world.exit("w3", -9)
    world.flush()
    world.step("w2")
    world.flush()
    world.tick(ARRIVAL_BOUND_S - 1)
    assert "w1" in world.processes
    world.tick(2.0)
    assert "w1" not in world.processes
    world.flush()
    assert [place.worker_id for place in world.forms[-1].places][:1] == ["w2"]


def test_a_newcomer_that_warms_up_too_long_is_killed_and_tried_again() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 1)
    world.tick(WARM_UP_BOUND_S + 1)
    assert "w2" not in world.processes
    assert "w3" in world.processes


def test_one_that_was_told_to_leave_and_does_not_is_killed() -> None:
    world = training_world({"b1": 1}, "s1")
    world.release("s1")
    world.flush()
    assert world.training().keys() == {"w1", "w2"}
    world.tick(LEAVE_BOUND_S + 1)
    assert "w2" not in world.processes
    assert "s1" in world.dismissed


def test_a_script_that_ends_on_sigterm_with_0_does_not_end_the_job_for_the_others() -> None:
    world = training_world({"b1": 1}, "s1")
    world.release("s1")
    world.exit("w2", 0)
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w1"]
    assert not world.members.finishing


def test_a_boundary_that_somebody_has_passed_is_withdrawn_and_k_is_doubled() -> None:
    world = training_world({"b1": 2})
    world.join("s1", 1)
    members = world.members
    now = world.now
    members.worker_stands("w3", WorkerStatus(Phase.READY, in_loop=True), now)
    for worker_id in ("w1", "w2"):
        members.worker_prepared(worker_id, 2, "", now)
    (question,) = of_kind(members.worker_prepared("w3", 2, "", now), Propose)
    assert (question.at, question.worker_ids) == (0, ("w1",))
    (proposal,) = of_kind(members.worker_accepted("w1", 1, 0, 10, False, now), Propose)
    assert (proposal.at, proposal.worker_ids) == (10 + K, ("w1", "w2"))
    assert members.worker_accepted("w1", 1, 12, 11, False, now) == []
    withdrawn = members.worker_accepted("w2", 1, 12, 12, True, now)
    assert of_kind(withdrawn, Withdraw)[0].worker_ids == ("w1", "w2")
    (question,) = of_kind(withdrawn, Propose)
    assert question.at == 0
    (proposal,) = of_kind(members.worker_accepted("w1", 1, 0, 12, False, now), Propose)
    assert proposal.at == 12 + 2 * K
    members.worker_accepted("w1", 1, 16, 12, False, now)
    (go,) = of_kind(members.worker_accepted("w2", 1, 16, 13, False, now), Go)
    assert {(call.worker_id, call.at) for call in go.calls} == {("w1", 16), ("w2", 16), ("w3", 0)}
    assert go.sync


def test_a_newcomer_that_dies_while_it_connects_is_left_out_and_nobody_waits_for_it() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 1)
    world.obey(world.members.worker_stands("w2", WorkerStatus(Phase.READY, in_loop=True), world.now))
    assert list(world.prepared) == [1, 2]
    world.exit("w2", -9)
    world.commit()
    assert [len(form.places) for form in world.forms] == [1]
    assert world.processes["w1"].part.phase is Phase.TRAINING
    world.ready("w3")
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w1", "w3"]


def test_a_newcomer_with_whom_nobody_can_connect_is_given_up_and_the_others_train_on() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 1)
    members = world.members
    world.obey(members.worker_stands("w2", WorkerStatus(Phase.READY, in_loop=True), world.now))
    for _ in RETRY_S:
        assert "w2" in world.processes
        world.tick(PREPARE_BOUND_S + 1)  # nobody has answered
        world.tick(max(RETRY_S))
    assert "w2" not in world.processes
    assert "w1" in world.processes


def test_workers_beyond_the_limit_step_aside_and_come_back_without_starting_anew() -> None:
    world = training_world({"b1": 1}, "s1", slots=3)
    world.obey(world.members.limit(2, world.now))
    world.commit()
    assert len(world.training()) == 2
    assert {process.moment for process in world.processes.values()} == {"training", "ready"}
    assert world.end is None
    world.obey(world.members.limit(None, world.now))
    world.commit()
    assert sorted(world.training()) == ["w1", "w2", "w3", "w4"]
    assert world.forms[-1].go is not None
    assert world.forms[-1].go.sync, "who comes back has missed mini-batches"


def test_leaving_alone_needs_no_broadcast_of_the_state() -> None:
    world = training_world({"b1": 2}, "s1")
    world.release("s1")
    world.commit()
    assert world.forms[-1].go is not None
    assert not world.forms[-1].go.sync


def test_resizes_are_sequential() -> None:
    world = training_world({"b1": 1}, "s1")
    world.join("s2", 1)
    world.ready("w3")
    world.flush()
    assert world.members.changing
    prepared = list(world.prepared)
    world.join("s3", 1)
    world.ready("w4")
    assert list(world.prepared) == prepared, "the second one waits for its turn"
    world.commit()
    assert len(world.training()) == 4
    assert not world.members.changing


def a_change_that_all_have_prepared(world: World) -> list[Command]:
    """A newcomer (w2) joins w1; what the leader says when both have built the communicator."""
    world.join("s1", 1)
    members, now = world.members, world.now
    members.worker_stands("w2", WorkerStatus(Phase.READY, in_loop=True), now)
    members.worker_prepared("w1", 2, "", now)
    return members.worker_prepared("w2", 2, "", now)


def test_a_newcomer_that_dies_while_rank_0_is_asked_costs_nobody_a_promise() -> None:
    world = training_world({"b1": 1})
    assert of_kind(a_change_that_all_have_prepared(world), Propose)
    commands = world.members.worker_exited("w2", -9, world.now)
    assert [each.worker_ids for each in of_kind(commands, Abandon)] == [("w1",)]
    assert not of_kind(commands, Withdraw)


def test_those_who_have_promised_may_go_on_when_a_newcomer_dies() -> None:
    world = training_world({"b1": 1})
    a_change_that_all_have_prepared(world)
    (proposal,) = of_kind(world.members.worker_accepted("w1", 1, 0, 10, False, world.now), Propose)
    commands = world.members.worker_exited("w2", -9, world.now)
    assert of_kind(commands, Withdraw) == [Withdraw(1, proposal.at, ("w1",))]
    assert [each.generation for each in of_kind(commands, Abandon)] == [2]


def test_one_whose_node_has_to_go_leaves_when_its_generation_breaks() -> None:
    world = training_world({"b1": 1}, "s1", "s2")
    world.exit("w3", -9)
    world.release("s1")
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w1"]
    assert "w2" in world.told_to_leave
    assert "s1" in world.dismissed


def test_one_whose_next_training_function_has_lost_the_others_is_told_to_leave() -> None:
    world = training_world({"b1": 3})
    world.processes["w1"].part.finish()
    world.stand("w1")
    world.flush()
    world.exit("w2", -9)
    world.commit()
    arrived = WorkerStatus(Phase.ARRIVED, generation=1, called=1)
    (leave,) = of_kind(world.members.worker_stands("w1", arrived, world.now), Leave)
    assert leave.worker_id == "w1"


def test_an_agent_that_is_lost_while_it_has_to_go_is_not_waited_for() -> None:
    world = training_world({"b1": 1}, "s1")
    world.release("s1")
    world.lose("s1")
    world.commit()
    assert [place.worker_id for place in world.forms[-1].places] == ["w1"]
    assert world.end is None


def test_while_part_of_the_job_is_suspended_nobody_is_given_up_and_nothing_begins() -> None:
    world = training_world({"b1": 1})
    world.join("s1", 1)
    world.obey(world.members.stand_still(True, world.now))
    world.tick(WARM_UP_BOUND_S + 1)
    world.ready("w2")
    assert list(world.prepared) == [1]
    world.obey(world.members.stand_still(False, world.now))
    assert list(world.prepared) == [1, 2]
    assert world.processes.keys() == {"w1", "w2"}


def test_training_that_comes_to_its_end_although_a_founder_failed_early_is_no_failure() -> None:
    world = World({"b1": 2})
    world.join("b1", 2)
    world.ready("w1")
    world.ready("w2")
    world.enter_loop("w1")
    world.exit("w2", 3)
    world.processes["w1"].part.finish()
    world.stand("w1")
    world.flush()
    assert world.members.finishing
    world.exit("w1", 0)
    assert world.end == End(0, "the script ended")


# --- units of several workers ------------------------------------------------------------------------


def test_a_unit_that_loses_a_worker_ends_and_is_started_again_as_a_whole() -> None:
    world = World({"b1": 4}, unit=2)
    world.join("b1", 4)
    for worker_id in ("w1", "w2", "w3", "w4"):
        world.ready(worker_id)
    world.commit()
    for worker_id in ("w1", "w2", "w3", "w4"):
        world.enter_loop(worker_id)
    world.commit()
    world.exit("w3", -9)
    assert "w4" not in world.processes
    world.commit()
    assert world.forms[-1].members() == ["w1", "w2"]
    new = [worker_id for worker_id in world.of("b1") if worker_id not in ("w1", "w2")]
    assert [world.outlooks[worker_id].rank for worker_id in new] == [2, 3]
    world.ready(new[0])
    world.commit()
    assert world.forms[-1].members() == ["w1", "w2"], "half a unit does not join"
    world.ready(new[1])
    world.commit()
    assert world.forms[-1].members() == ["w1", "w2", *new]


def test_a_limit_is_rounded_to_whole_units() -> None:
    world = World({"b1": 4}, unit=2)
    world.join("b1", 4)
    for worker_id in ("w1", "w2", "w3", "w4"):
        world.ready(worker_id)
    world.commit()
    for worker_id in ("w1", "w2", "w3", "w4"):
        world.enter_loop(worker_id)
    world.obey(world.members.limit(3, world.now))
    world.commit()
    world.commit()
    assert world.forms[-1].members() == ["w1", "w2"]


def test_slots_that_are_no_whole_unit_stay_empty() -> None:
    world = World({"b1": 2}, unit=2)
    world.join("b1", 2)
    world.ready("w1")
    world.ready("w2")
    world.commit()
    world.join("s1", 3)
    assert len(world.of("s1")) == 2
